//! How far the GPUs of a communicator's ranks have come, and which of them are behind.
//!
//! A collective in which every rank needs every other's data can't end anywhere before all ranks have begun it. So if
//! some rank has ended it and another, which launched it, has not, nobody in this communicator holds that one up any
//! more: its own GPU, its driver or the last piece of its data does. Where data goes one way only (a broadcast's root
//! is done when it has sent), a rank may still stand in an earlier operation, of whatever communicator; then that
//! one's wait says more, and this one's is left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mycroft_common::nccl::Func;

use super::{Frontier, RankKey, wait::SETTLED};
use crate::model::{Comm, CommId, Launch, Member, State, ids::Nanos};

/// Causes in one communicator from which waits are followed back: a hang of a hundred thousand ranks must not take long.
const SCANS: usize = 64;

/// Where the ranks of a communicator stand that are behind its foremost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    pub comm: CommId,
    /// Newest collective that any rank has ended.
    pub foremost: u64,
    /// Ranks that have ended it.
    pub ahead: Vec<u32>,
    pub behind: Vec<Behind>,
    /// Ranks of which it is known how far they are.
    pub known: usize,
}

/// A rank that has not ended what others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    pub rank: u32,
    pub key: RankKey,
    /// The first collective that it has not ended.
    pub seq: u64,
    /// Since when all that are known to have launched it have.
    pub since: Nanos,
    /// It is known to have launched it; else its launches are not seen.
    pub launched: bool,
}

impl Lag {
    /// The first collective that some rank has not ended.
    #[must_use]
    pub fn first(&self) -> Option<&Behind> {
        self.behind.iter().min_by_key(|b| (b.seq, b.rank))
    }
}

/// The communicators in which ranks are behind, by communicator.
#[must_use]
pub fn lags(state: &State) -> BTreeMap<CommId, Lag> {
    state.comms.values().filter_map(|c| Some((c.id, lag(state, c)?))).collect()
}

fn lag(state: &State, comm: &Comm) -> Option<Lag> {
    // Of a rank whose launches are not seen at all the numbers are those that it ended.
    let comparable = |m: &&Member| m.absolute || m.launched.is_none();
    let known = || comm.active().filter(comparable).filter_map(|m| Some((m, m.done?)));
    let foremost = known().map(|(_, done)| done).max()?;
    let behind: Vec<Behind> =
        known().filter(|(_, done)| *done < foremost).filter_map(|(m, done)| behind(state, comm, m, done)).collect();
    let ahead = known().filter(|(_, done)| *done == foremost).map(|(m, _)| m.rank).collect();
    (!behind.is_empty()).then(|| Lag { comm: comm.id, foremost, ahead, behind, known: known().count() })
}

fn behind(state: &State, comm: &Comm, member: &Member, done: u64) -> Option<Behind> {
    let seq = done + 1;
    if member.launched.is_some_and(|l| l.seq < seq) {
        return None;
    }
    let slot = comm.window.get(seq);
    let func = slot.and_then(|s| s.majority()).map(|v| v.signature.func);
    if func.is_some_and(goes_one_way) && waits_elsewhere(state, comm, member) {
        return None;
    }
    let since = slot.map_or_else(|| member.launched.map_or(comm.since, |l| l.ts), |s| s.last_ts);
    Some(Behind { rank: member.rank, key: member.into(), seq, since, launched: member.launched.is_some() })
}

/// Whether some ranks are done with it before others have begun.
const fn goes_one_way(func: Func) -> bool {
    matches!(func, Func::Broadcast | Func::Reduce | Func::Scatter | Func::Gather) || !func.is_collective()
}

/// Whether the rank has launched something in another communicator that has not ended.
fn waits_elsewhere(state: &State, here: &Comm, member: &Member) -> bool {
    let same = |c: &Comm, m: &Member| c.id != here.id && m.cuda_dev == member.cuda_dev;
    state.memberships(member.proc).any(|(c, m)| same(c, m) && in_flight(m))
}

/// Whether the rank's GPU has not ended all that the rank has launched here, as far as that is seen.
#[must_use]
pub fn in_flight(member: &Member) -> bool {
    let newer = |launched: Option<u64>, done: Option<u64>| match (launched, done) {
        (Some(launched), Some(done)) => launched > done,
        _ => false,
    };
    newer(member.launched.map(|m| m.seq), member.done) || newer(member.last_other.map(|m| m.seq), member.done_other)
}

/// Ranks that are late because their own GPUs are held up: those that are behind themselves, and those with something
/// open whose wait leads to one that is behind, or that has nothing open and does not come.
///
/// A host that waits for its GPU calls nothing more, and so looks like one that is stuck by itself.
#[must_use]
pub fn held_up(
    state: &State,
    lags: &BTreeMap<CommId, Lag>,
    frontiers: &BTreeMap<CommId, Frontier>,
) -> BTreeSet<RankKey> {
    let mut held: BTreeSet<RankKey> = lags.values().flat_map(|l| l.behind.iter().map(|b| b.key)).collect();
    let late = late_ranks(state, frontiers);
    let is_open = |key: &RankKey| state.memberships(key.proc).any(|(_, m)| m.cuda_dev == key.cuda_dev && in_flight(m));
    let (waiting, idle): (Vec<RankKey>, Vec<RankKey>) = late.into_iter().partition(is_open);
    if waiting.is_empty() {
        return held;
    }
    // From the causes back to all that wait for them.
    let mut queue: VecDeque<RankKey> = held.iter().copied().chain(idle).collect();
    let mut scans: BTreeMap<CommId, usize> = BTreeMap::new();
    while let Some(cause) = queue.pop_front() {
        for (comm, member) in state.memberships(cause.proc).filter(|(_, m)| m.cuda_dev == cause.cuda_dev) {
            let scanned = scans.entry(comm.id).or_default();
            *scanned += 1;
            if *scanned > SCANS {
                continue;
            }
            for other in comm.active().filter(|m| m.rank != member.rank && in_flight(m)) {
                if !held.contains(&other.into()) && waits_for(state, comm, other, member) {
                    held.insert(other.into());
                    queue.push_back(other.into());
                }
            }
        }
    }
    held
}

/// Ranks that have kept others waiting for longer than is ordinary.
fn late_ranks(state: &State, frontiers: &BTreeMap<CommId, Frontier>) -> BTreeSet<RankKey> {
    let settled = frontiers.values().filter(|f| f.age(state.now) >= SETTLED);
    let missing = settled.flat_map(|f| f.missing.iter().map(|m| (f.comm, m.rank)));
    missing.filter_map(|(id, rank)| Some(state.comms.get(&id)?.members.get(&rank)?.into())).collect()
}

/// Whether a rank's open operation here may wait for another: it did not launch it, or launched something before it that
/// is open too, or is the other end of a message.
fn waits_for(state: &State, comm: &Comm, member: &Member, other: &Member) -> bool {
    if let (Some(done), Some(launched)) = (member.done, member.launched)
        && launched.seq > done
    {
        let seq = done + 1;
        let late = other.absolute && other.launched.is_some_and(|l| l.seq < seq);
        if late || in_something_earlier(state, comm, other, seq) {
            return true;
        }
    }
    open_messages(state, member.into()).any(|l| l.comm == comm.id && l.peer == Some(other.rank))
}

/// Whether the rank launched something in another communicator before this, as far as is remembered, that is open.
fn in_something_earlier(state: &State, comm: &Comm, member: &Member, seq: u64) -> bool {
    let Some(program) = state.programs.get(&(member.proc, member.cuda_dev)) else { return false };
    let end = program.place(comm.id, seq).unwrap_or(usize::MAX);
    program.iter().take(end).any(|l| l.comm != comm.id && is_open(state, l))
}

fn open_messages(state: &State, key: RankKey) -> impl Iterator<Item = &Launch> {
    let program = state.programs.get(&(key.proc, key.cuda_dev));
    program.into_iter().flat_map(|p| p.iter()).filter(|l| !l.collective && is_open(state, l))
}

fn is_open(state: &State, launch: &Launch) -> bool {
    let member = state.comms.get(&launch.comm).and_then(|c| c.members.get(&launch.rank));
    let done = member.and_then(|m| if launch.collective { m.done } else { m.done_other });
    done.is_some_and(|done| launch.seq > done)
}
