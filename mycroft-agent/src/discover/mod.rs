//! Who to trace: processes that map NCCL, and what their library file says of itself.
//!
//! Owns: `/proc`, ELF, DWARF. Must not: attach, judge.

pub mod bundle;
pub mod dwarf;
pub mod elf;
pub mod environment;
pub mod exit;
pub mod image;
pub mod layout;
pub mod layout_cache;
pub mod process;
pub mod regions;
pub mod state;
mod stripped;
mod symbols;
pub mod thread;

#[cfg(test)]
mod testing;
