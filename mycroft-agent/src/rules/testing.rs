//! Scenes for rule tests: ranks that launch, wait, stop and die, in a few words.

use std::collections::{BTreeMap, BTreeSet};

use mycroft_common::nccl::Func;

use super::{Engine, Subject, Verdict};
use crate::model::{
    Activity, Body, CommRef, Event, Exit, HostId, Op, Origin, ProcId, Process, Signature, State,
    event::{CommFound, Done, Fact, Flow, FlowOp, FlowReport, Ident, Progress, Protocol, Transport, Way},
    ids::{MILLISECOND, Nanos},
};

/// A job on one host; rank `r` of the first communicator is process `100 + r`.
pub(crate) struct Scene {
    state: State,
    now: Nanos,
    engine: Engine,
    /// Per communicator: hash, its ranks as job ranks, next number per member.
    comms: Vec<(u64, u32, Vec<u32>, Vec<u64>)>,
    latest: Vec<Verdict>,
    /// Transfers by rank in the first communicator.
    flows: BTreeMap<u32, Vec<Flow>>,
    starved: BTreeSet<u32>,
    /// Ranks on one host.
    ranks_each: u32,
}

impl Subject {
    /// Rank in the scene's first communicator.
    pub(crate) fn rank_in_job(&self) -> u32 {
        self.pid - 100
    }
}

fn proc(rank: u32) -> ProcId {
    ProcId { host: HostId(0), pid: 100 + rank }
}

impl Scene {
    pub(crate) fn ranks(n: u32) -> Self {
        Self::part_of(n, n)
    }

    /// A communicator over all ranks of some hosts.
    pub(crate) fn hosts(hosts: u32, ranks_each: u32) -> Self {
        let mut s = Self::part_of(0, hosts * ranks_each);
        s.ranks_each = ranks_each;
        s.comms[0].2 = (0..hosts * ranks_each).collect();
        s.comms[0].3 = vec![0; (hosts * ranks_each) as usize];
        for h in 0..hosts {
            s.send_event(Body::Host { host: HostId(h), name: format!("node{}", h + 1) });
        }
        s
    }

    /// Time passes without a judgement.
    pub(crate) fn wait(&mut self, ms: u64) {
        self.now += ms * MILLISECOND;
    }

    /// One collective to which some ranks come late.
    pub(crate) fn late_round(&mut self, late: &[u32], late_ms: u64, ms: u64) {
        let all = self.comms[0].2.clone();
        let (last, first): (Vec<u32>, Vec<u32>) = all.into_iter().partition(|r| late.contains(r));
        self.launch_on(0, &first);
        self.wait(late_ms);
        self.launch_on(0, &last);
        self.pass(ms);
    }

    /// `seen` ranks of a communicator of `all`.
    pub(crate) fn part_of(seen: u32, all: u32) -> Self {
        let mut s = Self {
            state: State::default(),
            now: 1_000_000 * MILLISECOND,
            engine: Engine::default(),
            comms: vec![(0xa0, all, (0..seen).collect(), vec![0; seen as usize])],
            latest: Vec::new(),
            flows: BTreeMap::new(),
            starved: BTreeSet::new(),
            ranks_each: u32::MAX,
        };
        s.send_event(Body::Host { host: HostId(0), name: "node1".to_owned() });
        for r in 0..seen {
            s.send_event(Body::ProcessSeen(Box::new(Process {
                name: "rank".to_owned(),
                nccl: "2.27.5".to_owned(),
                ..Process::unknown(proc(r), Origin::Live)
            })));
        }
        s
    }

    /// A rank's process turns out to be another program.
    pub(crate) fn rename(&mut self, rank: u32, name: &str) {
        let Some(known) = self.state.processes.get(&proc(rank)) else { return };
        let process = Process { name: name.to_owned(), ..known.clone() };
        self.send_event(Body::ProcessSeen(Box::new(process)));
    }

    fn send_event(&mut self, body: Body) {
        self.state.apply(&Event { ts: self.now, body });
    }

    /// A collector has read something about a rank's process.
    pub(crate) fn fact(&mut self, rank: u32, fact: Fact) {
        self.send_event(Body::Evidence { proc: proc(rank), fact });
    }

    fn evaluate(&mut self) {
        self.report_flows();
        self.send_event(Body::Tick);
        self.engine.evaluate(&self.state);
        self.latest = self.engine.active().into_iter().cloned().collect();
    }

    /// Lets time pass, judged every 100 ms.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now + ms * MILLISECOND;
        while self.now < end {
            self.now = (self.now + 100 * MILLISECOND).min(end);
            self.evaluate();
        }
    }

    pub(crate) fn communicator(&mut self, job_ranks: &[u32]) -> usize {
        let hash = 0xa0 + self.comms.len() as u64;
        self.comms.push((hash, job_ranks.len() as u32, job_ranks.to_vec(), vec![0; job_ranks.len()]));
        self.comms.len() - 1
    }

    /// A communicator of `all` ranks, the first of which are these.
    pub(crate) fn communicator_of(&mut self, job_ranks: &[u32], all: u32) -> usize {
        let comm = self.communicator(job_ranks);
        self.comms[comm].1 = all;
        comm
    }

    fn op(&mut self, comm: usize, job_rank: u32, depth: u32, change: &dyn Fn(u32, &mut Signature)) {
        let (hash, nranks, members, next) = &mut self.comms[comm];
        let rank = members.iter().position(|r| *r == job_rank).unwrap();
        let seq = next[rank];
        next[rank] += 1;
        let ident = Ident {
            hash: *hash,
            rank: rank as u32,
            nranks: *nranks,
            cuda_dev: 0,
            nvml_dev: 0,
            bus_id: 0x1b000 + i64::from(job_rank),
        };
        let mut signature = Signature { func: Func::AllReduce, count: 1000, datatype: 7, redop: 0, root: 0 };
        change(job_rank, &mut signature);
        let proc = ProcId { host: HostId(job_rank / self.ranks_each), ..proc(job_rank) };
        let comm = CommRef { proc, tid: 100 + job_rank, ptr: *hash << 8, ident: Some(ident) };
        self.send_event(Body::Op(Op {
            comm,
            seq,
            absolute: true,
            collective: true,
            empty: false,
            signature,
            peer: None,
            stream: 0,
            depth,
        }));
    }

    /// The given job ranks launch on a communicator.
    pub(crate) fn launch_on(&mut self, comm: usize, job_ranks: &[u32]) {
        for r in job_ranks {
            self.op(comm, *r, 0, &|_, _| ());
        }
    }

    /// `n` collectives on all ranks, `ms` apart.
    pub(crate) fn rounds(&mut self, n: u32, ms: u64) {
        for _ in 0..n {
            self.round_without(&[], ms);
        }
    }

    /// One collective on all ranks but these.
    pub(crate) fn round_without(&mut self, absent: &[u32], ms: u64) {
        let all: Vec<u32> = self.comms[0].2.iter().copied().filter(|r| !absent.contains(r)).collect();
        self.launch_on(0, &all);
        self.pass(ms);
    }

    /// One collective in which `change` decides what each rank asks for.
    pub(crate) fn round_with(&mut self, change: impl Fn(u32, &mut Signature)) {
        for r in self.comms[0].2.clone() {
            self.op(0, r, 0, &change);
        }
        self.evaluate();
    }

    /// A rank launches what it owes.
    pub(crate) fn catch_up(&mut self, job_rank: u32) {
        self.launch_on(0, &[job_rank]);
        self.evaluate();
    }

    /// A rank calls `n` collectives in a group that it does not end.
    pub(crate) fn queue_in_group(&mut self, job_rank: u32, n: u32) {
        for _ in 0..n {
            self.op(0, job_rank, 1, &|_, _| ());
        }
    }

    /// The rank's GPU has ended the first `n` collectives of a communicator.
    pub(crate) fn ended(&mut self, comm: usize, job_rank: u32, n: u64) {
        let ptr = self.comms[comm].0 << 8;
        self.send_event(Body::Done(Done { proc: proc(job_rank), ptr, collective: true, seq: n - 1 }));
    }

    fn comm_ref(&self, comm: usize, job_rank: u32) -> CommRef {
        let (hash, nranks, members, _) = &self.comms[comm];
        let rank = members.iter().position(|r| *r == job_rank).unwrap() as u32;
        let bus_id = 0x1b000 + i64::from(job_rank);
        let ident = Ident { hash: *hash, rank, nranks: *nranks, cuda_dev: 0, nvml_dev: 0, bus_id };
        CommRef { proc: proc(job_rank), tid: 100 + job_rank, ptr: *hash << 8, ident: Some(ident) }
    }

    /// The first communicator's creation is seen, on all ranks.
    pub(crate) fn create(&mut self) {
        for r in self.comms[0].2.clone() {
            self.send_event(Body::InitEnd { comm: self.comm_ref(0, r), result: 0 });
        }
    }

    /// A rank begins to create the first communicator.
    pub(crate) fn join(&mut self, job_rank: u32) {
        self.send_event(Body::InitBegin(self.comm_ref(0, job_rank)));
    }

    /// The creation ends on a rank.
    pub(crate) fn joined(&mut self, job_rank: u32, result: i32) {
        self.send_event(Body::InitEnd { comm: self.comm_ref(0, job_rank), result });
    }

    /// NCCL holds an error for a rank.
    pub(crate) fn error(&mut self, job_rank: u32, code: i32) {
        self.send_event(Body::CommError { proc: proc(job_rank), ptr: self.comms[0].0 << 8, code });
    }

    pub(crate) fn abort(&mut self, job_rank: u32) {
        self.send_event(Body::Abort(self.comm_ref(0, job_rank)));
    }

    /// Events of the host are lost, and made good or not.
    pub(crate) fn lose(&mut self, made_good: bool) {
        self.send_event(Body::Loss { host: HostId(0), lost: 10 });
        if made_good {
            self.now += 1;
            self.send_event(Body::Reconciled { host: HostId(0) });
        }
    }

    /// A rank sends to another in the first communicator, and that receives.
    pub(crate) fn message(&mut self, from: u32, to: u32, bytes: u64) {
        self.recv(to, from, bytes);
        self.send(from, to, bytes);
    }

    pub(crate) fn send(&mut self, job_rank: u32, to: u32, bytes: u64) {
        self.half(job_rank, Func::Send, to, bytes);
    }

    pub(crate) fn recv(&mut self, job_rank: u32, from: u32, bytes: u64) {
        self.half(job_rank, Func::Recv, from, bytes);
    }

    fn half(&mut self, job_rank: u32, func: Func, peer: u32, count: u64) {
        let comm = self.comm_ref(0, job_rank);
        self.send_event(Body::Op(Op {
            comm,
            seq: 0,
            absolute: false,
            collective: false,
            empty: false,
            signature: Signature { func, count, datatype: 1, redop: 0, root: 0 },
            peer: Some(peer as i32),
            stream: 0,
            depth: 0,
        }));
    }

    pub(crate) fn die(&mut self, job_rank: u32, exit: Exit) {
        self.send_event(Body::ProcessGone { proc: proc(job_rank), exit });
    }

    pub(crate) fn destroy(&mut self, job_rank: u32) {
        let ident = None;
        self.send_event(Body::Destroy(CommRef { proc: proc(job_rank), tid: 1, ptr: self.comms[0].0 << 8, ident }));
    }

    /// The process is found in this state.
    pub(crate) fn stop(&mut self, job_rank: u32, state: char) {
        let activity =
            Activity { at: self.now, state, tid: 100 + job_rank, wchan: None, syscall: None, cpu_ticks: 0, threads: 1 };
        self.send_event(Body::ProcessActivity { proc: proc(job_rank), activity: Box::new(activity) });
    }

    /// A rank's transfers in a ring on channel 0: steps (of 24) ready, sent and done to the next rank; posted, got and
    /// used from the one before.
    pub(crate) fn flow(&mut self, job_rank: u32, send: [u64; 3], recv: [u64; 3]) {
        let n = self.comms[0].1;
        let base = FlowOp {
            number: 1,
            func: Some(Func::AllReduce),
            protocol: Protocol::Simple,
            algorithm: Some(1),
            tree: false,
            begun: true,
            steps: 24,
            slice: 2,
            slice_bytes: 1 << 20,
            base: 480,
            posted: 0,
            ready: send[0],
            received: 0,
            transmitted: send[1],
            consumed: 0,
            done: send[2],
        };
        let sent = FlowOp { posted: (send[2] + 8).min(24), ..base };
        let [posted, got, used] = recv;
        let got = FlowOp { posted, ready: 0, received: got, transmitted: got, consumed: used, done: used, ..base };
        let flow = |way, peer, op| Flow {
            channel: 0,
            peer: Some(peer),
            way,
            parent: false,
            p2p: false,
            transport: Transport::Net,
            net_dev: Some(0),
            steps: Some(504),
            op: Some(op),
            behind: 0,
        };
        let flows = vec![flow(Way::Send, (job_rank + 1) % n, sent), flow(Way::Recv, (job_rank + n - 1) % n, got)];
        self.flows.insert(job_rank, flows);
    }

    /// The rank's progress thread gets no CPU from now on.
    pub(crate) fn starve(&mut self, job_rank: u32) {
        self.starved.insert(job_rank);
    }

    fn report_flows(&mut self) {
        for (job_rank, flows) in self.flows.clone() {
            let ran = if self.starved.contains(&job_rank) { 0 } else { self.now };
            let progress = Progress { tid: 500 + job_rank, ran, waited: self.now, slices: self.now, state: 'R' };
            self.send_event(Body::Flows(Box::new(FlowReport {
                proc: proc(job_rank),
                ptr: self.comms[0].0 << 8,
                at: self.now,
                flows,
                untaken: false,
                net: Some("Socket".to_owned()),
                progress: Some(progress),
            })));
        }
    }

    /// Verdicts in force at the last look.
    pub(crate) fn verdicts(&self) -> &[Verdict] {
        &self.latest
    }

    pub(crate) fn only_verdict(&self) -> &Verdict {
        match self.latest.as_slice() {
            [one] => one,
            many => panic!("expected one verdict, got {:#?}", many.iter().map(|v| &v.headline).collect::<Vec<_>>()),
        }
    }
}

/// xorshift64, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly small, at times anything.
    fn odd(&mut self) -> u64 {
        if self.next().is_multiple_of(8) { self.next() } else { self.next() % 6 }
    }
}

fn event(r: &mut Random) -> Event {
    let proc = ProcId { host: HostId(0), pid: r.odd() as u32 };
    let ident = (!r.next().is_multiple_of(4)).then(|| Ident {
        hash: r.odd(),
        rank: r.odd() as u32,
        nranks: r.odd() as u32,
        cuda_dev: r.odd() as i32,
        nvml_dev: 0,
        bus_id: r.next() as i64,
    });
    let comm = CommRef { proc, tid: r.odd() as u32, ptr: r.odd(), ident };
    let signature =
        Signature { func: Func::from_code(r.odd() as i32), count: r.next(), datatype: 7, redop: 0, root: 0 };
    let body = match r.next() % 12 {
        0 => Body::ProcessGone { proc, exit: Exit::Unknown },
        1 => Body::GroupEnd { proc, tid: comm.tid },
        2 => Body::InitBegin(comm),
        3 => Body::InitEnd { comm, result: 0 },
        4 => Body::Destroy(comm),
        5 => Body::Abort(comm),
        6 => Body::Tick,
        8 => Body::CommFound(Box::new(CommFound {
            comm,
            collectives: Some(r.odd()),
            by_function: Vec::new(),
            name: None,
            init_state: None,
        })),
        9 => Body::Flows(Box::new(FlowReport {
            proc,
            ptr: comm.ptr,
            at: r.odd(),
            flows: Vec::new(),
            untaken: r.next().is_multiple_of(2),
            net: None,
            progress: None,
        })),
        7 => Body::Loss { host: HostId(0), lost: r.next() >> 8 },
        _ => Body::Op(Op {
            comm,
            seq: r.odd(),
            absolute: r.next().is_multiple_of(2),
            collective: !r.next().is_multiple_of(4),
            empty: r.next().is_multiple_of(8),
            signature,
            peer: None,
            stream: 0,
            depth: r.next() as u32 % 2,
        }),
    };
    Event { ts: r.odd(), body }
}

/// Lying processes, lost events, reused addresses: whatever comes, nothing panics and memory stays bounded.
#[test]
fn any_events_in_any_order() {
    let mut r = Random(0x6d79_6372_6f66_7421);
    let mut state = State::default();
    let mut engine = Engine::default();
    for i in 0..50_000 {
        state.apply(&event(&mut r));
        if i % 1000 == 0 {
            engine.evaluate(&state);
        }
    }
    assert!(state.problems.implausible > 0 && state.problems.unidentified > 0);
}
