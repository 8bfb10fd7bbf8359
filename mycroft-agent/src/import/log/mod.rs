//! Lines that NCCL and PyTorch write into a job's logs, in whatever order and between whatever else.
//!
//! A log has one clock a host and often none at all, so the order of lines is taken and their times are not. The one
//! time told is PyTorch's own: how long an operation ran before its watchdog gave it up.

mod nccl;
mod torch;

use super::{Part, roster::Roster};
use crate::event::{Nanos, ids::SECOND};

/// The moment at which all lines were written, for want of another: late enough for what ran days before it.
const WRITTEN: Nanos = 40 * 24 * 3600 * SECOND;
/// Longer lines are cut: what we look for stands at their beginning.
const LINE: usize = 4096;

/// What all logs tell together.
#[derive(Debug, Default)]
pub(super) struct Logs {
    nccl: nccl::Calls,
    torch: torch::Watchdogs,
}

impl Logs {
    /// Takes the lines of one file. Returns how many told something.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut known = 0;
        for line in bytes.split(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(&line[..line.len().min(LINE)]);
            known += usize::from(self.nccl.take(&line) || self.torch.take(&line));
        }
        self.torch.end_file();
        known
    }

    pub(super) fn part(self, roster: &mut Roster) -> Part {
        self.nccl.tell(WRITTEN, roster);
        let absent = self.torch.tell(WRITTEN, roster);
        Part { newest: Some(WRITTEN), absent, ..Part::default() }
    }
}
