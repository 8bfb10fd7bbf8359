//! Who to trace: processes that map NCCL, and what their library file says of itself.

pub mod dwarf;
pub mod image;

#[cfg(test)]
mod testing;
