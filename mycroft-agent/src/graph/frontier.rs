//! The first collective of a communicator that some ranks have launched and others not.

use crate::model::{
    Comm, CommId, Member, State,
    ids::{Nanos, ProcId},
};

/// Where a communicator stands.
///
/// Only one operation matters: every rank that launched it waits, in stream order, for those that did not;
/// later operations wait for it too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontier {
    pub comm: CommId,
    pub seq: u64,
    /// First launch of the operation by any rank; `None` if it is too far back to be remembered.
    pub first_launch: Option<Nanos>,
    /// Ranks that have not launched it.
    pub missing: Vec<Missing>,
    /// Ranks that have.
    pub waiting: Vec<u32>,
}

/// A rank that has not launched the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub rank: u32,
    /// Since when it has kept the others waiting: the later of the operation's first launch elsewhere and
    /// its own last launch.
    pub since: Nanos,
}

impl Frontier {
    /// `None` if all known ranks have launched the same number, or fewer than two can be compared.
    #[must_use]
    pub fn of(state: &State, comm: &Comm) -> Option<Self> {
        let (least, most) = comm.span()?;
        if least == most {
            return None;
        }
        let seq = least + 1;
        let slot = comm.window.get(seq);
        let first_launch = slot.map(|s| s.first_ts);
        let mut missing = Vec::new();
        let mut waiting = Vec::new();
        for member in comm.comparable() {
            let Some(launched) = member.launched else { continue };
            if launched.seq >= seq {
                waiting.push(member.rank);
            } else {
                let since = kept_waiting_since(state, comm, member, first_launch.unwrap_or(0));
                missing.push(Missing { rank: member.rank, since });
            }
        }
        if waiting.is_empty() {
            return None;
        }
        Some(Self { comm: comm.id, seq, first_launch, missing, waiting })
    }

    /// The longest that a rank has kept the others waiting, at `now`.
    #[must_use]
    pub fn age(&self, now: Nanos) -> Nanos {
        self.missing.iter().map(|m| now.saturating_sub(m.since)).max().unwrap_or(0)
    }
}

/// A rank that launches elsewhere is at work, so its lateness counts from its last launch on any
/// communicator; but not for ever: past `FACTOR` times the communicator's patience only its launches here count.
fn kept_waiting_since(state: &State, comm: &Comm, member: &Member, first_launch: Nanos) -> Nanos {
    const FACTOR: u64 = 5;
    let here = first_launch.max(member.last_launch());
    let patience = comm.rhythm.patience(&Default::default());
    if state.now.saturating_sub(here) > FACTOR * patience {
        return here;
    }
    here.max(last_launch_anywhere(state, member.proc, member.cuda_dev))
}

fn last_launch_anywhere(state: &State, proc: ProcId, cuda_dev: i32) -> Nanos {
    state.memberships(proc).filter(|(_, m)| m.cuda_dev == cuda_dev).map(|(_, m)| m.last_launch()).max().unwrap_or(0)
}
