//! Sends and receives: matched in the order of their calls, in each direction between two ranks of a communicator.

use std::collections::{HashMap, VecDeque};

use mycroft_common::nccl::Func;

use super::{
    Simulation,
    fault::{Fate, Hold, Kind},
    layout::{CommIx, Group},
    rank::{Batch, NEVER, Stream, Transfer, Work, batch_slot},
};
use crate::event::{
    Body, Nanos, Op, Signature, Way,
    ids::{MICROSECOND, MILLISECOND},
};

/// Steps of a message.
pub(super) const STEPS: u64 = 16;
/// Batches of a rank that are remembered for those who look at transfers.
const KEPT: usize = 4;

/// One end of a message whose other end has not come.
#[derive(Clone, Copy, Debug)]
struct Half {
    rank: u32,
    batch: u64,
    transfer: usize,
    at: Nanos,
    way: Way,
}

#[derive(Clone, Debug, Default)]
struct Connection {
    waiting: VecDeque<Half>,
    /// Messages called for so far by either end.
    sent: u64,
    received: u64,
}

/// All connections, by communicator, sender and receiver. For look-up only, so that its order can't show.
#[derive(Debug, Default)]
pub(super) struct Messages {
    connections: HashMap<(CommIx, u32, u32), Connection>,
}

impl Messages {
    fn get(&mut self, comm: CommIx, src: u32, dst: u32) -> &mut Connection {
        self.connections.entry((comm, src, dst)).or_default()
    }

    /// Messages called for by the end of this way.
    pub(super) fn called(&self, comm: CommIx, member: u32, peer: u32, way: Way) -> u64 {
        let key = match way {
            Way::Send => (comm, member, peer),
            Way::Recv => (comm, peer, member),
        };
        self.connections.get(&key).map_or(0, |c| if way == Way::Send { c.sent } else { c.received })
    }
}

impl Simulation {
    /// A rank launches messages as one group.
    pub(super) fn messages(&mut self, r: u32, t: Nanos, group: Group, list: &[(Way, u32)]) {
        let (id, member) = self.layout.comm(group, r);
        let size = self.layout.size(group);
        let list = if list.is_empty() { all_to_all(member, size) } else { self.amend(r, t, group, list) };
        let number = self.ranks[r as usize].batches_begun[batch_slot(group)];
        let mut transfers = Vec::with_capacity(list.len());
        for (i, (way, peer)) in list.iter().enumerate() {
            let mut count = if group == Group::Pp { 8_388_608 } else { 262_144 };
            if *way == Way::Recv && group == Group::Pp {
                let larger = self.due(t, |k| matches!(k, Kind::WrongSize { rank } if *rank == r));
                count += u64::from(larger.is_some()) * 4096;
            }
            let func = if *way == Way::Send { Func::Send } else { Func::Recv };
            let seq = self.ranks[r as usize].others[group.index()];
            self.ranks[r as usize].others[group.index()] += 1;
            let op = Op {
                comm: self.teller.handle(r, group, true),
                seq,
                absolute: false,
                collective: false,
                empty: false,
                signature: Signature { func, count, datatype: 9, redop: 0, root: 0 },
                peer: Some(*peer as i32),
                stream: 0x10 + group as u64,
                depth: 1,
            };
            self.operation(r, group, t + i as u64 * MICROSECOND, op);
            let connection = match way {
                Way::Send => self.messages.get(id, member, *peer),
                Way::Recv => self.messages.get(id, *peer, member),
            };
            let called = if *way == Way::Send { &mut connection.sent } else { &mut connection.received };
            let base = *called * STEPS;
            *called += 1;
            transfers.push(Transfer { way: *way, peer: *peer, count, base, start: NEVER, fate: None });
        }
        let ended = t + list.len() as u64 * MICROSECOND + 5 * MICROSECOND;
        let handle = self.teller.handle(r, group, true);
        self.record(r, ended, Body::GroupEnd { proc: handle.proc, tid: handle.tid });
        let pending = transfers.len();
        let rank = &mut self.ranks[r as usize];
        rank.batches_begun[batch_slot(group)] += 1;
        let kept = &mut rank.batches[batch_slot(group)];
        while kept.len() >= KEPT && kept.front().is_some_and(|b| b.pending == 0 && b.end <= t) {
            kept.pop_front();
        }
        kept.push_back(Batch { number, launched: ended, arrived: NEVER, transfers, pending, end: 0 });
        self.go_on(r, ended);
        self.launch(r, Stream::Main, Work::Batch(group, number), ended);
    }

    /// What faults make of a list of messages.
    fn amend(&mut self, r: u32, t: Nanos, group: Group, list: &[(Way, u32)]) -> Vec<(Way, u32)> {
        let mut list = list.to_vec();
        let size = self.layout.size(group);
        if list.iter().any(|(way, _)| *way == Way::Recv)
            && self.due(t, |k| matches!(k, Kind::NoRecv { rank } if *rank == r)).is_some()
        {
            list.retain(|(way, _)| *way == Way::Send);
        }
        if let Some(first) = list.iter_mut().find(|(way, _)| *way == Way::Send)
            && self.due(t, |k| matches!(k, Kind::WrongPeer { rank } if *rank == r)).is_some()
        {
            first.1 = (first.1 + 1) % size;
        }
        list
    }

    /// One end of a message is there: if the other is too, it moves.
    pub(super) fn meet(&mut self, r: u32, group: Group, number: u64, i: usize, t: Nanos) {
        let (id, member) = self.layout.comm(group, r);
        let Some(own) = self.ranks[r as usize].batch_mut(group, number).and_then(|b| b.transfers.get(i).copied())
        else {
            return;
        };
        let (src, dst) = if own.way == Way::Send { (member, own.peer) } else { (own.peer, member) };
        let half = Half { rank: r, batch: number, transfer: i, at: t, way: own.way };
        let connection = self.messages.get(id, src, dst);
        let Some(other) = connection.waiting.front().copied().filter(|h| h.way != half.way) else {
            connection.waiting.push_back(half);
            return;
        };
        connection.waiting.pop_front();
        let start = t.max(other.at);
        let takes = if group == Group::Pp { 3 * MILLISECOND } else { 2 * MILLISECOND };
        let ends = [self.layout.rank(id, src), self.layout.rank(id, dst)];
        let mut fate = Fate::Ends(start + takes);
        let same = |b: &Batch| b.transfers.get(other.transfer).is_some_and(|o| o.count == own.count);
        if !self.ranks[other.rank as usize].batch_mut(group, other.batch).is_some_and(|b| same(b)) {
            fate = Fate::Stuck { since: start, member: 0, hold: Hold::Whole };
        }
        for fault in &self.config.faults {
            let Fate::Ends(end) = fate else { break };
            fate = fault.message(&self.layout, ends, start, end).unwrap_or(fate);
        }
        for half in [half, other] {
            let Some(batch) = self.ranks[half.rank as usize].batch_mut(group, half.batch) else { continue };
            if let Some(transfer) = batch.transfers.get_mut(half.transfer) {
                (transfer.start, transfer.fate) = (start, Some(fate));
            }
            if let Fate::Ends(end) = fate {
                self.message_ended(half.rank, group, half.batch, end);
            }
        }
    }
}

/// Every rank sends to every other and receives from it.
fn all_to_all(member: u32, size: u32) -> Vec<(Way, u32)> {
    (1..size).flat_map(|d| [(Way::Send, (member + d) % size), (Way::Recv, (member + size - d) % size)]).collect()
}
