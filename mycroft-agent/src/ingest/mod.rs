//! Bytes from the kernel to events of the model.
//!
//! Owns: the meaning of the ring buffer's records. Must not: trust them; an unknown or short record is
//! counted, never a panic.

pub mod decode;
pub mod reconcile;

pub use decode::{DecodeError, Decoder};
