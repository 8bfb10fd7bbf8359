//! Attaching to libraries and reading what the kernel keeps.
//!
//! Owns: the eBPF object, its maps and links. The only module that names aya. Must not: interpret events.

pub mod features;
pub mod load;
pub mod plan;
pub mod ring;

pub use features::Features;
pub use load::{LibIndex, ProbeError, Prober, Settings};
pub use plan::{Plan, Point, Program};
pub use ring::Ring;
