//! All of it, and how one event changes it.

use std::collections::{BTreeMap, HashMap};

use mycroft_common::nccl::Func;

use super::{
    comm::{Comm, End, InitPhase, Mark, Member},
    event::{Body, CommFound, CommRef, Done, Event, Fact, FlowReport, Ident, Op},
    flow::Flows,
    ids::{CommId, HostId, Nanos, ProcId, SECOND},
    pair::Call,
    process::{Gone, Process},
    program::{Launch, Program},
};

/// How long a communicator that every known rank has left is remembered.
const REMEMBER_ENDED: Nanos = 60 * SECOND;
/// Ranks of one communicator at most: sets of ranks are bit sets, and the number comes from foreign memory.
const RANK_LIMIT: u32 = 1 << 20;
/// Communicators kept at most; past it, events of new ones are counted in [`Problems::refused`].
const COMM_LIMIT: usize = 100_000;
/// Unfinished creations kept at most.
const JOINING_LIMIT: usize = 65_536;

/// What is known.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Time of the newest event.
    pub now: Nanos,
    pub hosts: BTreeMap<HostId, String>,
    pub processes: BTreeMap<ProcId, Process>,
    pub comms: BTreeMap<CommId, Comm>,
    /// Loss between the kernel and here.
    pub loss: Loss,
    /// What is known of the hosts' events as such; a host not in it has neither lost any nor a clock of its own.
    pub quality: BTreeMap<HostId, Quality>,
    pub problems: Problems,
    /// Operations applied.
    pub ops: u64,
    /// What each GPU's ranks launched, in order.
    pub programs: BTreeMap<(ProcId, i32), Program>,
    /// Creations of communicators that have not named themselves yet, by process and address: since when, and by which
    /// thread.
    pub joining: BTreeMap<(ProcId, u64), (Nanos, u32)>,
    /// Which ranks a process is, in the order in which they were found.
    by_process: HashMap<ProcId, Vec<(CommId, u32)>>,
    last_forgotten: Nanos,
    /// For look-up only; never iterated, so that its order can't show.
    handles: HashMap<(ProcId, u64), (CommId, u32)>,
    /// Ranks that have operations in an open group, by the thread that queued them.
    open_groups: BTreeMap<(ProcId, u32), Vec<(CommId, u32)>>,
}

/// Events that never reached the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    pub events: u64,
    /// When the last loss was noticed.
    pub last: Nanos,
}

/// How far a host's events can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// When it last lost events; 0: never.
    pub lost: Nanos,
    /// When the newest state of its ranks was told again after a loss.
    pub reconciled: Nanos,
    /// Its times are right within this bound.
    pub clock_error: Nanos,
}

/// Events that reached the model but did not fit, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// The communicator's fields could not be read and its address is new.
    pub unidentified: u64,
    /// Rank out of range, or more ranks than any cluster has.
    pub implausible: u64,
    /// Too many communicators.
    pub refused: u64,
}

impl State {
    /// Applies one event. Events of one thread must come in their order; those of different threads may be
    /// out of order by what a ring buffer's batch holds.
    pub fn apply(&mut self, event: &Event) {
        self.now = self.now.max(event.ts);
        match &event.body {
            Body::Host { host, name } => {
                self.hosts.insert(*host, name.clone());
            }
            Body::ProcessSeen(process) => self.process_seen(process),
            Body::ProcessGone { proc, exit } => self.process_gone(*proc, Gone { at: event.ts, exit: *exit }),
            Body::ProcessActivity { proc, activity } => {
                if let Some(p) = self.processes.get_mut(proc) {
                    p.stopped_since = if activity.is_stopped() { p.stopped_since.or(Some(activity.at)) } else { None };
                    p.activity = Some((**activity).clone());
                }
            }
            Body::Evidence { proc, fact } => {
                if let Some(p) = self.processes.get_mut(proc) {
                    match fact.clone() {
                        Fact::Blocked(on) => p.blocked = Some((event.ts, on)),
                        Fact::Python(threads) => p.python = Some((event.ts, threads)),
                    }
                }
            }
            Body::Op(op) => self.op(op, event.ts),
            Body::GroupEnd { proc, tid } => self.launch_group(*proc, *tid, event.ts),
            Body::InitBegin(comm) => self.init(comm, InitPhase::Running(event.ts), event.ts),
            Body::InitEnd { comm, result } => self.init(comm, InitPhase::Done(*result), event.ts),
            Body::Finalize(comm) => self.end(comm, End::Finalized(event.ts), event.ts),
            Body::Destroy(comm) => self.end(comm, End::Destroyed(event.ts), event.ts),
            Body::Abort(comm) => self.end(comm, End::Aborted(event.ts), event.ts),
            Body::Loss { host, lost } => {
                self.told_of(*host).lost = event.ts;
                self.loss.events = self.loss.events.saturating_add(*lost);
                self.loss.last = event.ts;
            }
            Body::Launches { proc, ptr, launches } => {
                if let Some(m) = self.member_mut(*proc, *ptr) {
                    m.kernels = Some(*launches);
                }
            }
            Body::CommFound(found) => self.found(found, event.ts),
            Body::Flows(report) => self.flows(report),
            Body::Done(done) => self.done(done),
            Body::CommError { proc, ptr, code } => {
                if let Some(m) = self.member_mut(*proc, *ptr) {
                    m.error.get_or_insert((event.ts, *code));
                }
            }
            Body::Reconciled { host } => self.told_of(*host).reconciled = event.ts,
            Body::Clock { host, error } => self.told_of(*host).clock_error = *error,
            Body::Tick => self.forget(),
        }
    }

    /// The communicators of a process, with its rank in each.
    pub fn memberships(&self, proc: ProcId) -> impl Iterator<Item = (&Comm, &Member)> {
        let ranks = self.by_process.get(&proc).into_iter().flatten();
        ranks.filter_map(move |(id, rank)| {
            let comm = self.comms.get(id)?;
            Some((comm, comm.members.get(rank).filter(|m| m.proc == proc)?))
        })
    }

    /// Creations that began before `until` and were not seen to end: who is in them, and the thread that called.
    pub fn creating(&self, until: Nanos) -> Vec<((ProcId, u64), u32)> {
        let nameless = self.joining.iter().map(|(key, (since, tid))| (*key, *since, *tid));
        let members = self.comms.values().flat_map(|c| c.active()).filter_map(|m| match m.init {
            InitPhase::Running(since) => Some(((m.proc, m.ptr), since, m.tid)),
            _ => None,
        });
        nameless.chain(members).filter(|(_, since, _)| *since <= until).map(|(key, _, tid)| (key, tid)).collect()
    }

    /// Threads of a process that have queued operations in a group whose end was not seen.
    #[must_use]
    pub fn open_groups(&self) -> Vec<(ProcId, u32)> {
        self.open_groups.keys().copied().collect()
    }

    #[must_use]
    pub fn host_name(&self, host: HostId) -> &str {
        self.hosts.get(&host).map_or("?", String::as_str)
    }

    /// A process that made calls before the scan found it is known already, by less.
    fn process_seen(&mut self, process: &Process) {
        match self.processes.get_mut(&process.id) {
            Some(known) if known.alive() => {
                known.name.clone_from(&process.name);
                known.command.clone_from(&process.command);
                known.nccl.clone_from(&process.nccl);
                known.job_rank = process.job_rank.or(known.job_rank);
            }
            _ => {
                self.processes.insert(process.id, process.clone());
            }
        }
    }

    fn process_gone(&mut self, id: ProcId, gone: Gone) {
        self.handles.retain(|(proc, _), _| *proc != id);
        self.open_groups.retain(|(proc, _), _| *proc != id);
        self.joining.retain(|(proc, _), _| *proc != id);
        if let Some(p) = self.processes.get_mut(&id)
            && p.gone.is_none()
        {
            p.gone = Some(gone);
            p.stopped_since = None;
        }
    }

    fn op(&mut self, op: &Op, ts: Nanos) {
        self.ops += 1;
        let Some((id, rank)) = self.locate(&op.comm, ts) else {
            return;
        };
        let Some(comm) = self.comms.get_mut(&id) else { return };
        let tid = op.comm.tid;
        if op.empty || !op.collective {
            comm.change(rank, |m| m.tid = tid);
            if !op.empty {
                self.other(id, rank, op, ts);
            }
            return;
        }
        comm.change(rank, |m| (m.tid, m.absolute) = (tid, op.absolute));
        let mark = Mark { seq: op.seq, ts, signature: Some(op.signature), peer: op.peer, stream: op.stream };
        if op.depth > 0 {
            comm.change(rank, |m| m.queue(mark));
            let open = self.open_groups.entry((op.comm.proc, op.comm.tid)).or_default();
            if !open.contains(&(id, rank)) {
                open.push((id, rank));
            }
            return;
        }
        // A call outside a group proves that an earlier group of this thread has ended.
        if self.open_groups.contains_key(&(op.comm.proc, op.comm.tid)) {
            self.launch_group(op.comm.proc, op.comm.tid, ts);
        }
        self.launch(id, rank, mark);
    }

    fn launch(&mut self, id: CommId, rank: u32, mark: Mark) {
        let own = self.record(id, rank, &mark, true);
        if let Some(comm) = self.comms.get_mut(&id) {
            comm.launch(rank, mark, own);
        }
    }

    /// A send, a receive, or whatever else NCCL does not count among the collectives.
    fn other(&mut self, id: CommId, rank: u32, op: &Op, ts: Nanos) {
        let mark = Mark { seq: op.seq, ts, signature: Some(op.signature), peer: op.peer, stream: op.stream };
        self.record(id, rank, &mark, false);
        let Some(comm) = self.comms.get_mut(&id) else { return };
        comm.change(rank, |m| {
            m.launches += 1;
            m.last_other = Some(mark);
        });
        comm.last_launch = comm.last_launch.max(ts);
        let Some(peer) = op.peer.and_then(|p| u32::try_from(p).ok()).filter(|p| *p < id.nranks) else { return };
        let call = Call { ts, bytes: op.signature.bytes() };
        match op.signature.func {
            Func::Send => comm.pairs.entry((rank, peer)).or_default().send(call),
            Func::Recv => comm.pairs.entry((peer, rank)).or_default().recv(call),
            _ => {}
        }
    }

    /// Notes a launch in the program of its GPU. Returns how long the rank took for it since it waited for others.
    fn record(&mut self, id: CommId, rank: u32, mark: &Mark, collective: bool) -> Nanos {
        let Some(member) = self.comms.get(&id).and_then(|c| c.members.get(&rank)) else { return 0 };
        let key = (member.proc, member.cuda_dev);
        let before = self.programs.get(&key).and_then(Program::newest);
        let own = before.map_or(0, |b| mark.ts.saturating_sub(self.free_since(b, mark.ts)));
        let Some(signature) = mark.signature else { return own };
        self.programs.entry(key).or_default().push(Launch {
            comm: id,
            rank,
            seq: mark.seq,
            collective,
            signature,
            peer: mark.peer.and_then(|p| u32::try_from(p).ok()),
            stream: mark.stream,
            ts: mark.ts,
        });
        own
    }

    /// When a rank that launched `before` could go on: at once, or when the others had come too, if that was known to be
    /// before `now`.
    fn free_since(&self, before: &Launch, now: Nanos) -> Nanos {
        let comm = self.comms.get(&before.comm);
        let met = comm.and_then(|c| {
            if before.collective {
                return c.ended(before.seq);
            }
            let peer = before.peer?;
            match before.signature.func {
                Func::Recv => c.pairs.get(&(peer, before.rank)).filter(|p| p.unmet_recv().is_none())?.sends.newest(),
                Func::Send => c.pairs.get(&(before.rank, peer)).filter(|p| p.unmet_send().is_none())?.recvs.newest(),
                _ => None,
            }
            .map(|call| call.ts)
        });
        met.filter(|t| *t <= now).map_or(before.ts, |t| t.max(before.ts))
    }

    /// A rank that makes no calls is known by what NCCL has counted for it.
    fn found(&mut self, found: &CommFound, ts: Nanos) {
        let Some((id, rank)) = self.locate(&found.comm, ts) else {
            return;
        };
        let began = self.joining.remove(&(found.comm.proc, found.comm.ptr)).map(|(since, _)| since);
        let Some(comm) = self.comms.get_mut(&id) else { return };
        comm.change(rank, |member| {
            member.created_so_far(found.init_state, began, ts);
            member.by_function.clone_from(&found.by_function);
            member.name.clone_from(&found.name);
            let Some(count) = found.collectives else { return };
            member.absolute = true;
            let Some(seq) = count.checked_sub(1) else { return };
            if member.launched.is_none_or(|l| l.seq < seq) {
                let mark = Mark { seq, ts, signature: None, peer: None, stream: 0 };
                member.launched = Some(mark);
                member.first_seq.get_or_insert(seq);
            }
        });
    }

    fn flows(&mut self, report: &FlowReport) {
        if let Some(m) = self.member_mut(report.proc, report.ptr) {
            match &mut m.flows {
                Some(flows) => flows.update(report),
                none => *none = Some(Flows::new(report)),
            }
        }
    }

    fn done(&mut self, done: &Done) {
        if let Some(m) = self.member_mut(done.proc, done.ptr) {
            let newest = if done.collective { &mut m.done } else { &mut m.done_other };
            *newest = (*newest).max(Some(done.seq));
        }
    }

    fn told_of(&mut self, host: HostId) -> &mut Quality {
        self.quality.entry(host).or_default()
    }

    fn member_mut(&mut self, proc: ProcId, ptr: u64) -> Option<&mut Member> {
        let (id, rank) = self.handles.get(&(proc, ptr))?;
        self.comms.get_mut(id)?.members.get_mut(rank)
    }

    fn launch_group(&mut self, proc: ProcId, tid: u32, ts: Nanos) {
        for (id, rank) in self.open_groups.remove(&(proc, tid)).unwrap_or_default() {
            let Some(comm) = self.comms.get_mut(&id) else { continue };
            for mark in comm.change(rank, |m| std::mem::take(&mut m.pending)).unwrap_or_default() {
                self.launch(id, rank, Mark { ts, ..mark });
            }
        }
    }

    fn init(&mut self, comm: &CommRef, phase: InitPhase, ts: Nanos) {
        // While creation runs the fields may not be set yet; its end, the first operation or a look at them names it.
        let key = (comm.proc, comm.ptr);
        if comm.ident.is_none() {
            match phase {
                InitPhase::Running(_) if self.joining.len() < JOINING_LIMIT => {
                    self.joining.insert(key, (ts, comm.tid));
                }
                _ => drop(self.joining.remove(&key)),
            }
            return;
        }
        let began = self.joining.remove(&key);
        if let Some((id, rank)) = self.locate(comm, ts)
            && let Some(c) = self.comms.get_mut(&id)
        {
            c.change(rank, |member| {
                member.init = match (phase, began) {
                    (InitPhase::Running(_), Some((since, _))) => InitPhase::Running(since),
                    _ => phase,
                };
                member.tid = comm.tid;
                member.absolute = true;
                member.from_start |= member.launches == 0;
            });
        }
    }

    fn end(&mut self, comm: &CommRef, end: End, ts: Nanos) {
        let Some((id, rank)) = self.locate(comm, ts) else {
            return;
        };
        if !matches!(end, End::Finalized(_)) {
            self.handles.remove(&(comm.proc, comm.ptr));
        }
        if let Some(c) = self.comms.get_mut(&id) {
            c.change(rank, |m| m.end = Some(end));
        }
    }

    /// Which communicator and rank a handle stands for; notes it if it is new.
    fn locate(&mut self, comm: &CommRef, ts: Nanos) -> Option<(CommId, u32)> {
        let key = (comm.proc, comm.ptr);
        let known = self.handles.get(&key).copied();
        let Some(ident) = comm.ident else {
            if known.is_none() {
                self.problems.unidentified += 1;
            }
            return known;
        };
        if ident.nranks > RANK_LIMIT || ident.rank >= ident.nranks {
            self.problems.implausible += 1;
            return None;
        }
        if let Some((id, rank)) = known {
            if (id.hash, id.nranks, rank) == (ident.hash, ident.nranks, ident.rank) {
                return known;
            }
            if let Some(c) = self.comms.get_mut(&id) {
                c.change(rank, |m| {
                    m.end.get_or_insert(End::Replaced(ts));
                });
            }
        }
        self.join(comm, &ident, ts)
    }

    /// Enters a new handle into the first instance of its communicator that has no such rank yet.
    fn join(&mut self, comm: &CommRef, ident: &Ident, ts: Nanos) -> Option<(CommId, u32)> {
        let mut id = CommId { hash: ident.hash, nranks: ident.nranks, instance: 0 };
        while self.comms.get(&id).is_some_and(|c| c.members.contains_key(&ident.rank)) {
            id.instance += 1;
        }
        if !self.comms.contains_key(&id) && self.comms.len() >= COMM_LIMIT {
            self.problems.refused += 1;
            return None;
        }
        let member = Member {
            rank: ident.rank,
            proc: comm.proc,
            ptr: comm.ptr,
            tid: comm.tid,
            cuda_dev: ident.cuda_dev,
            nvml_dev: ident.nvml_dev,
            bus_id: ident.bus_id,
            launched: None,
            first_seq: None,
            absolute: false,
            pending: Vec::new(),
            last_other: None,
            launches: 0,
            lead: None,
            from_start: false,
            kernels: None,
            done: None,
            done_other: None,
            error: None,
            flows: None,
            by_function: Vec::new(),
            name: None,
            init: InitPhase::Earlier,
            end: None,
        };
        self.comms.entry(id).or_insert_with(|| Comm::new(id, ts)).join(member);
        self.by_process.entry(comm.proc).or_default().push((id, ident.rank));
        self.handles.insert((comm.proc, comm.ptr), (id, ident.rank));
        Some((id, ident.rank))
    }

    /// Forgets communicators that all known ranks left a while ago, and processes that no one mentions.
    fn forget(&mut self) {
        let now = self.now;
        if now.saturating_sub(self.last_forgotten) < SECOND {
            return;
        }
        self.last_forgotten = now;
        let processes = &self.processes;
        self.comms.retain(|_, comm| {
            let left = comm.members.values().map(|m| left_at(m, processes)).collect::<Option<Vec<_>>>();
            left.is_none_or(|times| times.iter().any(|t| t.saturating_add(REMEMBER_ENDED) > now))
        });
        let comms = &self.comms;
        self.by_process.retain(|_, ranks| {
            ranks.retain(|(id, _)| comms.contains_key(id));
            !ranks.is_empty()
        });
        let by_process = &self.by_process;
        self.programs.retain(|(proc, _), _| by_process.contains_key(proc));
        self.handles.retain(|_, (id, _)| comms.contains_key(id));
        let mentioned: std::collections::BTreeSet<ProcId> =
            comms.values().flat_map(|c| c.members.values().map(|m| m.proc)).collect();
        self.processes
            .retain(|id, p| p.gone.is_none_or(|g| mentioned.contains(id) || g.at.saturating_add(REMEMBER_ENDED) > now));
    }
}

fn left_at(member: &Member, processes: &BTreeMap<ProcId, Process>) -> Option<Nanos> {
    let ended = match member.end {
        Some(End::Destroyed(t) | End::Aborted(t) | End::Replaced(t)) => Some(t),
        Some(End::Finalized(_)) | None => None,
    };
    ended.or_else(|| processes.get(&member.proc)?.gone.map(|g| g.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_address_is_another_rank() {
        let mut state = State::default();
        let proc = ProcId { host: HostId(0), pid: 1 };
        let ident = |hash| Ident { hash, rank: 0, nranks: 2, cuda_dev: 0, nvml_dev: 0, bus_id: 0 };
        for hash in [1, 2] {
            let comm = CommRef { proc, tid: 1, ptr: 0x1000, ident: Some(ident(hash)) };
            state.apply(&Event { ts: hash, body: Body::InitEnd { comm, result: 0 } });
        }
        let ends: Vec<Option<End>> = state.comms.values().map(|c| c.members[&0].end).collect();
        assert_eq!(ends, [Some(End::Replaced(2)), None]);
    }

    #[test]
    fn repeated_splits_of_one_hash_are_kept_apart() {
        let mut state = State::default();
        for rank in 0..2u32 {
            for ptr in [0x1000, 0x2000] {
                let proc = ProcId { host: HostId(0), pid: 10 + rank };
                let ident = Ident { hash: 7, rank, nranks: 2, cuda_dev: 0, nvml_dev: 0, bus_id: 0 };
                let comm = CommRef { proc, tid: 1, ptr, ident: Some(ident) };
                state.apply(&Event { ts: 1, body: Body::InitEnd { comm, result: 0 } });
            }
        }
        let sizes: Vec<(u32, usize)> = state.comms.values().map(|c| (c.id.instance, c.members.len())).collect();
        assert_eq!(sizes, [(0, 2), (1, 2)]);
    }
}
