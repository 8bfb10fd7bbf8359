//! Ranks that keep the others waiting again and again, by their own doing.

use std::collections::BTreeMap;

use super::wait::RankKey;
use crate::model::{
    Comm, CommId, HostId, State,
    ids::{MILLISECOND, Nanos, SECOND},
    rhythm::Round,
};

/// Less lateness than this is the noise of any machine.
const NOISE: Nanos = 5 * MILLISECOND;
/// Rounds in which somebody was late before one is called the one.
const LEAST_ROUNDS: usize = 5;
/// Time over which they must be spread.
const LEAST_SPAN: Nanos = 2 * SECOND;
/// Share of those rounds in which it was that one, in percent.
const MOSTLY: usize = 80;
/// Share of the communicator's time that the lateness costs before it is worth telling, in percent.
const WORTH: u64 = 8;

/// A rank that is late as a habit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    pub comm: CommId,
    pub rank: u32,
    pub key: RankKey,
    /// Rounds in which it came last by its own doing, of so many in which anybody did.
    pub rounds: usize,
    pub of: usize,
    /// Middle of its lateness behind the others.
    pub typical: Nanos,
    /// Sum of it, and the time over which it was collected.
    pub sum: Nanos,
    pub span: Nanos,
    /// First of these rounds.
    pub since: Nanos,
    /// Bound of the error of clocks against each other that was allowed for.
    pub clock_error: Nanos,
}

impl Late {
    /// Share of the communicator's time that it costs, in percent.
    #[must_use]
    pub fn cost(&self) -> u64 {
        100 * self.sum / self.span.max(1)
    }
}

/// All ranks that are late as a habit, each in the communicator that it costs most.
#[must_use]
pub fn late(state: &State) -> Vec<Late> {
    let mut worst: BTreeMap<RankKey, Late> = BTreeMap::new();
    for found in state.comms.values().flat_map(|c| late_in(state, c)) {
        let known = worst.entry(found.key).or_insert(found);
        if found.sum > known.sum {
            *known = found;
        }
    }
    worst.into_values().collect()
}

fn late_in(state: &State, comm: &Comm) -> Vec<Late> {
    let rounds = comm.rhythm.rounds();
    let (Some(first), Some(last)) = (comm.rhythm.rounds().next(), comm.rhythm.rounds().next_back()) else {
        return Vec::new();
    };
    let span = last.at.saturating_sub(first.at);
    if span < LEAST_SPAN || rounds.len() < LEAST_ROUNDS {
        return Vec::new();
    }
    let clock_error = clock_error(state, comm);
    let floor = NOISE + 2 * clock_error;
    let telling: Vec<&Round> = rounds.filter(|r| r.margin >= floor && !r.late.is_empty()).collect();
    if telling.len() < LEAST_ROUNDS {
        return Vec::new();
    }
    let mut margins: BTreeMap<u32, Vec<Nanos>> = BTreeMap::new();
    for round in &telling {
        for rank in &round.late {
            margins.entry(*rank).or_default().push(round.margin);
        }
    }
    let since = telling.first().map_or(0, |r| r.at);
    let habit = margins.into_iter().filter(|(_, m)| 100 * m.len() >= MOSTLY * telling.len());
    habit
        .filter_map(|(rank, mut margins)| {
            margins.sort_unstable();
            let sum: Nanos = margins.iter().sum();
            let member = comm.members.get(&rank).filter(|m| m.end.is_none())?;
            let typical = margins.get(margins.len() / 2).copied()?;
            let (rounds, of) = (margins.len(), telling.len());
            let key = member.into();
            Some(Late { comm: comm.id, rank, key, rounds, of, typical, sum, span, since, clock_error })
        })
        .filter(|l| l.cost() >= WORTH)
        .collect()
}

/// The largest error of a clock among the communicator's hosts; 0 if all ranks are on one.
fn clock_error(state: &State, comm: &Comm) -> Nanos {
    if state.quality.is_empty() {
        return 0;
    }
    let mut hosts: Vec<HostId> = comm.active().map(|m| m.proc.host).collect();
    hosts.dedup();
    if hosts.len() < 2 {
        return 0;
    }
    hosts.iter().filter_map(|h| state.quality.get(h)).map(|q| q.clock_error).max().unwrap_or(0)
}
