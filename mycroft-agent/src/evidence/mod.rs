//! What a suspect's process is held by, read from the machine on suspicion only.
//!
//! Owns: collectors, each a function from a process to facts. Must not: stop a process, judge.

pub mod host;
pub mod python;

use crate::event::Fact;

/// Whom to look at: a process and the thread of it that last called NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    pub pid: u32,
    pub tid: u32,
}

/// A collector: how users name it, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Collector {
    pub name: &'static str,
    /// `None`: nothing to tell.
    pub collect: fn(Suspect) -> Option<Fact>,
}

pub const COLLECTORS: &[Collector] =
    &[Collector { name: "host", collect: host::collect }, Collector { name: "python", collect: python::collect }];
