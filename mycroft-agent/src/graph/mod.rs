//! Who waits for whom.
//!
//! Owns: the dependency graph over operations and ranks, built from the state alone. Must not: judge, do I/O.

pub mod flow;
pub mod frontier;
pub mod progress;
pub mod wait;

pub use frontier::Frontier;
pub use wait::{RankKey, WaitGraph};
