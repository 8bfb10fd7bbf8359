//! What a GPU's ranks launched, in the order of the calls: the program order of one process and device.

use std::collections::VecDeque;

use super::{
    event::Signature,
    ids::{CommId, Nanos},
};

/// Launches remembered for one GPU.
const KEPT: usize = 32;

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    pub comm: CommId,
    pub rank: u32,
    /// Number among the communicator's collectives, or among its other operations.
    pub seq: u64,
    pub collective: bool,
    pub signature: Signature,
    /// Peer of a send or receive.
    pub peer: Option<u32>,
    pub stream: u64,
    pub ts: Nanos,
}

/// The newest launches of one GPU in one process, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Program {
    launches: VecDeque<Launch>,
}

impl Program {
    pub fn push(&mut self, launch: Launch) {
        if self.launches.len() == KEPT {
            self.launches.pop_front();
        }
        self.launches.push_back(launch);
    }

    #[must_use]
    pub fn newest(&self) -> Option<&Launch> {
        self.launches.back()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Launch> {
        self.launches.iter()
    }

    /// Place of a collective in the order, if it is remembered.
    #[must_use]
    pub fn place(&self, comm: CommId, seq: u64) -> Option<usize> {
        self.launches.iter().position(|l| l.collective && l.comm == comm && l.seq == seq)
    }
}
