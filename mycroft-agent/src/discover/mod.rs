//! Who to trace: processes that map NCCL, and what their library file says of itself.

pub mod dwarf;
pub mod elf;
pub mod image;
pub mod layout;
pub mod layout_cache;
mod symbols;

#[cfg(test)]
mod testing;
