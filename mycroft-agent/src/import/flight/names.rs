//! PyTorch's names of operations and types, as NCCL knows them.

use mycroft_common::nccl::Func;

/// What an entry's `profiling_name` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::import) struct Call {
    pub(in crate::import) func: Func,
    /// The other rank of a send or receive, within the group.
    pub(in crate::import) peer: Option<u32>,
    /// All ranks must give the same size.
    pub(in crate::import) comparable: bool,
    /// NCCL counts the output's elements, not the input's.
    pub(in crate::import) counts_output: bool,
}

/// `nccl:all_reduce`, `nccl:send 0->3`, `nccl:recv 3<-2`. Other back ends write other prefixes.
pub(in crate::import) fn call(name: &str) -> Option<Call> {
    let name = name.split_once(':').map_or(name, |(_, n)| n).trim();
    let plain = |func, comparable| Some(Call { func, peer: None, comparable, counts_output: false });
    if let Some(ends) = name.strip_prefix("send ") {
        return peer(Func::Send, ends.split_once("->")?.1);
    }
    if let Some(ends) = name.strip_prefix("recv ") {
        return peer(Func::Recv, ends.split_once("<-")?.1);
    }
    match name {
        "_all_gather_base" | "_allgather_base" => plain(Func::AllGather, true),
        "_reduce_scatter_base" => {
            Some(Call { func: Func::ReduceScatter, peer: None, comparable: true, counts_output: true })
        }
        "broadcast" | "_broadcast_oop" => plain(Func::Broadcast, true),
        "reduce" | "_reduce_oop" => plain(Func::Reduce, true),
        "gather" => plain(Func::Gather, false),
        "scatter" => plain(Func::Scatter, false),
        n if n.starts_with("all_reduce") || n.starts_with("allreduce") => plain(Func::AllReduce, true),
        // Uneven parts are allowed in these.
        n if n.starts_with("all_gather") || n.starts_with("allgather") => plain(Func::AllGather, false),
        n if n.starts_with("reduce_scatter") => plain(Func::ReduceScatter, false),
        n if n.starts_with("all_to_all") || n.starts_with("alltoall") => plain(Func::AlltoAll, false),
        // A group of calls, entered once more as a whole.
        _ => plain(Func::SendRecv, false),
    }
}

fn peer(func: Func, rank: &str) -> Option<Call> {
    Some(Call { func, peer: Some(rank.trim().parse().ok()?), comparable: false, counts_output: false })
}

/// `ncclDataType_t` of a tensor type (`getNcclDataType`, `ProcessGroupNCCL.cpp`); -1 for one that NCCL does not have.
pub(in crate::import) fn datatype(name: &str) -> i32 {
    match name {
        "Char" => 0,
        "Byte" | "Bool" => 1,
        "Int" => 2,
        "Long" => 4,
        "Half" => 6,
        "Float" => 7,
        "Double" => 8,
        "BFloat16" => 9,
        "Float8_e4m3fn" | "Float8_e4m3fnuz" => 10,
        "Float8_e5m2" | "Float8_e5m2fnuz" => 11,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_versions() {
        let func = |n| call(n).map(|c| (c.func, c.peer));
        assert_eq!(func("nccl:send 0->3"), Some((Func::Send, Some(3))));
        assert_eq!(func("nccl:recv 3<-2"), Some((Func::Recv, Some(2))));
        assert_eq!(func("nccl:all_reduce_barrier"), Some((Func::AllReduce, None)));
        assert_eq!(func("xccl:all_gather_into_tensor_coalesced"), Some((Func::AllGather, None)));
        assert_eq!(func("nccl:coalesced"), Some((Func::SendRecv, None)));
        assert_eq!(func("nccl:recv 3"), None);
        assert!(call("nccl:_reduce_scatter_base").unwrap().counts_output);
        assert!(!call("nccl:all_to_all").unwrap().comparable);
    }
}
