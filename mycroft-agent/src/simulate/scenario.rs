//! Classes of faults, and of things that are none, each with what is true of it.

mod maker;

use oorandom::Rand64;

use super::{
    config::{Config, Shape},
    fault::{Differs, Fault, Idle, Kind},
    layout::{Group, Layout},
    tell::BEGIN,
};
use crate::event::{
    Exit, Nanos,
    ids::{MILLISECOND, SECOND},
};

/// What is wrong, so that a verdict can be held against it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    /// Rules that name this component: their ids, or words of their names. Empty: nothing is wrong.
    pub rules: &'static [&'static str],
    /// The independent causes: ranks of the job. Of each at least one must be named, and if `exact`, all.
    pub culprits: Vec<Vec<u32>>,
    pub exact: bool,
    /// Ranks that may be named beside them: both ends of a circle, for example.
    pub allowed: Vec<u32>,
    pub at: Nanos,
}

impl Truth {
    /// Whether a verdict that names this rank accuses an innocent one.
    #[must_use]
    pub fn is_innocent(&self, rank: u32) -> bool {
        !self.culprits.iter().flatten().chain(&self.allowed).any(|r| *r == rank)
    }
}

/// A job, what goes wrong with it, and what should be found.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub config: Config,
    pub truth: Truth,
}

/// A kind of scenario.
#[derive(Clone, Copy)]
pub struct Class {
    pub name: &'static str,
    pub about: &'static str,
    /// Fewer ranks do not show it.
    pub least: u32,
    make: fn(&mut Maker),
}

impl std::fmt::Debug for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Class").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Class {
    #[must_use]
    pub fn scenario(&self, seed: u64, ranks: u32) -> Scenario {
        let mut maker = Maker::new(seed ^ name_number(self.name), ranks);
        (self.make)(&mut maker);
        Scenario { config: maker.config, truth: maker.truth }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        CLASSES.iter().find(|c| c.name == name)
    }

    /// Whether something is wrong in it.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        !self.scenario(0, self.least).truth.rules.is_empty()
    }
}

/// So that one seed chooses different ranks in different classes.
fn name_number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Puts a scenario together.
#[derive(Debug)]
struct Maker {
    config: Config,
    truth: Truth,
    random: Rand64,
}

/// Ways of naming a cause for which there may be a rule.
const LATE: &[&str] = &["slow-rank", "straggler", "late"];
const SLOW_LINK: &[&str] = &["slow-link", "slow-nic", "slow-path", "slow-network"];
const PAIRS: &[&str] = &["send", "recv", "peer", "pair"];

const KILLED: Exit = Exit::Signal(9);

/// All classes.
pub const CLASSES: &[Class] = &[
    Class {
        name: "not-entered-asleep",
        about: "a rank sleeps in a system call and launches nothing",
        least: 8,
        make: |m| m.blocked(Idle::Sleeps),
    },
    Class { name: "not-entered-storage", about: "a rank waits for storage", least: 8, make: |m| m.blocked(Idle::Disk) },
    Class {
        name: "not-entered-busy",
        about: "a rank computes on its host and launches nothing",
        least: 8,
        make: |m| m.blocked(Idle::Busy),
    },
    Class {
        name: "late-then-recovers",
        about: "a rank launches nothing for 8 s, then goes on",
        least: 8,
        make: |m| {
            m.blocked(Idle::Sleeps);
            m.config.faults[0].until = Some(m.truth.at + 8 * SECOND);
        },
    },
    Class { name: "dies-killed", about: "a rank's process is killed", least: 8, make: |m| m.dies(KILLED) },
    Class {
        name: "dies-exit",
        about: "a rank's process exits with an error",
        least: 8,
        make: |m| m.dies(Exit::Code(1)),
    },
    Class { name: "stopped", about: "a rank's process is stopped by a signal", least: 8, make: |m| m.stopped(false) },
    Class { name: "debugger", about: "a debugger holds a rank's process", least: 8, make: |m| m.stopped(true) },
    Class {
        name: "other-function",
        about: "a rank calls another collective",
        least: 8,
        make: |m| m.differs(Group::World, Differs::Function),
    },
    Class {
        name: "other-count",
        about: "a rank calls with another count",
        least: 8,
        make: |m| m.differs(Group::World, Differs::Count),
    },
    Class {
        name: "other-datatype",
        about: "a rank calls with another datatype",
        least: 8,
        make: |m| m.differs(Group::World, Differs::Datatype),
    },
    Class {
        name: "other-root",
        about: "a rank names another root of a broadcast",
        least: 64,
        make: |m| m.differs(Group::Tp, Differs::Root),
    },
    Class {
        name: "one-call-fewer",
        about: "a rank leaves out one data parallel operation",
        least: 16,
        make: |m| {
            let rank = m.rank();
            m.fault(Kind::Drifts { rank, group: Group::Dp }, &["MYC001", "MYC004", "number", "count"], vec![rank]);
            m.config.faults[0].until = Some(m.truth.at + m.config.workload.step);
        },
    },
    Class {
        name: "count-drifts",
        about: "a rank leaves out, in each step, an operation for which nobody waits",
        least: 16,
        make: |m| {
            let rank = m.rank();
            m.steps_more(10);
            m.fault(Kind::Drifts { rank, group: Group::Coord }, &["MYC001", "drift", "number", "count"], vec![rank]);
        },
    },
    Class {
        name: "order-swapped",
        about: "a rank calls two communicators in another order than the others",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.fault(Kind::Swapped { rank }, &["deadlock", "order", "circle"], vec![rank]);
            // A circle needs two; of two alone none is the odd one.
            let (comm, _) = m.layout().comm(Group::Dp, rank);
            m.truth.allowed = m.layout().members(comm).collect();
        },
    },
    Class {
        name: "send-without-recv",
        about: "a rank leaves out a receive",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.fault(Kind::NoRecv { rank }, PAIRS, vec![rank]);
            m.truth.allowed = beside(m, rank);
        },
    },
    Class {
        name: "wrong-peer",
        about: "a rank sends to another rank than the one that waits for it",
        least: 64,
        make: |m| {
            let rank = m.rank();
            m.fault(Kind::WrongPeer { rank }, PAIRS, vec![rank]);
            m.truth.allowed = beside(m, rank);
        },
    },
    Class {
        name: "wrong-size",
        about: "a rank expects more bytes than its peer sends",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.fault(Kind::WrongSize { rank }, PAIRS, vec![rank]);
            m.truth.allowed = beside(m, rank);
        },
    },
    Class {
        name: "gpu-stands-still",
        about: "a rank's GPU does not go on in an operation over the network",
        least: 8,
        make: |m| {
            let rank = m.at_edge(Group::Dp);
            m.fault(Kind::GpuStill { rank, group: Some(Group::Dp) }, &["MYC005"], vec![rank]);
        },
    },
    Class {
        name: "proxy-starved",
        about: "a rank's proxy thread gets no CPU",
        least: 8,
        make: |m| {
            let rank = m.at_edge(Group::Dp);
            m.fault(Kind::ProxyStarved { rank }, &["MYC006"], vec![rank]);
        },
    },
    Class {
        name: "link-cut",
        about: "what a rank sends to the next does not arrive",
        least: 8,
        make: |m| {
            let (from, to) = m.link();
            m.fault(Kind::LinkCut { from, to, both: false }, &["MYC007", "MYC008"], vec![from, to]);
            m.truth.exact = false;
        },
    },
    Class {
        name: "link-cut-both-ways",
        about: "nothing passes between two ranks",
        least: 8,
        make: |m| {
            let (from, to) = m.link();
            m.fault(Kind::LinkCut { from, to, both: true }, &["MYC007", "MYC008"], vec![from, to]);
            m.truth.exact = false;
        },
    },
    Class {
        name: "nic-down",
        about: "a rank's network card is down (the paper's fault 1)",
        least: 8,
        make: |m| {
            let (rank, next) = m.link();
            m.fault(Kind::NicDown { rank }, &["MYC007", "MYC008"], vec![rank]);
            // What is sent to it does not arrive either.
            let layout = m.layout();
            let mut near = vec![next];
            for group in [Group::Dp, Group::Ep, Group::Pp, Group::World] {
                let (comm, member) = layout.comm(group, rank);
                let n = layout.size(group);
                near.extend([layout.rank(comm, (member + n - 1) % n), layout.next(group, rank)]);
            }
            m.truth.allowed = near;
        },
    },
    Class {
        name: "slow-nic",
        about: "a rank's network card is limited to an eighth (the paper's fault 2)",
        least: 8,
        make: |m| {
            let (rank, next) = m.link();
            m.slow_net(Kind::SlowNic { rank, factor: 8 }, vec![rank, next]);
        },
    },
    Class {
        name: "slow-link",
        about: "one link is eight times slower",
        least: 8,
        make: |m| {
            let (from, to) = m.link();
            m.slow_net(Kind::SlowLink { from, to, factor: 8 }, vec![from, to]);
        },
    },
    Class {
        name: "pcie-downgrade",
        about: "copies of a rank's GPU are slower: a little late in each step (the paper's fault 3)",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.slow(Kind::SlowGpu { rank, extra: 150 * MILLISECOND }, vec![rank]);
        },
    },
    Class {
        name: "gpu-power-limit",
        about: "a rank's GPU computes slower: late in each step (the paper's fault 4)",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.slow(Kind::SlowGpu { rank, extra: 400 * MILLISECOND }, vec![rank]);
        },
    },
    Class {
        name: "background-computation",
        about: "all GPUs of a host are late in each step (the paper's fault 5)",
        least: 16,
        make: |m| {
            let host = m.random.rand_range(0..u64::from(m.layout().hosts())) as u32;
            let ranks = m.on_host(host);
            m.slow(Kind::SlowMachine { host, extra: 400 * MILLISECOND }, ranks);
            m.truth.exact = false;
        },
    },
    Class {
        name: "background-traffic",
        about: "other traffic on the cards of two hosts (the paper's fault 6)",
        least: 16,
        make: |m| {
            for host in [0, m.layout().hosts() / 2] {
                let ranks = m.on_host(host);
                let next = ranks.iter().map(|r| m.layout().next(Group::Dp, *r)).collect::<Vec<_>>();
                m.slow_net(Kind::SlowMachineNet { host, factor: 6 }, ranks);
                m.truth.allowed.extend(next);
            }
        },
    },
    Class {
        name: "proxy-delay",
        about: "a rank's proxy sleeps for a second, once a step (the paper's fault 7)",
        least: 8,
        make: |m| {
            let rank = m.at_edge(Group::Dp);
            m.slow_net(Kind::ProxyDelay { rank, extra: SECOND }, vec![rank]);
        },
    },
    Class {
        name: "slow-host-thread",
        about: "a rank's host needs 400 ms more in each step",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.slow(Kind::SlowHostThread { rank, extra: 400 * MILLISECOND }, vec![rank]);
        },
    },
    Class {
        name: "whole-job-slow",
        about: "all ranks compute at half their speed",
        least: 8,
        make: |m| {
            m.steps_more(40);
            m.fault(Kind::JobSlow { percent: 200 }, &["job-slow", "whole-job"], Vec::new());
            m.truth.culprits.clear();
        },
    },
    Class {
        name: "aborted-with-error",
        about: "NCCL fails on a rank, then on its peers; all abort",
        least: 8,
        make: |m| {
            let rank = m.at_edge(Group::Dp);
            m.fault(Kind::Errors { rank }, &["abort", "error"], vec![rank]);
        },
    },
    Class {
        name: "init-stuck",
        about: "a rank does not join the creation of a communicator",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.truth.at = BEGIN + 2 * SECOND;
            m.config.length = 40 * SECOND;
            m.fault(Kind::InitAbsent { rank, group: Group::Dp }, &["init", "join"], vec![rank]);
        },
    },
    Class {
        name: "two-faults",
        about: "one rank is killed while another is stopped",
        least: 16,
        make: |m| {
            let (a, b) = m.two_apart();
            m.fault(Kind::Dies { rank: a, exit: KILLED }, &[], vec![a]);
            m.fault(Kind::Stopped { rank: b, debugger: false }, &["MYC002", "MYC003"], vec![b]);
        },
    },
    Class {
        name: "two-ranks-absent",
        about: "two ranks of different groups stop launching",
        least: 16,
        make: |m| {
            let (a, b) = m.two_apart();
            m.fault(Kind::HostBlocked { rank: a, idle: Idle::Sleeps }, &[], vec![a]);
            m.fault(Kind::HostBlocked { rank: b, idle: Idle::Busy }, &["MYC001"], vec![b]);
        },
    },
    Class {
        name: "three-faults",
        about: "one rank is killed, one stopped, one absent",
        least: 64,
        make: |m| {
            let (a, b) = m.two_apart();
            let mut c = m.rank();
            while [a, b].iter().any(|r| m.layout().host(*r) == m.layout().host(c)) {
                c = (c + 1) % m.layout().world();
            }
            m.fault(Kind::Dies { rank: a, exit: KILLED }, &[], vec![a]);
            m.fault(Kind::Stopped { rank: b, debugger: false }, &[], vec![b]);
            m.fault(Kind::HostBlocked { rank: c, idle: Idle::Sleeps }, &["MYC001", "MYC002", "MYC003"], vec![c]);
        },
    },
    Class { name: "healthy", about: "nothing is wrong", least: 8, make: |m| m.nothing() },
    Class {
        name: "checkpoints",
        about: "all ranks write for about 15 s every few steps",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.checkpoint_every = 5;
            m.config.length = 120 * SECOND;
        },
    },
    Class {
        name: "evaluations",
        about: "forward passes alone, every few steps",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.evaluate_every = 4;
            m.config.length = 90 * SECOND;
        },
    },
    Class {
        name: "compile",
        about: "the first step takes a minute, a little different on each rank",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.compile = 40 * SECOND;
            m.config.length = 90 * SECOND;
        },
    },
    Class {
        name: "idle-inference",
        about: "an inference server without requests for up to 45 s",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.shape = Shape::Inference;
            m.config.length = 200 * SECOND;
        },
    },
    Class {
        name: "pipeline-bubbles",
        about: "one microbatch in a pipeline: most stages wait most of the time",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.micro = 1;
            m.config.workload.step = 4 * SECOND;
            m.config.length = 90 * SECOND;
        },
    },
    Class {
        name: "job-end",
        about: "the job ends: communicators are destroyed, processes exit",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.steps = Some(10);
            m.config.length += 20 * SECOND;
        },
    },
    Class {
        name: "teardown-stuck",
        about: "the job has ended and two ranks do not come back from tearing down",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.steps = Some(10);
            m.config.workload.teardown_stuck = vec![0, 4];
            m.config.length += 20 * SECOND;
        },
    },
    Class {
        name: "one-writer",
        about: "a checkpoint that rank 0 writes for 6 s longer than the others",
        least: 8,
        make: |m| {
            m.nothing();
            m.config.workload.checkpoint_every = 6;
            m.config.workload.writer_extra = 6 * SECOND;
            m.config.length = 100 * SECOND;
        },
    },
    Class {
        name: "gpu-stands-still-nvlink",
        about: "a rank's GPU does not go on in an operation within its host, of which nothing is seen",
        least: 8,
        make: |m| {
            let rank = m.rank();
            m.fault(Kind::GpuStill { rank, group: Some(Group::Tp) }, &["MYC005"], vec![rank]);
        },
    },
];

/// Ranks with which a rank exchanges messages in its pipeline.
fn beside(m: &Maker, rank: u32) -> Vec<u32> {
    let (layout, (comm, member)) = (m.layout(), m.layout().comm(Group::Pp, rank));
    let near = [member.checked_sub(1), (member + 1 < layout.pp).then_some(member + 1)];
    near.into_iter().flatten().map(|p| layout.rank(comm, p)).collect()
}
