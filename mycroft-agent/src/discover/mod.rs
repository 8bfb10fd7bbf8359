//! Who to trace: processes that map NCCL, and what their library file says of itself.
