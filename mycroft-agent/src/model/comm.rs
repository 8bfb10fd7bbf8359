//! A communicator and its ranks as seen so far.

use std::collections::BTreeMap;

use mycroft_common::nccl::Func;

use super::{
    arrivals::Arrival,
    event::{Launches, Signature},
    flow::Flows,
    ids::{CommId, Nanos, ProcId},
    pair::Pair,
    rhythm::{Rhythm, Round},
    window::{Slot, Window},
};

/// Operations of one open group that are kept for the moment of its launch.
const PENDING_LIMIT: usize = 4096;

/// Finished collectives kept while not all ranks have been seen.
const LATECOMER: u64 = 32;

/// A communicator.
#[derive(Clone, Debug)]
pub struct Comm {
    pub id: CommId,
    /// By rank; ranks of other hosts and ranks that have not called yet are absent.
    pub members: BTreeMap<u32, Member>,
    pub window: Window,
    pub rhythm: Rhythm,
    /// Last launch by any rank.
    pub last_launch: Nanos,
    /// Collectives below this number have gone into the rhythm.
    learned: u64,
    /// How many comparable ranks launched up to each number and no further.
    fronts: BTreeMap<u64, u32>,
    /// Sends and receives from a rank to a rank.
    pub pairs: BTreeMap<(u32, u32), Pair>,
    /// First moment at which it was seen.
    pub since: Nanos,
    /// The first collective on which ranks did not agree, and how many were completed when it was seen.
    pub disagreement: Option<Disagreement>,
}

/// A collective that ranks called with different arguments.
#[derive(Clone, Debug)]
pub struct Disagreement {
    pub slot: Slot,
    /// [`Rhythm::completed`] at that moment.
    pub completed: u64,
}

/// A rank of a communicator.
#[derive(Clone, Debug)]
pub struct Member {
    pub rank: u32,
    pub proc: ProcId,
    pub ptr: u64,
    /// Thread that last called NCCL for this rank.
    pub tid: u32,
    pub cuda_dev: i32,
    pub nvml_dev: i32,
    pub bus_id: i64,
    /// Newest collective launched.
    pub launched: Option<Mark>,
    /// First collective seen: earlier ones are not known to be missing.
    pub first_seq: Option<u64>,
    /// Its numbers are comparable with other ranks'.
    pub absolute: bool,
    /// Called inside a group that is still open.
    pub pending: Vec<Mark>,
    /// Newest send, receive or the like.
    pub last_other: Option<Mark>,
    /// Collectives and other operations launched since it was first seen.
    pub launches: u64,
    /// How far it is behind the rank that is furthest ahead, as it was at its own launches.
    pub lead: Option<Lead>,
    /// All its calls since its creation were seen, so that its sends and receives can be counted against its peers'.
    pub from_start: bool,
    /// Of its kernels, where they are probed and it was asked for.
    pub kernels: Option<Launches>,
    /// Newest collective that has ended on its GPU, and newest other operation, where that is seen.
    pub done: Option<u64>,
    pub done_other: Option<u64>,
    /// The first error that NCCL held for it, an `ncclResult_t`, and since when.
    pub error: Option<(Nanos, i32)>,
    /// Its transfers, where they are sampled.
    pub flows: Option<Flows>,
    /// Collectives by function, as NCCL counted them when the rank was found in memory.
    pub by_function: Vec<(Func, u64)>,
    /// As the caller named the communicator.
    pub name: Option<String>,
    pub init: InitPhase,
    pub end: Option<End>,
}

/// One operation in a rank's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub seq: u64,
    pub ts: Nanos,
    /// `None`: known only by NCCL's own count.
    pub signature: Option<Signature>,
    /// Peer of a send or receive.
    pub peer: Option<i32>,
    pub stream: u64,
}

/// Lag of a rank behind the one furthest ahead, watched at its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Since when it has grown and never shrunk.
    pub since: Nanos,
    /// Times that it has grown since.
    pub grown: u64,
    /// Collectives that it is behind.
    pub now: u64,
}

impl Lead {
    fn next(before: Option<Self>, lag: u64, at: Nanos) -> Self {
        match before {
            Some(l) if lag > l.now => Self { grown: l.grown + 1, now: lag, ..l },
            Some(l) if lag == l.now => l,
            _ => Self { since: at, grown: 0, now: lag },
        }
    }
}

/// `ncclSuccess` and `ncclInProgress`, as `ncclComm::initState` holds them.
const SUCCESS: i32 = 0;
const IN_PROGRESS: i32 = 7;

/// How far a rank's creation of the communicator has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitPhase {
    /// Created before we attached.
    #[default]
    Earlier,
    /// In `ncclCommInitRankFunc` since.
    Running(Nanos),
    /// Returned this `ncclResult_t`.
    Done(i32),
}

/// How a rank left the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Finalized(Nanos),
    Destroyed(Nanos),
    Aborted(Nanos),
    /// Its address was taken by another communicator: its destruction was not seen.
    Replaced(Nanos),
}

impl Comm {
    #[must_use]
    pub fn new(id: CommId, since: Nanos) -> Self {
        Self {
            id,
            members: BTreeMap::new(),
            window: Window::default(),
            rhythm: Rhythm::default(),
            last_launch: 0,
            learned: 0,
            fronts: BTreeMap::new(),
            pairs: BTreeMap::new(),
            since,
            disagreement: None,
        }
    }

    /// Ranks that have not left.
    pub fn active(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|m| m.end.is_none())
    }

    /// Ranks whose numbers can be compared and that have launched something.
    pub fn comparable(&self) -> impl Iterator<Item = &Member> {
        self.active().filter(|m| m.absolute && m.launched.is_some())
    }

    /// Ranks never seen: on other hosts, or without a call since we attached.
    #[must_use]
    pub fn unseen(&self) -> Vec<u32> {
        (0..self.id.nranks).filter(|r| !self.members.contains_key(r)).collect()
    }

    /// Changes a rank and keeps count of how far the ranks are.
    pub fn change<R>(&mut self, rank: u32, f: impl FnOnce(&mut Member) -> R) -> Option<R> {
        let member = self.members.get_mut(&rank)?;
        let before = member.front();
        let result = f(member);
        let after = member.front();
        self.move_front(before, after);
        Some(result)
    }

    /// Takes in a rank that is new.
    pub fn join(&mut self, member: Member) {
        self.move_front(None, member.front());
        self.members.insert(member.rank, member);
    }

    fn move_front(&mut self, before: Option<u64>, after: Option<u64>) {
        if before == after {
            return;
        }
        if let Some(seq) = before
            && let Some(n) = self.fronts.get_mut(&seq)
        {
            *n -= 1;
            if *n == 0 {
                self.fronts.remove(&seq);
            }
        }
        if let Some(seq) = after {
            *self.fronts.entry(seq).or_default() += 1;
        }
    }

    /// How far the comparable rank is that is furthest behind, and the one furthest ahead.
    #[must_use]
    pub fn span(&self) -> Option<(u64, u64)> {
        Some((*self.fronts.first_key_value()?.0, *self.fronts.last_key_value()?.0))
    }

    /// Ranks that [`Self::comparable`] gives.
    #[must_use]
    pub fn comparable_count(&self) -> usize {
        self.fronts.values().map(|n| *n as usize).sum()
    }

    /// When the last of all ranks launched a collective; `None` while one has not, or if it is forgotten.
    #[must_use]
    pub fn ended(&self, seq: u64) -> Option<Nanos> {
        let slot = self.window.get(seq)?;
        (slot.arrived >= self.id.nranks as usize).then_some(slot.last_ts)
    }

    /// Notes the launch of a collective by `rank`, for which it needed `own` time since what it waited for before, and
    /// retires what all known ranks have launched.
    pub fn launch(&mut self, rank: u32, mark: Mark, own: Nanos) {
        let absolute = self.change(rank, |member| {
            member.launches += 1;
            member.first_seq.get_or_insert(mark.seq);
            if member.launched.is_none_or(|l| mark.seq >= l.seq) {
                member.launched = Some(mark);
            }
            member.absolute
        });
        self.last_launch = self.last_launch.max(mark.ts);
        if absolute != Some(true) {
            return;
        }
        let lag = self.span().map_or(0, |(_, most)| most.saturating_sub(mark.seq));
        if let Some(member) = self.members.get_mut(&rank) {
            member.lead = Some(Lead::next(member.lead, lag, mark.ts));
        }
        if let Some(signature) = mark.signature {
            self.window.arrive(mark.seq, signature, Arrival { ts: mark.ts, rank, own });
            self.note_disagreement(mark.seq);
        }
        self.retire();
    }

    fn note_disagreement(&mut self, seq: u64) {
        let Some(slot) = self.window.get(seq).filter(|s| s.variants.len() > 1) else {
            return;
        };
        if self.disagreement.as_ref().is_none_or(|d| d.slot.seq >= seq) {
            self.disagreement = Some(Disagreement { slot: slot.clone(), completed: self.rhythm.completed });
        }
    }

    /// Drops slots that every known rank has passed, and learns from them.
    fn retire(&mut self) {
        let Some((done, _)) = self.span().filter(|(done, _)| *done > self.learned) else {
            return;
        };
        let known = self.comparable_count();
        // A rank not seen yet may be a few calls behind the others.
        let keep = if self.members.len() < self.id.nranks as usize { LATECOMER } else { 0 };
        let Self { window, rhythm, learned, .. } = self;
        let from = (*learned).max(done.saturating_sub(window.len() as u64));
        for slot in (from..done).filter_map(|seq| window.get(seq)) {
            if slot.arrived >= known && known > 1 {
                let (late, margin) = slot.arrivals.late();
                let skew = slot.last_ts - slot.first_ts;
                rhythm.record(Round { seq: slot.seq, at: slot.first_ts, skew, late, margin });
            }
        }
        self.learned = done;
        // What has not ended on every GPU may have to be told. The newest finished slot stays too: its signatures are
        // evidence for "ranks agree up to here".
        let ended = self.comparable().filter_map(|m| m.done).min().unwrap_or(u64::MAX);
        while self.window.pop_below(done.min(ended).saturating_sub(keep)).is_some() {}
    }
}

impl Member {
    /// Whether its creation is not known to be still under way.
    #[must_use]
    pub const fn created(&self) -> bool {
        !matches!(self.init, InitPhase::Running(_))
    }

    /// Its creation as NCCL's memory tells it at `now`, or a call that `began` and has not ended.
    pub(super) fn created_so_far(&mut self, state: Option<i32>, began: Option<Nanos>, now: Nanos) {
        match (state, self.init, began) {
            (Some(SUCCESS), InitPhase::Running(_), _) => self.init = InitPhase::Done(SUCCESS),
            (Some(IN_PROGRESS), InitPhase::Earlier, None) => self.creating_since(now),
            (_, InitPhase::Earlier, Some(since)) => self.creating_since(since),
            _ => {}
        }
    }

    fn creating_since(&mut self, since: Nanos) {
        self.init = InitPhase::Running(since);
        self.absolute = true;
        self.from_start |= self.launches == 0;
    }

    /// Queues an operation of an open group.
    pub fn queue(&mut self, mark: Mark) {
        if self.pending.len() < PENDING_LIMIT {
            self.pending.push(mark);
        }
    }

    /// The newest collective it launched, if it can be compared with other ranks'.
    #[must_use]
    fn front(&self) -> Option<u64> {
        self.launched.filter(|_| self.absolute && self.end.is_none()).map(|l| l.seq)
    }

    /// Number of the next collective that it owes.
    #[must_use]
    pub fn next_seq(&self) -> Option<u64> {
        self.launched.map(|l| l.seq + 1)
    }

    /// The collective whose transfers are in work, where the proxy tells (2.20 and later).
    #[must_use]
    pub fn in_work(&self) -> Option<Func> {
        let flows = self.flows.as_ref()?.flows.iter();
        flows.filter(|t| !t.flow.p2p).find_map(|t| t.flow.op.as_ref()?.func)
    }

    /// Time of its last launch of any kind.
    #[must_use]
    pub fn last_launch(&self) -> Nanos {
        let coll = self.launched.map_or(0, |m| m.ts);
        coll.max(self.last_other.map_or(0, |m| m.ts))
    }
}
