//! The one event type that enters the model, whatever its source: ring buffer, recording, import, synthetic.
//!
//! Owns: plain types. Must not: do anything. It stands left of all other modules, since those that make events
//! and those that take them share it.

pub mod fact;
pub mod flow;
pub mod ids;
pub mod process;

use mycroft_common::nccl::Func;
use serde::{Deserialize, Serialize};

pub use fact::Fact;
pub use flow::{Flow, FlowOp, FlowReport, Progress, Protocol, Transport, Way};
pub use ids::{CommId, HostId, Nanos, ProcId};
pub use process::{Activity, Exit, Origin, Process};

/// Something that happened at a time on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub ts: Nanos,
    pub body: Body,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// A host and its name.
    Host { host: HostId, name: String },
    /// A process that maps NCCL was found.
    ProcessSeen(Box<Process>),
    /// A process ended, or replaced itself by exec.
    ProcessGone { proc: ProcId, exit: Exit },
    /// What a process was found doing.
    ProcessActivity { proc: ProcId, activity: Box<Activity> },
    /// What a collector read about a suspect.
    Evidence { proc: ProcId, fact: Fact },
    /// A thread called a collective, send or receive.
    Op(Op),
    /// A thread ended its outermost group: all that it queued is launched.
    GroupEnd { proc: ProcId, tid: u32 },
    /// Creation of a communicator began.
    InitBegin(CommRef),
    /// Creation ended with an `ncclResult_t`.
    InitEnd { comm: CommRef, result: i32 },
    /// `ncclCommFinalize`.
    Finalize(CommRef),
    /// `ncclCommDestroy`.
    Destroy(CommRef),
    /// `ncclCommAbort`.
    Abort(CommRef),
    /// Events were lost between the kernel and here.
    Loss { host: HostId, lost: u64 },
    /// What the kernel counted of a rank's kernel launches, where they are probed.
    Launches { proc: ProcId, ptr: u64, launches: Launches },
    /// A communicator was found in a process's memory.
    CommFound(Box<CommFound>),
    /// How far the transfers of a rank are.
    Flows(Box<FlowReport>),
    /// Operations have ended on a rank's GPU.
    Done(Done),
    /// NCCL holds an error for a communicator (`ncclCommGetAsyncError`), an `ncclResult_t`.
    CommError { proc: ProcId, ptr: u64, code: i32 },
    /// After a loss, the newest state of every rank of the host has been told again.
    Reconciled { host: HostId },
    /// Times of the host's events are right within this bound. A host never mentioned: exact.
    Clock { host: HostId, error: Nanos },
    /// Nothing but the passing of time.
    Tick,
}

/// How far a rank's GPU has come: all up to a number has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub proc: ProcId,
    /// Address of the `ncclComm`.
    pub ptr: u64,
    /// It counts collectives; else sends, receives and the like.
    pub collective: bool,
    /// Number of the newest that has ended.
    pub seq: u64,
}

/// Kernel launches (`ncclLaunchKernel`) of one rank since we attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launches {
    pub count: u64,
    pub last: Nanos,
}

/// One process's handle on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommRef {
    pub proc: ProcId,
    /// Thread that made the call.
    pub tid: u32,
    /// Address of the `ncclComm` in the process.
    pub ptr: u64,
    /// `None` where the communicator's fields could not be read.
    pub ident: Option<Ident>,
}

/// A communicator as its own memory tells it, without a call having been seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommFound {
    pub comm: CommRef,
    /// Collectives that NCCL has launched on it; `None` where the release keeps no count that ranks can compare.
    pub collectives: Option<u64>,
    /// The same by function, where the release counts so (2.26 and later).
    pub by_function: Vec<(Func, u64)>,
    /// As the caller named it.
    pub name: Option<String>,
    /// NCCL's own state of its creation, an `ncclResult_t`: `ncclInProgress` until all ranks have joined. `None` where the
    /// source does not tell.
    pub init_state: Option<i32>,
}

/// Which communicator, and which of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ident {
    pub hash: u64,
    pub rank: u32,
    pub nranks: u32,
    pub cuda_dev: i32,
    pub nvml_dev: i32,
    pub bus_id: i64,
}

/// What all ranks must agree on for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    pub func: Func,
    /// Elements.
    pub count: u64,
    /// `ncclDataType_t`.
    pub datatype: i32,
    /// `ncclRedOp_t`; 0 where the function does not reduce. Handles of the caller's own are all -1: their
    /// numbers are local to a rank.
    pub redop: i32,
    /// 0 where the function has no root.
    pub root: i32,
}

impl Signature {
    /// In place of a reduction or root that the source does not tell; equal on all ranks, so nothing is compared.
    pub const UNTOLD: i32 = -2;

    /// Bytes that one rank hands over; 0 for a datatype that is not known.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.count.saturating_mul(mycroft_common::nccl::datatype_size(self.datatype))
    }
}

/// One operation at its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    pub comm: CommRef,
    /// Number in the communicator's collectives (or other operations) on this rank.
    pub seq: u64,
    /// The number is comparable between ranks.
    pub absolute: bool,
    /// Counts in the collective sequence.
    pub collective: bool,
    /// An empty collective, which NCCL discards.
    pub empty: bool,
    pub signature: Signature,
    /// Peer of a send or receive.
    pub peer: Option<i32>,
    pub stream: u64,
    /// Depth of the caller's group nesting; 0 = launched by this call.
    pub depth: u32,
}
