//! Who keeps a communicator's data from moving, told from both ends of each connection.
//!
//! A rank's transfers alone show that it waits, not why: data that was sent and does not complete looks the same whether
//! the link is cut, the receiver's GPU stands still or the receiver never called. The two ends together tell them apart.

use std::collections::BTreeMap;

use crate::model::{
    Comm, Flows, Member,
    event::{Flow, FlowOp, Way},
    flow::{Phase, Standing, Tracked},
    ids::Nanos,
};

/// Slots of a connection (`NCCL_STEPS`): a sender is at most so many steps ahead of its receiver.
const SLOTS: u64 = 8;

/// What a rank waits for, or is waited for because of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stuck {
    /// It has not begun the operation that its neighbour is in.
    Absent,
    /// Its GPU neither takes the data that is there nor makes any ready.
    Gpu,
    /// Its progress thread gets no CPU.
    Proxy,
    /// What it sends to the rank does not arrive there.
    PathTo(u32),
    /// Its data for the rank is ready, the rank has room, and its network does not take it.
    NotSentTo(u32),
    /// It waits for the rank.
    WaitsFor(u32),
    /// It waits, and what would tell for whom is not seen: the other end is on another host.
    WaitsUnseen(u32),
}

impl Stuck {
    /// Whether it is a cause, and no consequence of another rank's.
    #[must_use]
    pub const fn is_cause(self) -> bool {
        matches!(self, Self::Absent | Self::Gpu | Self::Proxy | Self::PathTo(_) | Self::NotSentTo(_))
    }
}

/// A rank's findings, each with the channels on which it shows.
pub type Findings = BTreeMap<u32, BTreeMap<Stuck, Vec<u32>>>;

/// What holds each rank of `comm` up, if nothing has moved there for `patience`. Ranks that move, or that show no flow
/// data, are absent.
#[must_use]
pub fn stuck(comm: &Comm, now: Nanos, patience: Nanos) -> Findings {
    let ranks: BTreeMap<u32, Ends<'_>> = comm.active().filter_map(|m| Some((m.rank, Ends::of(m)?))).collect();
    let mut findings = Findings::new();
    if ranks.is_empty() {
        return findings;
    }
    let moving = |e: &Ends<'_>| e.flows.standing(now, patience) == Standing::Moving;
    let some_move = ranks.values().any(moving);
    for (rank, ends) in &ranks {
        let mut note = |who: u32, what: Stuck, channel: u32| {
            let channels = findings.entry(who).or_default().entry(what).or_default();
            if !channels.contains(&channel) {
                channels.push(channel);
            }
        };
        if ends.flows.standing(now, patience) == Standing::ProxyNotRunning {
            note(*rank, Stuck::Proxy, 0);
            continue;
        }
        if some_move {
            continue;
        }
        for channel in ends.channels() {
            for (who, what) in channel.judge(*rank, &ranks) {
                note(who, what, channel.number);
            }
        }
    }
    // What a proxy that does not run leaves undone says nothing of its network.
    for found in findings.values_mut().filter(|f| f.contains_key(&Stuck::Proxy)) {
        found.retain(|what, _| *what == Stuck::Proxy || !what.is_cause());
    }
    findings
}

/// The two directions of all of a rank's connections.
struct Ends<'f> {
    flows: &'f Flows,
}

/// A rank's transfers on one channel.
struct Channel<'f> {
    number: u32,
    tracked: Vec<&'f Tracked>,
}

impl<'f> Ends<'f> {
    fn of(member: &'f Member) -> Option<Self> {
        let flows = member.flows.as_ref()?;
        flows.flows.iter().any(|t| t.flow.transport.has_flow_data()).then_some(Self { flows })
    }

    /// Whether an operation is in work on any connection.
    fn busy(&self) -> bool {
        self.flows.flows.iter().any(|t| t.flow.op.is_some()) || self.flows.untaken_since.is_some()
    }

    fn channels(&self) -> Vec<Channel<'f>> {
        let mut channels: BTreeMap<u32, Vec<&Tracked>> = BTreeMap::new();
        for tracked in self.flows.flows.iter().filter(|t| t.flow.op.is_some()) {
            channels.entry(tracked.flow.channel).or_default().push(tracked);
        }
        channels.into_iter().map(|(number, tracked)| Channel { number, tracked }).collect()
    }

    /// The other end of a connection to `rank`.
    fn opposite(&self, of: &Flow, rank: u32) -> Option<&'f Flow> {
        let way = if of.way == Way::Send { Way::Recv } else { Way::Send };
        let fits = |f: &&Tracked| (f.flow.channel, f.flow.p2p, f.flow.way) == (of.channel, of.p2p, way);
        self.flows.flows.iter().filter(fits).map(|t| &t.flow).find(|f| f.peer == Some(rank))
    }
}

impl Channel<'_> {
    /// What the channel shows: about this rank, and about those that it waits for.
    fn judge(&self, rank: u32, ranks: &BTreeMap<u32, Ends<'_>>) -> Vec<(u32, Stuck)> {
        let phases: Vec<Transfer<'_>> = self
            .tracked
            .iter()
            .filter_map(|t| t.flow.op.as_ref().map(|op| (&t.flow, op, Phase::of(t.flow.way, op))))
            .collect();
        let mut found = Vec::new();
        for (flow, op, phase) in &phases {
            match phase {
                Phase::WaitsForData => found.extend(waits_for_data(rank, flow, op, ranks)),
                Phase::InFlight | Phase::NotSent => found.extend(waits_to_send(rank, flow, op, *phase, ranks)),
                _ => {}
            }
        }
        if self.parts(&phases).iter().any(|part| gpu_owes(part)) {
            found.push((rank, Stuck::Gpu));
        }
        found
    }

    /// What a kernel does at one go. On a ring that is all; a tree is gone up and down by two groups of threads, each
    /// of which waits for its own connections, but at the root, where up becomes down.
    fn parts<'p>(&self, phases: &'p [Transfer<'p>]) -> Vec<Vec<Transfer<'p>>> {
        let tree = phases.iter().any(|(_, op, _)| op.tree);
        let has_parent = self.tracked.iter().any(|t| t.flow.parent);
        if !tree || !has_parent {
            return vec![phases.to_vec()];
        }
        let goes_up = |(flow, ..): &Transfer<'_>| flow.parent == (flow.way == Way::Send);
        let (up, down) = phases.iter().copied().partition(goes_up);
        vec![up, down]
    }
}

/// A counter of an operation in the connection's own count. `base` comes from foreign memory.
fn absolute(op: &FlowOp, counter: u64) -> u64 {
    op.base.saturating_add(counter)
}

/// A flow, its operation and what it waits for.
type Transfer<'f> = (&'f Flow, &'f FlowOp, Phase);

/// With data there and room to send, only the GPU is left to act.
fn gpu_owes(part: &[Transfer<'_>]) -> bool {
    let any = |phase| part.iter().any(|(_, _, p)| *p == phase);
    let blocked = part.iter().any(|(f, op, _)| f.way == Way::Send && op.done < op.steps && is_full(op));
    !any(Phase::WaitsForData) && !blocked && (any(Phase::NotConsumed) || any(Phase::WaitsForGpu))
}

/// Whether the GPU has filled all that it may.
fn is_full(op: &FlowOp) -> bool {
    op.ready >= op.steps.min(op.done + SLOTS)
}

/// A receiver without data: its sender has none, has not begun, or sent it.
fn waits_for_data(rank: u32, flow: &Flow, op: &FlowOp, ranks: &BTreeMap<u32, Ends<'_>>) -> Vec<(u32, Stuck)> {
    let Some(peer) = flow.peer else { return Vec::new() };
    let Some((ends, other)) = ranks.get(&peer).and_then(|e| Some((e, e.opposite(flow, rank)?))) else {
        return vec![(rank, Stuck::WaitsUnseen(peer))];
    };
    let waits = (rank, Stuck::WaitsFor(peer));
    match &other.op {
        // It is still in an earlier operation, which its other connections tell of.
        None if has_not_begun(other, op) && ends.busy() => vec![waits],
        None if has_not_begun(other, op) => vec![waits, (peer, Stuck::Absent)],
        // Done with it, so all data has left.
        None => vec![waits, (peer, Stuck::PathTo(rank))],
        // Both ends count a connection's steps alike, so the sum tells also when they are in different operations.
        Some(sent) if absolute(sent, sent.transmitted) > absolute(op, op.received) => {
            vec![waits, (peer, Stuck::PathTo(rank))]
        }
        Some(_) => vec![waits],
    }
}

/// A sender whose data does not complete.
fn waits_to_send(
    rank: u32,
    flow: &Flow,
    op: &FlowOp,
    phase: Phase,
    ranks: &BTreeMap<u32, Ends<'_>>,
) -> Vec<(u32, Stuck)> {
    let Some(peer) = flow.peer else { return Vec::new() };
    let Some((ends, other)) = ranks.get(&peer).and_then(|e| Some((e, e.opposite(flow, rank)?))) else {
        return vec![(rank, Stuck::WaitsUnseen(peer))];
    };
    let waits = (rank, Stuck::WaitsFor(peer));
    match &other.op {
        None if has_not_begun(other, op) && !ends.busy() => vec![waits, (peer, Stuck::Absent)],
        Some(got) if absolute(got, got.posted) > absolute(op, op.transmitted) && phase == Phase::NotSent => {
            vec![(rank, Stuck::NotSentTo(peer))]
        }
        // What is under way and missed at the other end is told from there.
        _ => vec![waits],
    }
}

/// Whether the other end of a connection was not given the operation yet: it was given fewer steps.
fn has_not_begun(other: &Flow, op: &FlowOp) -> bool {
    op.begun && other.steps.is_none_or(|steps| steps < absolute(op, op.steps))
}

#[cfg(test)]
mod tests;
