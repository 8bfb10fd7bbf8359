//! A rank: where its host is in its program, and what its GPU still has to do.

use std::collections::VecDeque;

use super::{fault::Fate, layout::Group};
use crate::event::{Nanos, Way};

/// A time that never comes.
pub(super) const NEVER: Nanos = Nanos::MAX;

/// Part of a job's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Start,
    Step,
    Evaluation,
    Checkpoint,
    Finish,
}

/// Why a rank's host does not go on by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// It goes on at its time.
    #[default]
    Nothing,
    /// Until the main stream is empty.
    Sync,
    /// Until this stream has room.
    Room(Stream),
    /// Until all have joined.
    Join(Group),
    /// For ever: it is blocked, dead, or done.
    Off,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stream {
    #[default]
    Main,
    /// Operations for which the main stream does not wait.
    Aside,
}

/// What a stream has to do, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub items: VecDeque<Item>,
    /// When all before the first item had ended.
    pub free: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub work: Work,
    pub launched: Nanos,
    /// Computation before it.
    pub compute: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Number of the collective on the communicator of this kind.
    Collective(Group, u64),
    /// Number of the batch of messages.
    Batch(Group, u64),
}

/// Sends and receives launched as one.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub number: u64,
    pub launched: Nanos,
    /// When the GPU came to it.
    pub arrived: Nanos,
    pub transfers: Vec<Transfer>,
    /// Transfers that have not ended.
    pub pending: usize,
    /// End of the last that has.
    pub end: Nanos,
}

/// One message, seen from one end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub way: Way,
    /// Rank of the other end in the communicator.
    pub peer: u32,
    pub count: u64,
    /// First step in the connection's count.
    pub base: u64,
    /// Since both ends were there.
    pub start: Nanos,
    pub fate: Option<Fate>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rank {
    pub part: Part,
    pub pc: usize,
    pub step: u32,
    pub wait: Wait,
    /// When its host goes on.
    pub clock: Nanos,
    /// It has paused (checkpoint, request) until `clock`.
    pub pausing: Option<super::program::Pause>,
    pub main: Queue,
    pub aside: Queue,
    /// Computation handed to the GPU since the last operation.
    pub compute: Nanos,
    /// The step's own extra time has been spent.
    pub slowed: bool,
    /// The step's operation to leave out has been left out.
    pub skipped: bool,
    /// Collectives, and other operations, called on each communicator.
    pub collectives: [u64; Group::COUNT],
    pub others: [u64; Group::COUNT],
    /// Batches of messages on the pipeline and the expert communicator.
    pub batches: [VecDeque<Batch>; 2],
    pub batches_begun: [u64; 2],
    pub gone: bool,
}

/// Where batches of a kind are kept.
pub(super) const fn batch_slot(group: Group) -> usize {
    match group {
        Group::Pp => 0,
        _ => 1,
    }
}

impl Rank {
    pub(super) fn queue(&mut self, stream: Stream) -> &mut Queue {
        match stream {
            Stream::Main => &mut self.main,
            Stream::Aside => &mut self.aside,
        }
    }

    pub(super) fn batch_mut(&mut self, group: Group, number: u64) -> Option<&mut Batch> {
        self.batches[batch_slot(group)].iter_mut().find(|b| b.number == number)
    }
}
