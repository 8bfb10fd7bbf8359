//! The closed loop: discover, attach, drain, judge. `watch`, `diagnose` and `agent` all run this one.
//!
//! Owns: the wiring. Sees all modules.

mod clock;
mod collecting;
mod discovery;
mod exits;
mod library;
mod look;
mod sampling;
pub mod snapshot;
mod tracer;

pub use library::Library;
pub use sampling::SamplerCounts;
pub use tracer::{Notice, Options, Tracer, hostname};
