//! A job's dumps as events.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use mycroft_common::nccl::Func;

use super::{
    dump::{Dump, Entry, Status},
    join::{GroupKey, Job},
};
use crate::event::{
    Body, CommFound, CommRef, Done, Event, HostId, Ident, Nanos, Op, Origin, ProcId, Process, Signature,
    ids::MILLISECOND,
};

/// A dump names neither host nor pid. Each rank gets a host of its own, beyond those that other files name, and pid 0,
/// which stands for a process that is not known.
const HOSTS: u32 = 1 << 24;
/// Dumps tell times by their hosts' clocks, which are set over the network and not compared with each other.
const CLOCK_ERROR: Nanos = 50 * MILLISECOND;

/// One number of a rank's sequence in a group. Calls made between `startCoalescing` and its end share one.
#[derive(Debug)]
struct Call<'a> {
    first: &'a Entry,
    /// All that share the number agree on what ranks can compare.
    single: bool,
    completed: bool,
}

/// Events of all ranks, oldest first.
pub(super) fn events(job: &Job) -> Vec<Event> {
    let oldest = job.dumps.values().flat_map(|d| d.entries.iter().map(|e| e.created)).min().unwrap_or(0);
    let base = oldest.saturating_sub(MILLISECOND);
    let mut events = Vec::new();
    for (rank, dump) in &job.dumps {
        let process = Process {
            name: format!("rank {rank}"),
            nccl: dump.nccl.clone(),
            job_rank: Some(*rank),
            ..Process::unknown(proc(*rank), Origin::FlightRecorder)
        };
        events.push(Event { ts: base, body: Body::Clock { host: process.id.host, error: CLOCK_ERROR } });
        events.push(Event { ts: base, body: Body::ProcessSeen(Box::new(process)) });
        let entries = by_group(dump);
        for (key, group, local) in job.groups_of(*rank) {
            let name = if group.desc.is_empty() { key.name.clone() } else { format!("{} {}", key.name, group.desc) };
            let own = entries.get(key.name.as_str()).map_or(&[][..], Vec::as_slice);
            let member = Member { comm: comm(*rank, &key, local), name, status: job.status(*rank, &key.name), base };
            member.events(own, &mut events);
        }
    }
    events.sort_by_key(|e| e.ts);
    events
}

fn proc(rank: u32) -> ProcId {
    ProcId { host: HostId(HOSTS.saturating_add(rank)), pid: 0 }
}

fn by_group(dump: &Dump) -> BTreeMap<&str, Vec<&Entry>> {
    let mut groups: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for e in &dump.entries {
        groups.entry(e.group.as_str()).or_default().push(e);
    }
    groups
}

/// The same for all ranks of the group. `DefaultHasher::new` has fixed keys, so that two runs give one name.
fn comm(rank: u32, key: &GroupKey, local: u32) -> CommRef {
    let mut hasher = DefaultHasher::new();
    (&key.name, &key.ranks).hash(&mut hasher);
    let hash = hasher.finish();
    let ident = Ident { hash, rank: local, nranks: key.ranks.len() as u32, cuda_dev: 0, nvml_dev: 0, bus_id: 0 };
    CommRef { proc: proc(rank), tid: 0, ptr: hash, ident: Some(ident) }
}

/// A rank in a group.
struct Member {
    comm: CommRef,
    name: String,
    status: Option<Status>,
    base: Nanos,
}

impl Member {
    fn events(&self, entries: &[&Entry], out: &mut Vec<Event>) {
        let collectives = calls(entries.iter().copied().filter(|e| !e.p2p));
        let others = calls(entries.iter().copied().filter(|e| e.p2p));
        let counted = self.status.and_then(|s| s.completed);
        let done = done(&collectives, counted);
        self.found(done, out);
        if let Some(seq) = done {
            self.done(true, seq, out);
        }
        if let Some(seq) = self::done(&others, None) {
            self.done(false, seq, out);
        }
        for (seq, call) in &collectives {
            out.push(self.op(*seq, call, true));
        }
        for (seq, call) in others.iter().filter(|(_, c)| c.first.peer.is_some()) {
            out.push(self.op(*seq, call, false));
        }
        let enqueued = self.status.and_then(|s| s.enqueued);
        if enqueued > collectives.keys().last().copied().max(done) {
            self.found(enqueued, out);
        }
    }

    /// The rank is there and has launched up to this number, by PyTorch's count. Nothing says when it did.
    fn found(&self, newest: Option<u64>, out: &mut Vec<Event>) {
        let found = CommFound {
            comm: self.comm,
            collectives: newest.map(|n| n.saturating_add(1)),
            by_function: Vec::new(),
            name: Some(self.name.clone()),
            init_state: None,
        };
        out.push(Event { ts: self.base, body: Body::CommFound(Box::new(found)) });
    }

    fn done(&self, collective: bool, seq: u64, out: &mut Vec<Event>) {
        let done = Done { proc: self.comm.proc, ptr: self.comm.ptr, collective, seq };
        out.push(Event { ts: self.base, body: Body::Done(done) });
    }

    fn op(&self, seq: u64, call: &Call<'_>, collective: bool) -> Event {
        let e = call.first;
        let signature = Signature {
            func: e.func,
            count: if call.single { e.count } else { 0 },
            datatype: if call.single { e.datatype } else { -1 },
            redop: Signature::UNTOLD,
            root: Signature::UNTOLD,
        };
        let body = Body::Op(Op {
            comm: self.comm,
            seq,
            absolute: true,
            collective,
            empty: false,
            signature,
            peer: e.peer.and_then(|p| i32::try_from(p).ok()),
            stream: 0,
            depth: 0,
        });
        Event { ts: e.created, body }
    }
}

/// By number. The single calls of a coalesced group have no events of their own and stay `scheduled` for ever; the
/// entry of the whole group tells of them all.
fn calls<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<u64, Call<'a>> {
    let mut by_seq: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
    for e in entries {
        by_seq.entry(e.seq).or_default().push(e);
    }
    let mut calls = BTreeMap::new();
    for (seq, same) in by_seq {
        let whole = same.iter().find(|e| e.func == Func::SendRecv);
        let completed = whole.map_or_else(|| same.iter().all(|e| e.completed), |w| w.completed);
        if let Some(first) = same.iter().find(|e| e.func != Func::SendRecv).or(whole) {
            calls.insert(seq, Call { first, single: same.len() == 1, completed });
        }
    }
    calls
}

/// The number up to which all have ended. What PyTorch counts as completed is.
fn done(calls: &BTreeMap<u64, Call<'_>>, counted: Option<u64>) -> Option<u64> {
    let open = calls.iter().filter(|(seq, c)| !c.completed && Some(**seq) > counted).map(|(seq, _)| *seq).next();
    let newest = || calls.iter().filter(|(_, c)| c.completed).map(|(seq, _)| *seq).next_back().max(counted);
    open.map_or_else(newest, |seq| seq.checked_sub(1))
}
