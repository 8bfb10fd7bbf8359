//! What a rank does, as a list of instructions for each pipeline stage and each part of a job's life.

use mycroft_common::nccl::Func;

use super::{
    config::{Shape, Workload},
    layout::{Fourth, Group, Layout},
};
use crate::event::{
    Nanos, Signature, Way,
    ids::{MICROSECOND, MILLISECOND},
};

/// One thing that a rank's host does.
#[derive(Clone, Debug, PartialEq)]
pub enum Instr {
    InitBegin(Group),
    InitEnd(Group),
    /// The host is busy for about so long.
    Host(Nanos),
    /// Hands work to the GPU, to be done before its next operation.
    Compute(Nanos),
    Collective(Call),
    /// Sends and receives launched as one, with the rank of the peer in the communicator.
    Messages(Group, Vec<(Way, u32)>),
    /// Waits until the GPU has done all that it was given on its main stream.
    Sync,
    /// Something that only happens at times, and may take long.
    Pause(Pause),
    StepEnd,
    /// Leaves all communicators and exits.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Once, in the first step.
    Compile,
    Checkpoint,
    /// Until the next request comes.
    Request,
}

/// A collective to be called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    pub group: Group,
    pub signature: Signature,
    /// How long it takes once all are there.
    pub takes: Nanos,
    /// On a stream of its own, for which the main one does not wait.
    pub aside: bool,
}

/// The instructions of one pipeline stage.
#[derive(Clone, Debug)]
pub struct Program {
    pub start: Vec<Instr>,
    pub step: Vec<Instr>,
    pub evaluation: Vec<Instr>,
    pub checkpoint: Vec<Instr>,
    pub finish: Vec<Instr>,
}

impl Program {
    #[must_use]
    pub fn of(layout: &Layout, work: &Workload, stage: u32) -> Self {
        let writer = Writer::new(layout, work, stage);
        let groups = Group::ALL.into_iter().filter(|g| layout.size(*g) > 1);
        let mut start: Vec<Instr> = groups.flat_map(|g| [Instr::InitBegin(g), Instr::InitEnd(g)]).collect();
        start.push(Instr::StepEnd);
        let barrier = [Instr::Collective(world(1)), Instr::Sync, Instr::StepEnd];
        let checkpoint = [Instr::Sync, Instr::Pause(Pause::Checkpoint)].into_iter().chain(barrier.clone()).collect();
        let (step, evaluation) = match work.shape {
            Shape::Training => (writer.clone().training(), writer.evaluation()),
            Shape::Inference => (writer.request(), Vec::new()),
        };
        Self { start, step, evaluation, checkpoint, finish: vec![Instr::Sync, Instr::Finish] }
    }
}

/// A collective over all ranks, as a job does once a step for its log.
fn world(count: u64) -> Call {
    Call { group: Group::World, signature: signature(Func::AllReduce, count), takes: MILLISECOND, aside: false }
}

fn signature(func: Func, count: u64) -> Signature {
    // ncclBfloat16, ncclSum
    Signature { func, count, datatype: 9, redop: 0, root: 0 }
}

/// Writes the instructions of a stage.
#[derive(Clone)]
struct Writer<'a> {
    layout: &'a Layout,
    work: &'a Workload,
    stage: u32,
    /// Time of a microbatch in one stage, forward; backward is twice that.
    forward: Nanos,
    out: Vec<Instr>,
}

impl<'a> Writer<'a> {
    fn new(layout: &'a Layout, work: &'a Workload, stage: u32) -> Self {
        // An eighth of a step is for data parallel operations and what comes between steps.
        let slots = u64::from(work.micro + layout.pp - 1);
        let forward = work.step / 8 * 7 / slots / 3;
        Self { layout, work, stage, forward, out: Vec::new() }
    }

    fn last(&self) -> bool {
        self.stage + 1 == self.layout.pp
    }

    /// One forward one backward, as Megatron schedules it.
    fn training(mut self) -> Vec<Instr> {
        let (micro, warm) = (self.work.micro, (self.layout.pp - 1 - self.stage).min(self.work.micro));
        let steady = micro - warm;
        self.out.push(Instr::Host(5 * MILLISECOND));
        self.out.push(Instr::Pause(Pause::Compile));
        self.coordinate();
        self.share_batch();
        for _ in 0..warm {
            self.messages(&[self.recv_from_before()]);
            self.pass(1);
            self.messages(&[self.to_next()]);
        }
        if steady > 0 {
            self.messages(&[self.recv_from_before()]);
        }
        for i in 0..steady {
            self.pass(1);
            self.messages(&[self.to_next(), self.recv_from_next()]);
            self.pass(2);
            let more = (i + 1 < steady).then(|| self.recv_from_before()).flatten();
            self.messages(&[self.to_before(), more]);
        }
        for _ in 0..warm {
            self.messages(&[self.recv_from_next()]);
            self.pass(2);
            self.messages(&[self.to_before()]);
        }
        self.optimise();
        self.out
    }

    /// Forward passes only, and one number for all.
    fn evaluation(mut self) -> Vec<Instr> {
        for _ in 0..self.work.micro {
            self.messages(&[self.recv_from_before()]);
            self.pass(1);
            self.messages(&[self.to_next()]);
        }
        self.out.extend([Instr::Collective(world(2)), Instr::Sync, Instr::StepEnd]);
        self.out
    }

    /// An inference server: nothing for a while, then many small operations.
    fn request(mut self) -> Vec<Instr> {
        self.out.extend([Instr::Sync, Instr::Pause(Pause::Request)]);
        for _ in 0..8 {
            self.pass(1);
        }
        self.out.extend([Instr::Sync, Instr::StepEnd]);
        self.out
    }

    fn to_next(&self) -> Option<(Way, u32)> {
        (!self.last()).then(|| (Way::Send, self.stage + 1))
    }

    fn recv_from_next(&self) -> Option<(Way, u32)> {
        (!self.last()).then(|| (Way::Recv, self.stage + 1))
    }

    fn to_before(&self) -> Option<(Way, u32)> {
        (self.stage > 0).then(|| (Way::Send, self.stage - 1))
    }

    fn recv_from_before(&self) -> Option<(Way, u32)> {
        (self.stage > 0).then(|| (Way::Recv, self.stage - 1))
    }

    fn messages(&mut self, list: &[Option<(Way, u32)>]) {
        let list: Vec<_> = list.iter().flatten().copied().collect();
        if !list.is_empty() {
            self.out.extend([Instr::Messages(Group::Pp, list), Instr::Sync]);
        }
    }

    /// A microbatch through the stage: `cost` 1 forward, 2 backward.
    fn pass(&mut self, cost: u64) {
        let parts = u64::from(self.work.tp_ops.max(1));
        let call = |group, func, count, takes| {
            Instr::Collective(Call { group, signature: signature(func, count), takes, aside: false })
        };
        for i in 0..parts {
            self.out.push(Instr::Compute(self.forward * cost / parts));
            if self.layout.tp > 1 {
                let func = if i % 2 == 0 { Func::AllGather } else { Func::ReduceScatter };
                self.out.push(call(Group::Tp, func, 4_194_304 / cost, 300 * MICROSECOND));
            }
        }
        if self.layout.ep > 1 && self.work.shape == Shape::Training {
            match self.layout.fourth {
                Fourth::Context => self.out.push(call(Group::Ep, Func::AllGather, 1_048_576, 2 * MILLISECOND)),
                Fourth::Experts => self.out.push(Instr::Messages(Group::Ep, Vec::new())),
            }
        }
    }

    /// The first rank of a tensor parallel group reads the data for all.
    fn share_batch(&mut self) {
        if self.layout.tp > 1 {
            let signature = signature(Func::Broadcast, 8192);
            let takes = 200 * MICROSECOND;
            self.out.push(Instr::Collective(Call { group: Group::Tp, signature, takes, aside: false }));
        }
    }

    /// What takes part in a step without anybody waiting for it.
    fn coordinate(&mut self) {
        let call = Call {
            group: Group::Coord,
            signature: signature(Func::AllReduce, 8),
            takes: 200 * MICROSECOND,
            aside: true,
        };
        self.out.push(Instr::Collective(call));
    }

    /// The end of a step: gradients, parameters, one number for the log.
    fn optimise(&mut self) {
        let takes = self.work.step / 24;
        let dp = |func| {
            Instr::Collective(Call { group: Group::Dp, signature: signature(func, 67_108_864), takes, aside: false })
        };
        self.out.extend([
            dp(Func::ReduceScatter),
            Instr::Compute(self.work.step / 48),
            dp(Func::AllGather),
            Instr::Collective(world(1)),
            Instr::Sync,
            Instr::Host(self.work.step / 48),
            Instr::StepEnd,
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(program: &Program, way: Way, peer: u32) -> usize {
        let of = |i: &Instr| match i {
            Instr::Messages(Group::Pp, list) => list.iter().filter(|m| **m == (way, peer)).count(),
            _ => 0,
        };
        program.step.iter().map(of).sum()
    }

    #[test]
    fn what_a_stage_sends_the_next_one_receives() {
        for ranks in [8, 64, 1024, 16384] {
            let layout = Layout::of(ranks);
            let work = Workload::training(&layout);
            let stages: Vec<Program> = (0..layout.pp).map(|s| Program::of(&layout, &work, s)).collect();
            for stage in 0..layout.pp - 1 {
                let (here, next) = (&stages[stage as usize], &stages[stage as usize + 1]);
                let sent = messages(here, Way::Send, stage + 1);
                assert_eq!(sent, work.micro as usize);
                assert_eq!(sent, messages(next, Way::Recv, stage));
                assert_eq!(messages(next, Way::Send, stage), messages(here, Way::Recv, stage + 1));
            }
        }
    }
}
