//! Where the fields that the kernel reads lie, for one library file.

/// No absolute counter: sequence numbers start at 0 where we attached.
pub const SEQ_NONE: u32 = 0;
/// `comm->seqNumber[0..n]`, NCCL 2.26 and later.
pub const SEQ_ARRAY: u32 = 1;
/// `comm->collOpCount`, NCCL 2.24 and 2.25.
pub const SEQ_COMM: u32 = 2;
/// `comm->sharedRes->collOpCount`, NCCL up to 2.23.
pub const SEQ_SHARED: u32 = 3;

/// How many entries of `seqNumber` are summed at most.
pub const SEQ_FUNCS_MAX: usize = 16;

/// Value of `LAYOUTS`. Offsets are bytes from the start of their struct; 0 stands for "not known" where
/// the comment says so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLayout {
    /// `ncclComm.rank`; `commHash` is at -8, `nRanks` +4, `cudaDev` +8, `nvmlDev` +12 (checked against DWARF
    /// when the layout is made). 0: not known, no identity.
    pub comm_rank: u32,
    /// `ncclComm.busId`.
    pub comm_bus_id: u32,
    /// One of the `SEQ_` constants.
    pub seq_kind: u32,
    /// [`SEQ_ARRAY`]: offset of the array. [`SEQ_COMM`]: offset of the counter. [`SEQ_SHARED`]: offset of
    /// the `sharedRes` pointer in `ncclComm`.
    pub seq_offset: u32,
    /// [`SEQ_ARRAY`]: entries. [`SEQ_SHARED`]: offset of `collOpCount` in `ncclSharedResources`.
    pub seq_extra: u32,
    /// `ncclCommInitRankAsyncJob.comm`. 0: not known.
    pub job_comm: u32,
}
