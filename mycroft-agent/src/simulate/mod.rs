//! Simulated clusters: the events of training jobs of 8 to 16,384 ranks, with faults, for what no machine at hand can run.
//!
//! Owns: the course of a job and what an agent on each host would tell of it. Must not: know how events are judged. It is
//! a source of events like `ingest`, computes only, and gives the same events for the same [`Config`]. What is simulated
//! and what is not: docs/simulation.md.
//!
//! Hosts run through their programs by a queue of times. GPUs need none: an operation ends when the last of its ranks has
//! come to it plus the time that it takes, and both are known as soon as that rank has launched it.

mod comms;
pub mod config;
pub mod fault;
mod gpu;
mod host;
pub mod incidents;
pub mod layout;
mod look;
mod message;
pub mod program;
mod rank;
mod ring;
pub mod scenario;
mod tell;
mod transfers;

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use oorandom::Rand64;

pub use config::{Config, Seen, Shape, Workload};
pub use fault::{Differs, Fault, Idle, Kind};
pub use layout::{Fourth, Group, Layout};
pub use tell::{BEGIN, host_name};

use crate::event::{
    Event, HostId, Nanos, ProcId,
    ids::{MILLISECOND, SECOND},
};
use comms::Comms;
use message::Messages;
use program::Program;
use rank::{Rank, Stream};
use tell::Teller;

/// Looks at all ranks are spread over this many moments of a period.
const SLICES: u32 = 8;

/// Something to be done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    /// A rank's host goes on.
    Host(u32),
    /// A fault shows by itself.
    Fault(usize),
    /// The rest of the job reacts to an error.
    Follow(usize),
    /// A rank that waits to be joined is looked at.
    Joining(u32, Group),
    /// A process ends by itself.
    Exit(u32),
    /// A host's agent notices a loss.
    Mend(u32),
    /// Transfers are looked at.
    Transfers(u32),
    /// Processes are looked at.
    Processes(u32),
    Tick,
}

/// A job that runs. Gives its events in the order in which they reach the analyser.
#[derive(Debug)]
pub struct Simulation {
    config: Config,
    layout: Layout,
    programs: Vec<Arc<Program>>,
    ranks: Vec<Rank>,
    comms: Comms,
    messages: Messages,
    /// Which faults that show once have shown.
    shown: Vec<bool>,
    tasks: BinaryHeap<Reverse<(Nanos, u64, Task)>>,
    /// Tasks so far; those of one time are done in the order in which they were set.
    order: u64,
    now: Nanos,
    /// Operations that have ended and whose ranks' GPUs can go on: rank, stream, when.
    ended: Vec<(u32, Stream, Nanos)>,
    random: Rand64,
    teller: Teller,
}

impl Simulation {
    #[must_use]
    pub fn new(config: Config) -> Self {
        let layout = config.layout;
        let programs = (0..layout.pp).map(|s| Arc::new(Program::of(&layout, &config.workload, s))).collect();
        let comms = Comms::new(&layout, |comm| transfers::watched(&layout, comm));
        let mut simulation = Self {
            layout,
            programs,
            ranks: vec![Rank::default(); layout.world() as usize],
            comms,
            messages: Messages::default(),
            shown: vec![false; config.faults.len()],
            tasks: BinaryHeap::new(),
            order: 0,
            now: BEGIN,
            ended: Vec::new(),
            random: Rand64::new(u128::from(config.seed)),
            teller: Teller::new(&config),
            config,
        };
        simulation.begin();
        simulation
    }

    fn begin(&mut self) {
        for rank in 0..self.layout.world() {
            let start = BEGIN + SECOND + self.random.rand_range(0..500 * MILLISECOND);
            self.ranks[rank as usize].clock = start;
            self.set(start, Task::Host(rank));
        }
        for (i, fault) in self.config.faults.clone().iter().enumerate() {
            self.set(fault.at, Task::Fault(i));
        }
        for slice in 0..SLICES {
            let part = u64::from(slice + 1);
            let seen = &self.config.seen;
            let (flows, looks) = (seen.flow_period, seen.look_period);
            self.set(BEGIN + flows * part / u64::from(SLICES), Task::Transfers(slice));
            self.set(BEGIN + looks * part / u64::from(SLICES), Task::Processes(slice));
        }
        self.set(BEGIN + self.config.seen.tick, Task::Tick);
    }

    fn set(&mut self, at: Nanos, task: Task) {
        self.order += 1;
        self.tasks.push(Reverse((at, self.order, task)));
    }

    /// The process in which a rank of the job runs.
    #[must_use]
    pub fn process(layout: &Layout, rank: u32) -> ProcId {
        tell::proc(layout, rank)
    }

    /// Which rank of the job a process is.
    #[must_use]
    pub fn rank_of(layout: &Layout, host: HostId, pid: u32) -> Option<u32> {
        let first = host.0 * layout.per_host;
        (first..first + layout.per_host).find(|r| tell::proc(layout, *r).pid == pid)
    }

    fn perform(&mut self, t: Nanos, task: Task) {
        let seen = &self.config.seen;
        match task {
            Task::Host(rank) => self.run_host(rank),
            Task::Fault(i) => self.show(i),
            Task::Follow(i) => self.follow(i),
            Task::Joining(rank, group) => self.look_at_joining(rank, group),
            Task::Exit(rank) => self.exit(rank),
            Task::Mend(host) => self.teller.mend(host, t),
            Task::Transfers(slice) => {
                let next = t + seen.flow_period;
                self.look_at_transfers(slice);
                self.set(next, task);
            }
            Task::Processes(slice) => {
                let next = t + seen.look_period;
                self.look_at_processes(slice);
                self.set(next, task);
            }
            Task::Tick => {
                let next = t + seen.tick;
                self.look_at_suspects();
                self.teller.tick(t);
                self.set(next, task);
            }
        }
    }

    /// A number between 0 and 1.
    fn chance(&mut self) -> f64 {
        self.random.rand_float()
    }

    /// About so long: a little more or less by chance.
    fn about(&mut self, span: Nanos) -> Nanos {
        // The sum of a few even chances is near enough to a bell.
        let bell = (0..4).map(|_| self.chance()).sum::<f64>() - 2.0;
        let part = bell * f64::from(self.config.workload.jitter) / 1000.0 * 1.7;
        (span as f64 * (1.0 + part)) as Nanos
    }
}

impl Iterator for Simulation {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.teller.pop() {
                return Some(event);
            }
            let Reverse((t, _, task)) = self.tasks.pop()?;
            if t > BEGIN + self.config.length {
                return None;
            }
            self.now = t;
            self.perform(t, task);
        }
    }
}

#[cfg(test)]
mod tests;
