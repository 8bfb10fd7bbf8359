//! Events as they lie in the ring buffer, and the state that the kernel keeps per communicator and thread.
//!
//! All types are `repr(C)` without padding bytes that are left unset, little endian, naturally aligned.
//! Times are `bpf_ktime_get_ns` (CLOCK_MONOTONIC, ns). Process and thread ids are those of the initial
//! pid namespace.

/// Raised with every incompatible change below.
pub const ABI_VERSION: u32 = 1;

/// `Header::kind` of an [`OpEvent`]: a thread entered `ncclEnqueueCheck`.
pub const KIND_OP: u16 = 1;
/// `Header::kind` of a [`CommEvent`]: the outermost `ncclGroupEnd` of a thread that had queued operations.
pub const KIND_GROUP_END: u16 = 2;
/// `Header::kind` of a [`CommEvent`]: `ncclCommInitRankFunc` entered (init, split, shrink).
pub const KIND_INIT_BEGIN: u16 = 3;
/// `Header::kind` of a [`CommEvent`]: `ncclCommInitRankFunc` returned; `value` is its `ncclResult_t`.
pub const KIND_INIT_END: u16 = 4;
/// `Header::kind` of a [`CommEvent`]: `ncclCommDestroy` entered.
pub const KIND_DESTROY: u16 = 5;
/// `Header::kind` of a [`CommEvent`]: `ncclCommAbort` entered.
pub const KIND_ABORT: u16 = 6;
/// `Header::kind` of a [`CommEvent`]: `ncclCommFinalize` entered.
pub const KIND_FINALIZE: u16 = 7;

/// `Header::flags`: sequence number rests on one of NCCL's own counters or on the communicator's creation,
/// so it is comparable between ranks.
pub const FLAG_SEQ_ABSOLUTE: u32 = 1 << 0;
/// `Header::flags`: the communicator's fields were readable.
pub const FLAG_IDENT: u32 = 1 << 1;
/// `Header::flags`: an empty collective, which NCCL discards without a launch.
pub const FLAG_EMPTY: u32 = 1 << 2;
/// `Header::flags`: the operation counts in the collective sequence (else in that of the other operations).
pub const FLAG_COLLECTIVE: u32 = 1 << 3;

/// Start of every event. 24 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// One of the `KIND_` constants.
    pub kind: u16,
    /// Index of the library file whose probe fired, into the `LAYOUTS` map.
    pub lib: u16,
    /// `FLAG_` bits.
    pub flags: u32,
    /// CLOCK_MONOTONIC, ns.
    pub ts_ns: u64,
    pub pid: u32,
    pub tid: u32,
}

/// Who a communicator is, read from `ncclComm`. 40 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommIdent {
    /// Address of the `ncclComm` in its process.
    pub ptr: u64,
    /// `commHash`: the same on all ranks.
    pub hash: u64,
    pub rank: i32,
    pub nranks: i32,
    pub cuda_dev: i32,
    pub nvml_dev: i32,
    /// `(domain << 20) | (bus << 12) | (device << 4) | function`.
    pub bus_id: i64,
}

/// One operation at `ncclEnqueueCheck`. 128 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpEvent {
    pub header: Header,
    pub comm: CommIdent,
    /// Number of this operation: within the communicator's collectives, or within its other operations
    /// (send, recv, and what NCCL builds from them), by [`FLAG_COLLECTIVE`]. Starts at 0.
    pub seq: u64,
    /// Elements of `datatype`.
    pub count: u64,
    pub sendbuff: u64,
    pub recvbuff: u64,
    pub stream: u64,
    /// `ncclFunc_t`.
    pub coll: i32,
    pub datatype: i32,
    /// `ncclRedOp_t` as the caller passed it.
    pub redop: i32,
    /// Root, or the peer of a send or receive.
    pub root: i32,
    /// Depth of the caller's `ncclGroupStart` nesting as far as seen; 0 outside a group.
    pub depth: u32,
    pub reserved: u32,
}

/// A change of a communicator's life, or the end of a group. 72 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommEvent {
    pub header: Header,
    pub comm: CommIdent,
    /// By kind: `ncclResult_t`, or the number of operations in the group.
    pub value: i64,
}

/// Key of `COMMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CommKey {
    pub ptr: u64,
    pub pid: u32,
    pub pad: u32,
}

/// Value of `COMMS`: what the kernel knows of a communicator even when events are lost.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CommState {
    /// The newest operation, as its event was or would have been sent.
    pub last: OpEvent,
    /// Sequence number of the next collective.
    pub next_coll: u64,
    /// Sequence number of the next other operation.
    pub next_other: u64,
    /// Kernel launches (`ncclLaunchKernel` entries) seen.
    pub launches: u64,
    /// Time of the last one, ns; 0 if none was seen.
    pub launch_ts_ns: u64,
}

/// Value of `GROUPS`, keyed by thread id: where a thread stands between group calls.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    pub depth: u32,
    /// Operations queued since the outermost start.
    pub ops: u32,
    /// Time of the outermost start or, at depth 0, of the last end, ns.
    pub since_ns: u64,
}

/// Value of `PROCESSES`, keyed by process id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessEntry {
    /// The library whose probes speak for this process. Two mounts of one file can put two probes on one
    /// instruction; the first to fire claims the process, so no event counts twice.
    pub lib: u16,
    /// 0: drop its events.
    pub wanted: u16,
}

/// Value of `CONFIG[0]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// 1: only processes that are in `PROCESSES` and wanted there; 0: all but those not wanted.
    pub listed_only: u32,
    /// Wake the reader once this many bytes wait; it looks by itself every few ms.
    pub wake_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as the sum of the fields: no padding that would carry kernel stack to user space.
    #[test]
    fn no_padding() {
        assert_eq!(size_of::<Header>(), 2 + 2 + 4 + 8 + 4 + 4);
        assert_eq!(size_of::<CommIdent>(), 8 + 8 + 4 * 4 + 8);
        assert_eq!(size_of::<OpEvent>(), 24 + 40 + 5 * 8 + 4 * 4 + 4 + 4);
        assert_eq!(size_of::<CommEvent>(), 24 + 40 + 8);
        assert_eq!(size_of::<CommKey>(), 8 + 4 + 4);
        assert_eq!(size_of::<CommState>(), size_of::<OpEvent>() + 4 * 8);
        assert_eq!(size_of::<GroupState>(), 4 + 4 + 8);
        assert_eq!(size_of::<ProcessEntry>(), 2 + 2);
        assert_eq!(size_of::<Config>(), 4 + 4);
        assert_eq!(size_of::<crate::layout::KernelLayout>(), 6 * 4);
    }
}
