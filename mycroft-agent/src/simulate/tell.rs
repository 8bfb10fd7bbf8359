//! From what happens to what is seen: hosts' clocks, events that are lost, hosts that nobody looks at.

use std::collections::VecDeque;

use oorandom::Rand64;

use super::{
    config::Config,
    layout::{CommIx, Group, Layout},
};
use crate::event::{
    Body, CommRef, Event, HostId, Ident, Nanos, Op, Origin, ProcId, Process,
    ids::{MILLISECOND, SECOND},
};

/// Time at which every simulated job begins.
pub const BEGIN: Nanos = 1_000 * SECOND;
/// A full ring buffer loses what comes until it is drained: losses come in runs of so many on average.
const RUN: u64 = 32;
/// So long after it the agent notices and reads the newest state.
pub(super) const MEND_AFTER: Nanos = 50 * MILLISECOND;

/// One host's part.
#[derive(Clone, Debug, Default)]
struct Host {
    missing: bool,
    /// How far its clock is ahead (or behind).
    offset: i64,
    /// Events lost and not told yet.
    lost: u64,
    /// So many more are lost.
    run: u64,
}

/// Where events go out.
#[derive(Debug)]
pub(super) struct Teller {
    layout: Layout,
    seed: u64,
    out: VecDeque<Event>,
    hosts: Vec<Host>,
    /// In thousandths.
    loss: u64,
    random: Rand64,
    /// Each rank's newest operation on each communicator, as the kernel keeps it; empty unless something can be lost.
    newest: Vec<[Option<(Nanos, Op)>; Group::COUNT]>,
}

impl Teller {
    pub(super) fn new(config: &Config) -> Self {
        let layout = config.layout;
        let mut random = Rand64::new(u128::from(config.seed) ^ 0x7465_6c6c);
        let error = config.seen.clock_error;
        let hosts = (0..layout.hosts()).map(|h| Host {
            missing: config.seen.missing_host == Some(h),
            // The analyser's own clock is the first host's.
            offset: if h == 0 || error == 0 { 0 } else { random.rand_range(0..2 * error) as i64 - error as i64 },
            ..Host::default()
        });
        let hosts = hosts.collect();
        let loss = u64::from(config.seen.loss);
        let kept = if loss > 0 { layout.world() as usize } else { 0 };
        let mut teller = Self {
            layout,
            seed: config.seed,
            out: VecDeque::new(),
            hosts,
            loss,
            random,
            newest: vec![[None; Group::COUNT]; kept],
        };
        teller.introduce(error);
        teller
    }

    fn introduce(&mut self, error: Nanos) {
        for h in 0..self.layout.hosts() {
            let host = HostId(h);
            self.tell(h, BEGIN, Body::Host { host, name: host_name(h) });
            self.tell(h, BEGIN, Body::Clock { host, error });
        }
        for rank in 0..self.layout.world() {
            let process = Process {
                name: "python3".to_owned(),
                command: "python3 pretrain.py".to_owned(),
                nccl: "2.27.5".to_owned(),
                job_rank: Some(rank),
                ..Process::unknown(proc(&self.layout, rank), Origin::Synthetic)
            };
            self.tell(self.layout.host(rank), BEGIN, Body::ProcessSeen(Box::new(process)));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.out.pop_front()
    }

    /// Something that is not lost.
    pub(super) fn tell(&mut self, host: u32, t: Nanos, body: Body) {
        if let Some(h) = self.hosts.get(host as usize).filter(|h| !h.missing) {
            self.out.push_back(Event { ts: t.saturating_add_signed(h.offset), body });
        }
    }

    /// The analyser's own.
    pub(super) fn tick(&mut self, t: Nanos) {
        self.out.push_back(Event { ts: t, body: Body::Tick });
    }

    /// An operation, which the kernel notes before it sends it. Whether it was the first to be lost.
    pub(super) fn op(&mut self, rank: u32, group: Group, t: Nanos, op: Op) -> bool {
        if let Some(kept) = self.newest.get_mut(rank as usize) {
            kept[group.index()] = Some((t, op));
        }
        self.record(rank, t, Body::Op(op))
    }

    /// What comes through the ring buffer. Whether it was the first to be lost.
    pub(super) fn record(&mut self, rank: u32, t: Nanos, body: Body) -> bool {
        let host = self.layout.host(rank);
        if self.loss > 0 {
            let begins = self.random.rand_range(0..1000 * RUN) < self.loss;
            let h = &mut self.hosts[host as usize];
            if begins {
                h.run = self.random.rand_range(1..2 * RUN);
            }
            if h.run > 0 {
                h.run -= 1;
                h.lost += 1;
                return h.lost == 1;
            }
        }
        self.tell(host, t, body);
        false
    }

    /// The agent has noticed a loss: it tells of it, and the newest state of all its ranks.
    pub(super) fn mend(&mut self, host: u32, t: Nanos) {
        let lost = std::mem::take(&mut self.hosts[host as usize].lost);
        self.tell(host, t, Body::Loss { host: HostId(host), lost });
        let first = host * self.layout.per_host;
        let ranks = first..(first + self.layout.per_host).min(self.layout.world());
        let mut ops: Vec<(Nanos, Op)> =
            ranks.filter_map(|r| self.newest.get(r as usize)).flatten().flatten().copied().collect();
        ops.sort_by_key(|(at, _)| *at);
        for (at, op) in ops {
            self.tell(host, at, Body::Op(op));
        }
        self.tell(host, t, Body::Reconciled { host: HostId(host) });
    }

    /// A communicator that a rank has left is in the kernel's map no more.
    pub(super) fn forget(&mut self, rank: u32) {
        if let Some(kept) = self.newest.get_mut(rank as usize) {
            *kept = [None; Group::COUNT];
        }
    }

    /// A rank's handle on its communicator of a kind.
    pub(super) fn handle(&self, rank: u32, group: Group, known: bool) -> CommRef {
        let proc = proc(&self.layout, rank);
        CommRef { proc, tid: proc.pid, ptr: address(group), ident: known.then(|| self.ident(rank, group)) }
    }

    fn ident(&self, rank: u32, group: Group) -> Ident {
        let (comm, member) = self.layout.comm(group, rank);
        let device = (rank % self.layout.per_host) as i32;
        Ident {
            hash: hash(self.seed, comm),
            rank: member,
            nranks: self.layout.size(group),
            cuda_dev: device,
            nvml_dev: device,
            bus_id: (0x1b_i64 + 0x10 * i64::from(device)) << 12,
        }
    }
}

/// The name under which a simulated host is known.
#[must_use]
pub fn host_name(host: u32) -> String {
    format!("sim{host:05}")
}

/// Process of a rank. Hosts are images of each other, so process ids repeat from host to host.
#[must_use]
pub(super) fn proc(layout: &Layout, rank: u32) -> ProcId {
    let host = layout.host(rank);
    ProcId { host: HostId(host), pid: 4000 + rank % layout.per_host * 100 + host % 3 }
}

/// Where a rank's handle lies in its process.
pub(super) const fn address(group: Group) -> u64 {
    0x7f00_0000_0000 + ((group as u64 + 1) << 24)
}

/// The communicator's hash.
fn hash(seed: u64, comm: CommIx) -> u64 {
    mix(seed ^ mix((comm.group as u64) << 32 | u64::from(comm.ix)))
}

/// A number that looks like no other, made of one: SplitMix64's last step.
pub(super) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
