//! What is known of every process, communicator and rank, built from events alone.
//!
//! Owns: the state and how an event changes it. Must not: do I/O, read a clock (time comes with the events),
//! judge (that is `rules`). Applying an event cannot fail; what does not fit is counted in [`Problems`].

pub mod arrivals;
pub mod comm;
pub mod flow;
pub mod pair;
pub mod program;
pub mod rhythm;
pub mod state;
pub mod window;

pub use crate::event::{
    self, Activity, Body, CommId, CommRef, Event, Exit, HostId, Launches, Nanos, Op, Origin, ProcId, Process,
    Signature, ids, process,
};
pub use comm::{Comm, End, InitPhase, Mark, Member};
pub use flow::{Flows, Phase};
pub use program::{Launch, Program};
pub use state::{Loss, Problems, State};
