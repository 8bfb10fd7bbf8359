//! Names of things.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Nanoseconds: a time on the host's CLOCK_MONOTONIC, or a span.
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;
/// One microsecond.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// A host, by its place in the model's list of hosts. The agent's own host is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u32);

/// A process: host and process id in that host's initial pid namespace. A reused pid is told apart by the
/// `ProcessGone` event between its two lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcId {
    pub host: HostId,
    pub pid: u32,
}

/// A communicator over all its ranks.
///
/// `commHash` alone does not do: up to NCCL 2.23 repeated splits with one colour share it. Ranks create
/// communicators in one order, so the n-th of equal hash and size on each rank belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CommId {
    pub hash: u64,
    pub nranks: u32,
    /// 0 for the first communicator of this hash and size, 1 for the next.
    pub instance: u32,
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.hash)?;
        if self.instance > 0 {
            write!(f, "+{}", self.instance)?;
        }
        Ok(())
    }
}

/// `domain:bus:device.function` of NCCL's 64-bit bus id (`int64ToBusId`, `src/misc/utils.cc`).
#[must_use]
pub fn bus_id_text(id: i64) -> String {
    let id = id as u64;
    format!("{:04x}:{:02x}:{:02x}.{:x}", id >> 20, (id >> 12) & 0xff, (id >> 4) & 0xff, id & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_read_as_lspci_prints_them() {
        assert_eq!(bus_id_text(0x1b000), "0000:1b:00.0");
        assert_eq!(bus_id_text((1 << 20) | (0xca << 12) | (1 << 4) | 2), "0001:ca:01.2");
    }

    #[test]
    fn instances_show_only_where_they_tell_apart() {
        let id = CommId { hash: 0xab, nranks: 4, instance: 0 };
        assert_eq!(id.to_string(), "0x00000000000000ab");
        assert_eq!(CommId { instance: 2, ..id }.to_string(), "0x00000000000000ab+2");
    }
}
