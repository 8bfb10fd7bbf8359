//! What an agent reads of a rank's transfers: the counters of its connections over the network.

use super::{
    SLICES, Simulation,
    comms::Instance,
    fault::{Fate, Hold},
    layout::{CommIx, Fourth, Group, Layout},
    message::STEPS,
    rank::{NEVER, Transfer, batch_slot},
    ring::{At, Counters, Ring, SLICE},
    tell::{BEGIN, address, proc},
};
use crate::event::{
    Body, Done, Flow, FlowOp, FlowReport, Nanos, Progress, Protocol, Transport, Way,
    ids::{MILLISECOND, SECOND},
};
use mycroft_common::nccl::Func;

/// An idle communicator is reported so often.
const SIGN_OF_LIFE: Nanos = SECOND;
/// Of larger communicators the rings are not looked at.
const LARGEST: u32 = 1024;

/// Whether the rings of a communicator go over the network and are looked at.
pub(super) fn watched(layout: &Layout, comm: CommIx) -> bool {
    let group = match comm.group {
        Group::Dp | Group::World => true,
        Group::Ep => layout.fourth == Fourth::Context,
        _ => false,
    };
    let size = layout.size(comm.group);
    let first = layout.host(layout.rank(comm, 0));
    group && size > 1 && size <= LARGEST && layout.members(comm).any(|r| layout.host(r) != first)
}

impl Simulation {
    /// Looks at a part of all communicators.
    pub(super) fn look_at_transfers(&mut self, slice: u32) {
        let mine = self.comms.iter().filter(|c| c.watched && c.id.ix % SLICES == slice);
        let rings: Vec<CommIx> = mine.map(|c| c.id).collect();
        for id in rings {
            self.look_at_ring(id);
        }
        for r in (slice..self.layout.world()).step_by(SLICES as usize) {
            for group in [Group::Pp, Group::Ep] {
                if self.layout.size(group) > 1 && !self.ranks[r as usize].gone {
                    self.look_at_messages(r, group);
                }
            }
        }
    }

    fn look_at_ring(&mut self, id: CommIx) {
        let t = self.now;
        self.comms.get_mut(id).forget(t);
        let comm = self.comms.get(id);
        let Some((number, instance)) = comm.instances.front().map(|i| (comm.first, i)).filter(|(_, i)| begun(i, t))
        else {
            return self.idle_ring(id);
        };
        let at: Vec<At> = (0..comm.ranks as usize).map(|m| standing(instance, m, t)).collect();
        let counters = Ring { steps: instance.steps, at: &at, hold: held(instance, t), done: moved(instance, t) };
        let counters = counters.counters();
        let mut reports = Vec::new();
        for member in 0..comm.ranks {
            let r = self.layout.rank(id, member);
            if self.ranks[r as usize].gone || comm.made.is_none() {
                continue;
            }
            let op = (at[member as usize] != At::Absent).then(|| {
                let behind = comm.instances.iter().skip(1).filter(|i| begun_by(i, member as usize, t)).count();
                (number, instance, counters[member as usize], behind as u32)
            });
            let steps = comm.steps_given(member, t);
            reports.push((r, self.ring_flows(id, member, op, steps)));
        }
        for (r, flows) in reports {
            self.report(r, id.group, flows);
            self.completed(r, id);
        }
    }

    /// Nothing in work: said once in a while.
    fn idle_ring(&mut self, id: CommIx) {
        let comm = self.comms.get(id);
        let period = self.config.seen.flow_period;
        let due = (self.now - BEGIN) % SIGN_OF_LIFE.max(period) < period;
        if comm.made.is_none() || !due {
            return;
        }
        for member in 0..self.layout.size(id.group) {
            let r = self.layout.rank(id, member);
            if !self.ranks[r as usize].gone {
                let steps = self.comms.get(id).steps_given(member, self.now);
                let flows = self.ring_flows(id, member, None, steps);
                self.report(r, id.group, flows);
                self.completed(r, id);
            }
        }
    }

    /// The newest collective that has ended, where ends are seen.
    fn completed(&mut self, r: u32, id: CommIx) {
        if !self.config.seen.completions {
            return;
        }
        if let Some(seq) = self.comms.get(id).ended(self.now).checked_sub(1) {
            let done = Done { proc: proc(&self.layout, r), ptr: address(id.group), collective: true, seq };
            self.teller.tell(self.layout.host(r), self.now, Body::Done(done));
        }
    }

    fn ring_flows(
        &self,
        id: CommIx,
        member: u32,
        op: Option<(u64, &Instance, Counters, u32)>,
        steps: u64,
    ) -> Vec<Flow> {
        let ranks = self.layout.size(id.group);
        let r = self.layout.rank(id, member);
        let channels = if self.layout.world() <= 256 { 2 } else { 1 };
        let mut flows = Vec::with_capacity(2 * channels as usize);
        for channel in 0..channels {
            for (way, peer) in [(Way::Send, (member + 1) % ranks), (Way::Recv, (member + ranks - 1) % ranks)] {
                let other = self.layout.rank(id, peer);
                let net = self.layout.host(other) != self.layout.host(r);
                let flow_op = op.filter(|_| net).map(|(number, instance, c, _)| ring_op(number, instance, c, way));
                flows.push(Flow {
                    channel,
                    peer: Some(peer),
                    way,
                    parent: false,
                    p2p: false,
                    transport: if net { Transport::Net } else { Transport::P2p },
                    net_dev: net.then(|| self.device(r)),
                    steps: net.then_some(steps),
                    op: flow_op,
                    behind: op.filter(|_| net).map_or(0, |(.., behind)| behind),
                });
            }
        }
        flows
    }

    /// Each GPU has a network card of its own.
    fn device(&self, r: u32) -> i32 {
        (r % self.layout.per_host) as i32
    }

    fn look_at_messages(&mut self, r: u32, group: Group) {
        let t = self.now;
        let (id, member) = self.layout.comm(group, r);
        let in_work = |b: &&super::rank::Batch| b.launched <= t && (b.pending > 0 || b.end > t);
        let batch = self.ranks[r as usize].batches[batch_slot(group)].iter().find(in_work);
        let transfers: Vec<Transfer> = batch.map(|b| b.transfers.clone()).unwrap_or_default();
        let (number, arrived) = batch.map_or((0, NEVER), |b| (b.number, b.arrived));
        let due = (t - BEGIN) % SIGN_OF_LIFE.max(self.config.seen.flow_period) < self.config.seen.flow_period;
        if transfers.is_empty() && !due {
            return;
        }
        let mut flows = Vec::new();
        for (way, peer) in self.peers(group, member) {
            let other = self.layout.rank(id, peer);
            if self.layout.host(other) == self.layout.host(r) {
                continue;
            }
            let own = transfers.iter().find(|x| (x.way, x.peer) == (way, peer));
            let open = own.filter(|x| !matches!(x.fate, Some(Fate::Ends(end)) if end <= t));
            flows.push(Flow {
                channel: 0,
                peer: Some(peer),
                way,
                parent: false,
                p2p: true,
                transport: Transport::Net,
                net_dev: Some(self.device(r)),
                steps: Some(self.messages.called(id, member, peer, way) * STEPS),
                op: open.map(|x| self.message_op(r, group, number, arrived <= t, x)),
                behind: 0,
            });
        }
        if !flows.is_empty() {
            self.report(r, group, flows);
        }
    }

    /// The connections for messages that a rank has.
    fn peers(&self, group: Group, member: u32) -> Vec<(Way, u32)> {
        let size = self.layout.size(group);
        let near = |p: &u32| group == Group::Ep || p.abs_diff(member) == 1;
        let others = (0..size).filter(|p| *p != member).filter(near);
        match (group, self.layout.fourth) {
            (Group::Ep, Fourth::Context) => Vec::new(),
            _ => others.flat_map(|p| [(Way::Send, p), (Way::Recv, p)]).collect(),
        }
    }

    /// Whether the other end of a message has been called for, with its GPU there or not.
    fn other_called(&self, r: u32, group: Group, own: &Transfer) -> bool {
        let (id, member) = self.layout.comm(group, r);
        let way = if own.way == Way::Send { Way::Recv } else { Way::Send };
        self.messages.called(id, own.peer, member, way) * STEPS > own.base
    }

    fn message_op(&self, r: u32, group: Group, number: u64, arrived: bool, own: &Transfer) -> FlowOp {
        let t = self.now;
        let (moved, hold) = match own.fate {
            Some(Fate::Ends(end)) if own.start <= t => (share(own.start, end, t), None),
            Some(Fate::Stuck { since, hold, member }) if since <= t => {
                (share(own.start, own.start + 3 * MILLISECOND, since), Some((member, hold)))
            }
            _ => (0, None),
        };
        let moved = whole(moved);
        let full = |x: u64| STEPS.min(x + 8);
        let waits = own.fate.is_none() || own.start > t;
        let mut op = FlowOp {
            number,
            func: Some(if own.way == Way::Send { Func::Send } else { Func::Recv }),
            protocol: Protocol::Simple,
            algorithm: None,
            tree: false,
            begun: true,
            steps: STEPS,
            slice: SLICE,
            slice_bytes: 1 << 20,
            base: own.base,
            posted: 0,
            ready: 0,
            received: 0,
            transmitted: 0,
            consumed: 0,
            done: 0,
        };
        match own.way {
            Way::Send => {
                let done = match (waits, self.other_called(r, group, own)) {
                    (true, true) if arrived => 8,
                    (true, _) => 0,
                    (false, _) => moved,
                };
                let sender_still = matches!(hold, Some((0, Hold::Gpu)));
                op.ready = if !arrived || sender_still { done } else { full(done) };
                let lost = matches!(hold, Some((_, Hold::Edge)));
                op.transmitted = if lost { op.ready } else { done };
                (op.done, op.posted) = (done, full(done));
            }
            Way::Recv => {
                let sent = waits && !arrived && self.sender_arrived(r, group, own);
                let receiver_still = matches!(hold, Some((1, Hold::Gpu)));
                op.consumed = if waits { 0 } else { moved };
                op.received = if sent || receiver_still { full(op.consumed) } else { op.consumed };
                (op.transmitted, op.done) = (op.received, op.consumed);
                op.posted = full(op.consumed);
            }
        }
        op
    }

    /// Whether the sender's GPU is at the message that this end waits for.
    fn sender_arrived(&self, r: u32, group: Group, own: &Transfer) -> bool {
        let (id, member) = self.layout.comm(group, r);
        let sender = &self.ranks[self.layout.rank(id, own.peer) as usize];
        sender.batches[batch_slot(group)].iter().any(|b| {
            let same = |x: &Transfer| (x.way, x.peer, x.base) == (Way::Send, member, own.base);
            b.arrived <= self.now && b.transfers.iter().any(same)
        })
    }

    fn report(&mut self, r: u32, group: Group, flows: Vec<Flow>) {
        let proc = proc(&self.layout, r);
        let at = self.now;
        let stopped = self.proxy_fault(r);
        let ran = stopped.map_or(at, |f| f.at);
        let working = flows.iter().any(|f| f.op.is_some());
        let stops = stopped.is_some_and(|f| matches!(f.kind, super::Kind::Stopped { .. }));
        let progress = Progress {
            tid: proc.pid + 50,
            ran: ran - BEGIN,
            waited: at - ran,
            slices: (ran - BEGIN) / MILLISECOND,
            state: match (stops, working) {
                (true, _) => 'T',
                (false, true) => 'R',
                (false, false) => 'S',
            },
        };
        let report = FlowReport {
            proc,
            ptr: address(group),
            at,
            flows,
            untaken: false,
            net: Some("IB".to_owned()),
            progress: Some(progress),
        };
        self.teller.tell(self.layout.host(r), at, Body::Flows(Box::new(report)));
    }
}

fn whole(steps: u64) -> u64 {
    steps / SLICE * SLICE
}

/// Steps of a message that have moved by `t`.
fn share(start: Nanos, end: Nanos, t: Nanos) -> u64 {
    STEPS * t.saturating_sub(start).min(end - start) / (end - start).max(1)
}

/// Whether any rank has launched it.
fn begun(instance: &Instance, t: Nanos) -> bool {
    instance.launched.iter().any(|at| *at <= t)
}

fn begun_by(instance: &Instance, member: usize, t: Nanos) -> bool {
    instance.launched.get(member).is_some_and(|at| *at <= t)
}

fn standing(instance: &Instance, member: usize, t: Nanos) -> At {
    let by = |list: &[Nanos]| list.get(member).is_some_and(|at| *at <= t);
    match (by(&instance.launched), by(&instance.reached)) {
        (false, _) => At::Absent,
        (true, false) => At::Posted,
        (true, true) => At::In,
    }
}

/// Steps that all ranks have moved by `t`.
fn moved(instance: &Instance, t: Nanos) -> u64 {
    match instance.fate {
        Some(Fate::Ends(end)) if instance.start <= t => {
            let span = (end - instance.start).max(1);
            whole((u128::from(instance.steps) * u128::from((t - instance.start).min(span)) / u128::from(span)) as u64)
        }
        Some(Fate::Stuck { since, .. }) => {
            let part = since.saturating_sub(instance.start).min(instance.takes);
            whole(instance.steps * part / instance.takes.max(1))
        }
        _ => 0,
    }
}

/// Where it stands still, or is slow, at `t`.
fn held(instance: &Instance, t: Nanos) -> Option<(usize, Hold, u64)> {
    match instance.fate? {
        Fate::Stuck { since, member, hold } if since <= t => Some((member as usize, hold, moved(instance, t))),
        Fate::Ends(_) if instance.start <= t => Some((instance.slow? as usize, Hold::Edge, moved(instance, t))),
        _ => None,
    }
}

fn ring_op(number: u64, instance: &Instance, c: Counters, way: Way) -> FlowOp {
    let op = FlowOp {
        number,
        func: Some(instance.signature.func),
        protocol: Protocol::Simple,
        algorithm: Some(1),
        tree: false,
        begun: true,
        steps: instance.steps,
        slice: SLICE,
        slice_bytes: 1 << 20,
        base: instance.base,
        posted: 0,
        ready: 0,
        received: 0,
        transmitted: 0,
        consumed: 0,
        done: 0,
    };
    match way {
        Way::Send => {
            FlowOp { posted: instance.steps.min(c.done + 8), ready: c.ready, transmitted: c.sent, done: c.done, ..op }
        }
        Way::Recv => {
            FlowOp { posted: c.posted, received: c.got, transmitted: c.got, consumed: c.used, done: c.noticed, ..op }
        }
    }
}
