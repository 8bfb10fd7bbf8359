//! NCCL's public codes and their names. Source: `nccl.h` and `src/include/nccl_common.h`, 2.18 to 2.30.

/// `ncclFunc_t`. The numbers are the same from 2.18 on; later releases append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Func {
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllReduce,
    SendRecv,
    Send,
    Recv,
    AlltoAll,
    Scatter,
    Gather,
    AllGatherV,
    PutSignal,
    Signal,
    WaitSignal,
    /// A code that this release does not know.
    Unknown(i32),
}

/// As its code, so that a recording of one release reads in the next.
#[cfg(feature = "serde")]
impl serde::Serialize for Func {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i32(self.code())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Func {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        i32::deserialize(from).map(Self::from_code)
    }
}

impl Func {
    const KNOWN: [Self; 15] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllReduce,
        Self::SendRecv,
        Self::Send,
        Self::Recv,
        Self::AlltoAll,
        Self::Scatter,
        Self::Gather,
        Self::AllGatherV,
        Self::PutSignal,
        Self::Signal,
        Self::WaitSignal,
    ];

    #[must_use]
    pub fn from_code(code: i32) -> Self {
        usize::try_from(code).ok().and_then(|i| Self::KNOWN.get(i).copied()).unwrap_or(Self::Unknown(code))
    }

    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Unknown(code) => code,
            known => Self::KNOWN.iter().position(|f| *f == known).map_or(-1, |i| i as i32),
        }
    }

    /// Name as NCCL and its Inspector spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::AllReduce => "AllReduce",
            Self::SendRecv => "SendRecv",
            Self::Send => "Send",
            Self::Recv => "Recv",
            Self::AlltoAll => "AlltoAll",
            Self::Scatter => "Scatter",
            Self::Gather => "Gather",
            Self::AllGatherV => "AllGatherV",
            Self::PutSignal => "PutSignal",
            Self::Signal => "Signal",
            Self::WaitSignal => "WaitSignal",
            Self::Unknown(_) => "Unknown",
        }
    }

    /// Whether every rank of the communicator takes part.
    #[must_use]
    pub const fn is_collective(self) -> bool {
        !matches!(self, Self::SendRecv | Self::Send | Self::Recv | Self::PutSignal | Self::Signal | Self::WaitSignal)
    }

    /// Whether the operation has a root that all ranks must name alike.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Scatter | Self::Gather)
    }

    /// Whether the operation reduces, so that all ranks must name the same reduction.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::ReduceScatter | Self::AllReduce)
    }
}

/// Whether `ncclFunc_t` code `coll` advances NCCL's own collective counters (`seqNumber`, `collOpCount`).
///
/// Those count tasks of the collective queue; all-to-all, gather and scatter become sends and receives
/// (`taskAppend`, `src/enqueue.cc`, 2.28) and are not among them.
#[must_use]
pub const fn counts_as_collective(coll: i32) -> bool {
    (coll >= 0 && coll <= 4) || coll == 11
}

/// Name of an `ncclDataType_t`.
#[must_use]
pub const fn datatype_name(code: i32) -> &'static str {
    match code {
        0 => "int8",
        1 => "uint8",
        2 => "int32",
        3 => "uint32",
        4 => "int64",
        5 => "uint64",
        6 => "float16",
        7 => "float32",
        8 => "float64",
        9 => "bfloat16",
        10 => "float8e4m3",
        11 => "float8e5m2",
        _ => "unknown",
    }
}

/// Bytes of one element of an `ncclDataType_t`; 0 for a code that is not known.
#[must_use]
pub const fn datatype_size(code: i32) -> u64 {
    match code {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => 0,
    }
}

/// Name of an `ncclRedOp_t`; codes of 5 and more are the caller's own (`ncclRedOpCreatePreMulSum`).
#[must_use]
pub const fn redop_name(code: i32) -> &'static str {
    match code {
        0 => "sum",
        1 => "prod",
        2 => "max",
        3 => "min",
        4 => "avg",
        _ => "custom",
    }
}

/// Name of an `ncclResult_t`.
#[must_use]
pub const fn result_name(code: i64) -> &'static str {
    match code {
        0 => "success",
        1 => "unhandled CUDA error",
        2 => "system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "remote error",
        7 => "in progress",
        8 => "timeout",
        _ => "unknown result",
    }
}
