//! Who waits for whom.
//!
//! Owns: the dependency graph over operations and ranks, built from the state alone. Must not: judge, do I/O.

pub mod cycle;
pub mod flow;
pub mod frontier;
pub mod late;
pub mod message;
pub mod progress;
pub mod unseen;
pub mod wait;

pub use cycle::Circle;
pub use frontier::Frontier;
pub use wait::{Node, RankKey, Step, WaitGraph, Why, frontiers};
