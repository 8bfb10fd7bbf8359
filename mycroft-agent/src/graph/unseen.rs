//! Waits that may lead out of sight: to ranks on hosts without an agent, or into a gap of lost events.

use std::collections::BTreeSet;

use super::wait::{RankKey, Why};
use crate::model::{
    Comm, CommId, Member, State,
    ids::{Nanos, SECOND},
};

/// Older looks at a rank's transfers do not tell what it does now.
const FRESH: Nanos = 3 * SECOND;

/// For ranks that keep others waiting (`missing`) and wait for nobody in sight: where they may wait out of sight.
#[must_use]
pub fn waits(state: &State, missing: &BTreeSet<(CommId, u32)>) -> Vec<(RankKey, Why, CommId)> {
    missing
        .iter()
        .filter_map(|(id, rank)| {
            let member = state.comms.get(id)?.members.get(rank)?;
            let (why, comm) = lost(state, *id, member).or_else(|| elsewhere(state, *id, member))?;
            Some((member.into(), why, comm))
        })
        .collect()
}

/// The rank's host has lost events since, and its newest state was not told again: it may have launched.
fn lost(state: &State, id: CommId, member: &Member) -> Option<(Why, CommId)> {
    let quality = state.quality.get(&member.proc.host)?;
    let open = quality.lost > quality.reconciled && quality.lost >= member.last_launch();
    open.then_some((Why::Lost { comm: id, rank: member.rank }, id))
}

/// What the rank launched last is in a communicator of which not all ranks are in sight, and it is not known to have
/// ended.
fn elsewhere(state: &State, here: CommId, member: &Member) -> Option<(Why, CommId)> {
    let key = (member.proc, member.cuda_dev);
    let newest = state.programs.get(&key).and_then(|p| p.newest());
    if let Some(launch) = newest {
        let comm = state.comms.get(&launch.comm)?;
        let other = comm.members.get(&launch.rank)?;
        let may = launch.collective && comm.id != here && may_wait(state, comm, other, Some(launch.seq));
        return may.then_some((Why::MayWait { comm: comm.id, rank: other.rank }, comm.id));
    }
    // It has called nothing since we came.
    state
        .memberships(member.proc)
        .filter(|(c, m)| c.id != here && m.cuda_dev == member.cuda_dev && m.end.is_none())
        .find(|(c, m)| may_wait(state, c, m, m.launched.map(|l| l.seq)))
        .map(|(c, m)| (Why::MayWait { comm: c.id, rank: m.rank }, c.id))
}

fn may_wait(state: &State, comm: &Comm, member: &Member, seq: Option<u64>) -> bool {
    let all_in_sight = comm.members.len() >= comm.id.nranks as usize;
    let ended = seq.is_some_and(|seq| member.done.is_some_and(|done| done >= seq));
    let idle = member.flows.as_ref().is_some_and(|f| state.now.saturating_sub(f.at) < FRESH && f.is_idle());
    !all_in_sight && !ended && !idle
}
