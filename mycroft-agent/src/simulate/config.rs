//! What is simulated.

use super::{fault::Fault, layout::Layout};
use crate::event::{
    Nanos,
    ids::{MILLISECOND, SECOND},
};

/// A job and what is seen of it.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub layout: Layout,
    pub workload: Workload,
    /// How long it is watched.
    pub length: Nanos,
    pub faults: Vec<Fault>,
    pub seen: Seen,
}

/// What the ranks do.
#[derive(Clone, Debug)]
pub struct Workload {
    pub shape: Shape,
    /// Length of a step, about.
    pub step: Nanos,
    /// Microbatches a step.
    pub micro: u32,
    /// Tensor parallel operations in each pass of a microbatch.
    pub tp_ops: u32,
    /// How much longer the first step takes, on each rank a little different.
    pub compile: Nanos,
    /// A checkpoint every so many steps; 0: none.
    pub checkpoint_every: u32,
    /// How long a rank writes.
    pub checkpoint: Nanos,
    /// So much longer on rank 0, for which the others wait.
    pub writer_extra: Nanos,
    /// An evaluation every so many steps; 0: none.
    pub evaluate_every: u32,
    /// Steps after which the job ends; `None`: never.
    pub steps: Option<u32>,
    /// At the end these ranks do not come back from tearing down their communicators.
    pub teardown_stuck: Vec<u32>,
    /// Standard deviation of compute times, in thousandths.
    pub jitter: u32,
}

/// The kind of job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Steps of a pipeline of tensor parallel stages, with data parallel copies.
    Training,
    /// Requests that come at random and are answered by the ranks of each tensor parallel group together.
    Inference,
}

/// What reaches the analyser, and how.
#[derive(Clone, Debug)]
pub struct Seen {
    /// In thousandths.
    pub loss: u32,
    /// A host of which nothing is seen.
    pub missing_host: Option<u32>,
    /// Hosts' clocks are off by so much at most.
    pub clock_error: Nanos,
    /// Operations' ends are seen.
    pub completions: bool,
    /// Between two looks at the transfers of a rank.
    pub flow_period: Nanos,
    /// Between two looks at each process.
    pub look_period: Nanos,
    pub tick: Nanos,
}

impl Config {
    /// A healthy training job of so many ranks.
    #[must_use]
    pub fn healthy(seed: u64, ranks: u32, length: Nanos) -> Self {
        let layout = Layout::of(ranks);
        Self { seed, layout, workload: Workload::training(&layout), length, faults: Vec::new(), seen: Seen::of(ranks) }
    }

    /// The same job with few events, for long runs.
    #[must_use]
    pub fn sparse(mut self) -> Self {
        self.workload.step = 30 * SECOND;
        self.workload.micro = 2;
        self.workload.tp_ops = 1;
        self.seen.flow_period = 4 * SECOND;
        self.seen.look_period = 10 * SECOND;
        self
    }
}

impl Workload {
    #[must_use]
    pub fn training(layout: &Layout) -> Self {
        Self {
            shape: Shape::Training,
            step: match layout.world() {
                0..=64 => 1200 * MILLISECOND,
                65..=1024 => 1800 * MILLISECOND,
                _ => 4 * SECOND,
            },
            micro: if layout.pp <= 4 { 4 } else { 6 },
            tp_ops: if layout.world() <= 64 { 4 } else { 2 },
            compile: 5 * SECOND,
            checkpoint_every: 0,
            checkpoint: 15 * SECOND,
            writer_extra: 0,
            evaluate_every: 0,
            steps: None,
            teardown_stuck: Vec::new(),
            jitter: 10,
        }
    }
}

impl Seen {
    #[must_use]
    pub fn of(ranks: u32) -> Self {
        // A host looks at its own eight ranks at the usual pace; beyond 1,024 the simulation thins that out.
        let flow_period = match ranks {
            0..=256 => 200 * MILLISECOND,
            257..=1024 => 500 * MILLISECOND,
            1025..=4096 => SECOND,
            _ => 2 * SECOND,
        };
        Self {
            loss: 0,
            missing_host: None,
            clock_error: 2 * MILLISECOND,
            completions: false,
            flow_period,
            look_period: if ranks <= 1024 { SECOND } else { 5 * SECOND },
            tick: 250 * MILLISECOND,
        }
    }
}
