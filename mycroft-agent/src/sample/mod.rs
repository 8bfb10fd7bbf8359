//! What NCCL's own memory says: who its communicators are, and how far each transfer is.
//!
//! Owns: reading the memory of traced processes, and finding NCCL's structures in it. Must not: judge.
//!
//! Whatever is read may change while it is read and may be a lie: every walk is bounded, every value is checked for
//! being possible, and what changed under a read is read again or counted, never reported.

pub mod find;
mod links;
pub mod memory;
mod raw;
pub mod sampler;
pub mod thread;
mod walk;
