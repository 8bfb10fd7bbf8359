//! Reading a traced process's memory, and taking what we need from NCCL's structures.
//!
//! Written once, generic over [`Memory`]: in the kernel that is `bpf_probe_read_user`, in the tests a byte
//! buffer, in the agent `process_vm_readv`. Everything read is hostile input: it may change under us and
//! point anywhere.

use crate::{
    abi::{CommEvent, CommIdent, CommKey, CommState, Config, GroupState, Header, OpEvent, ProcessEntry},
    layout::{KernelLayout, SEQ_ARRAY, SEQ_COMM, SEQ_FUNCS_MAX, SEQ_SHARED},
};

/// Memory of a process.
pub trait Memory {
    /// Reads a value of plain data at `addr`; `None` if any byte of it is not readable.
    fn read<T: Plain>(&self, addr: u64) -> Option<T>;
}

/// Types for which every bit pattern is a value and that have no padding.
///
/// # Safety
/// The implementer must be `repr(C)` (or a primitive integer, or an array of such), free of padding, and
/// valid for every bit pattern.
pub unsafe trait Plain: Copy {}

/// Reads a value from the front of `bytes`; `None` if they are too few.
#[must_use]
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: `bytes` is `size_of::<T>()` long, the read needs no alignment, and `T: Plain` is valid for
    // every bit pattern.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

// SAFETY: integers are valid for every bit pattern and have no padding.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// The event and state types are `repr(C)`, of integers only; `abi::tests::no_padding` adds their fields up.
// SAFETY: see above.
unsafe impl Plain for Header {}
// SAFETY: see above.
unsafe impl Plain for CommIdent {}
// SAFETY: see above.
unsafe impl Plain for OpEvent {}
// SAFETY: see above.
unsafe impl Plain for CommEvent {}
// SAFETY: see above.
unsafe impl Plain for CommKey {}
// SAFETY: see above.
unsafe impl Plain for CommState {}
// SAFETY: see above.
unsafe impl Plain for GroupState {}
// SAFETY: see above.
unsafe impl Plain for ProcessEntry {}
// SAFETY: see above.
unsafe impl Plain for Config {}
// SAFETY: see above.
unsafe impl Plain for KernelLayout {}
// SAFETY: an array of integers.
unsafe impl Plain for [u64; SEQ_FUNCS_MAX] {}
// SAFETY: `repr(C)`, integers only; 4+4+8+8+8+8+4+4+4+4+8+8 bytes leave no gap.
unsafe impl Plain for InfoPrefix {}
// SAFETY: `repr(C)`, integers only, no gap.
unsafe impl Plain for RankBlock {}

/// First 72 bytes of `ncclInfo`, the same in NCCL 2.18 to 2.32 (`src/include/info.h`; checked against DWARF
/// when a library is first seen).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct InfoPrefix {
    pub coll: i32,
    pub pad: u32,
    pub op_name: u64,
    pub sendbuff: u64,
    pub recvbuff: u64,
    pub count: u64,
    pub datatype: i32,
    pub redop: i32,
    pub root: i32,
    pub pad2: u32,
    pub comm: u64,
    pub stream: u64,
}

/// `ncclComm` from `commHash` on: hash, rank, nRanks, cudaDev, nvmlDev. Neighbours in every release from
/// 2.18 to 2.32.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RankBlock {
    pub hash: u64,
    pub rank: i32,
    pub nranks: i32,
    pub cuda_dev: i32,
    pub nvml_dev: i32,
}

/// Reads who the communicator at `ptr` is. `None` if the layout is not known, the memory not readable, or
/// what is there can't be a communicator (rank outside `0..nranks`).
#[inline(always)]
pub fn read_ident<M: Memory>(mem: &M, layout: &KernelLayout, ptr: u64) -> Option<CommIdent> {
    if layout.comm_rank < 8 || ptr == 0 {
        return None;
    }
    let block: RankBlock = mem.read(ptr.wrapping_add(layout.comm_rank as u64 - 8))?;
    if block.nranks <= 0 || block.rank < 0 || block.rank >= block.nranks {
        return None;
    }
    let bus_id = match layout.comm_bus_id {
        0 => 0,
        off => mem.read(ptr.wrapping_add(off as u64))?,
    };
    Some(CommIdent {
        ptr,
        hash: block.hash,
        rank: block.rank,
        nranks: block.nranks,
        cuda_dev: block.cuda_dev,
        nvml_dev: block.nvml_dev,
        bus_id,
    })
}

/// Reads how many collectives NCCL itself has counted on the communicator at `ptr`. `None` if the layout
/// has no such counter or it is not readable.
#[inline(always)]
pub fn read_collectives<M: Memory>(mem: &M, layout: &KernelLayout, ptr: u64) -> Option<u64> {
    let at = ptr.wrapping_add(layout.seq_offset as u64);
    match layout.seq_kind {
        SEQ_ARRAY => {
            let counts: [u64; SEQ_FUNCS_MAX] = mem.read(at)?;
            let mut sum = 0u64;
            // A counted loop over a constant, which the kernel's verifier can bound.
            for (i, count) in counts.iter().enumerate() {
                if (i as u32) < layout.seq_extra {
                    sum = sum.wrapping_add(*count);
                }
            }
            Some(sum)
        }
        SEQ_COMM => mem.read(at),
        SEQ_SHARED => {
            let shared: u64 = mem.read(at)?;
            mem.read(shared.wrapping_add(layout.seq_extra as u64))
        }
        _ => None,
    }
}

/// The number that the next collective gets: `expected` by our own count, `counted` by NCCL's.
///
/// NCCL counts at launch, we count at the call, so inside a group ours is ahead. When NCCL's is ahead, we
/// missed calls (attached in the middle of a group): take NCCL's. The other way round nothing is mended:
/// operations captured into a CUDA graph are counted by us alone, on every rank alike.
#[inline(always)]
#[must_use]
pub fn reconcile(expected: u64, counted: Option<u64>) -> u64 {
    match counted {
        Some(n) if n > expected => n,
        _ => expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at an address.
    struct Bytes<'a>(u64, &'a [u8]);

    impl Memory for Bytes<'_> {
        fn read<T: Plain>(&self, addr: u64) -> Option<T> {
            from_bytes(self.1.get(usize::try_from(addr.checked_sub(self.0)?).ok()?..)?)
        }
    }

    const LAYOUT: KernelLayout =
        KernelLayout { comm_rank: 24, comm_bus_id: 56, seq_kind: SEQ_ARRAY, seq_offset: 64, seq_extra: 5, job_comm: 0 };

    fn comm(rank: i32, nranks: i32) -> [u8; 256] {
        let mut b = [0u8; 256];
        b[16..24].copy_from_slice(&0xabcd_u64.to_ne_bytes());
        b[24..28].copy_from_slice(&rank.to_ne_bytes());
        b[28..32].copy_from_slice(&nranks.to_ne_bytes());
        b[56..64].copy_from_slice(&0x1_b000_i64.to_ne_bytes());
        for i in 0..16 {
            b[64 + i * 8..72 + i * 8].copy_from_slice(&10u64.to_ne_bytes());
        }
        b
    }

    #[test]
    fn reads_identity_and_counter() {
        let b = comm(3, 4);
        let mem = Bytes(0x1000, &b);
        let id = read_ident(&mem, &LAYOUT, 0x1000).unwrap();
        assert_eq!((id.hash, id.rank, id.nranks, id.bus_id), (0xabcd, 3, 4, 0x1_b000));
        assert_eq!(read_collectives(&mem, &LAYOUT, 0x1000), Some(50), "only the entries that exist are summed");
    }

    #[test]
    fn refuses_what_cannot_be_a_communicator() {
        for (rank, nranks) in [(4, 4), (-1, 4), (0, 0), (0, -1)] {
            let b = comm(rank, nranks);
            assert_eq!(read_ident(&Bytes(0x1000, &b), &LAYOUT, 0x1000), None, "rank {rank} of {nranks}");
        }
        let b = comm(0, 4);
        assert_eq!(read_ident(&Bytes(0x1000, &b), &LAYOUT, 0), None);
        assert_eq!(read_ident(&Bytes(0x1000, &b), &LAYOUT, u64::MAX - 4), None, "wraps, does not panic");
        assert_eq!(read_ident(&Bytes(0x1000, &b[..30]), &LAYOUT, 0x1000), None, "cut off");
        assert_eq!(read_ident(&Bytes(0x1000, &b), &KernelLayout::default(), 0x1000), None, "no layout");
    }

    #[test]
    fn takes_nccls_count_only_when_it_is_ahead() {
        assert_eq!(reconcile(7, None), 7);
        assert_eq!(reconcile(7, Some(7)), 7);
        assert_eq!(reconcile(7, Some(5)), 7, "inside a group");
        assert_eq!(reconcile(7, Some(9)), 9, "attached inside a group");
    }
}
