//! How far the transfers of a communicator are, as NCCL's proxy keeps count of it.
//!
//! Source: `ncclProxySubArgs` and its users in `src/transport/net.cc`, NCCL 2.18 to 2.32. Counters are in steps; an
//! operation's data moves in slices of [`FlowOp::slice`] steps, so they are multiples of it.

use mycroft_common::nccl::Func;
use serde::{Deserialize, Serialize};

use super::ids::{Nanos, ProcId};

/// Direction of a connection, seen from the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Way {
    Send,
    Recv,
}

/// How a connection carries data (`TRANSPORT_*`, `src/include/transport.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// GPU to GPU: NVLink or PCIe. Its counters are in GPU memory.
    P2p,
    /// Shared memory of the host.
    Shm,
    /// A network plugin or NCCL's own sockets and InfiniBand: its counters are the proxy's.
    Net,
    /// In-network reduction.
    CollNet,
    /// Done by another process's proxy on this host (PXN).
    Elsewhere,
    /// Not connected yet.
    Unconnected,
    /// A code that this release does not know.
    Unknown(i32),
}

impl Transport {
    #[must_use]
    pub const fn from_code(code: i32) -> Self {
        match code {
            0 => Self::P2p,
            1 => Self::Shm,
            2 => Self::Net,
            3 => Self::CollNet,
            code => Self::Unknown(code),
        }
    }

    /// As NCCL's log spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P2p => "P2P",
            Self::Shm => "SHM",
            Self::Net => "NET",
            Self::CollNet => "COLLNET",
            Self::Elsewhere => "PXN",
            Self::Unconnected => "unconnected",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Whether the host can see how far a transfer is.
    #[must_use]
    pub const fn has_flow_data(self) -> bool {
        matches!(self, Self::Net)
    }
}

/// `NCCL_PROTO_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    Ll,
    Ll128,
    Simple,
    Unknown(u8),
}

impl Protocol {
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Ll,
            1 => Self::Ll128,
            2 => Self::Simple,
            code => Self::Unknown(code),
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "Simple",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// One direction of one connection of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    pub channel: u32,
    /// Rank at the other end; `None` where NCCL does not tell.
    pub peer: Option<u32>,
    pub way: Way,
    /// The other end is this rank's parent in the channel's tree.
    pub parent: bool,
    /// It is a connection for sends and receives, not for collectives.
    pub p2p: bool,
    pub transport: Transport,
    /// Index of the network device.
    pub net_dev: Option<i32>,
    /// Steps that all operations so far were given; grows also by operations too short to be seen.
    pub steps: Option<u64>,
    /// The operation in work.
    pub op: Option<FlowOp>,
    /// Operations behind it on the same connection.
    pub behind: u32,
}

/// An operation's transfer on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowOp {
    /// Number among the collectives (or sends and receives) that NCCL handed to its proxies.
    pub number: u64,
    /// `None` before 2.20.
    pub func: Option<Func>,
    pub protocol: Protocol,
    /// `NCCL_ALGO_*`; `None` before 2.24.
    pub algorithm: Option<u8>,
    /// Goes up and down a tree, not round a ring.
    pub tree: bool,
    /// The proxy has begun with it.
    pub begun: bool,
    /// Steps in all.
    pub steps: u64,
    /// Steps that move at once.
    pub slice: u64,
    /// Bytes of a slice at most.
    pub slice_bytes: u64,
    /// First step of this operation in the connection's count.
    pub base: u64,
    /// Send: slots that the GPU may fill. Recv: receives posted to the network.
    pub posted: u64,
    /// Send only: steps whose data the GPU has made ready. Paper: GPU_ready.
    pub ready: u64,
    /// Recv only: steps that the network has delivered.
    pub received: u64,
    /// Send: handed to the network (paper: RDMA_transmitted). Recv: shown to the GPU.
    pub transmitted: u64,
    /// Recv only: steps that the GPU has used up, whether or not the proxy has noticed.
    pub consumed: u64,
    /// Send: completed by the network (paper: RDMA_done). Recv: used up by the GPU, as the proxy has noticed.
    pub done: u64,
}

/// State of all connections of one rank's communicator at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    pub proc: ProcId,
    /// Address of the `ncclComm`.
    pub ptr: u64,
    pub at: Nanos,
    pub flows: Vec<Flow>,
    /// Operations were handed over that the progress thread has not taken.
    pub untaken: bool,
    /// The network in use, such as `Socket`, `IB` or a plugin's name.
    pub net: Option<String>,
    /// CPU time of the progress thread.
    pub progress: Option<Progress>,
}

/// What the progress thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub tid: u32,
    /// Time on a CPU, ns.
    pub ran: Nanos,
    /// Time that it was ready to run and waited for a CPU, ns.
    pub waited: Nanos,
    /// Times that it was put on a CPU.
    pub slices: u64,
    /// State letter, as in `/proc/PID/stat`.
    pub state: char,
}
