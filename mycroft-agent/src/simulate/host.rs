//! A rank's host: it runs through its program and launches, ahead of its GPU as far as it may.

use mycroft_common::nccl::Func;

use super::{
    Simulation, Task,
    fault::{Differs, Kind},
    layout::Group,
    program::{Call, Instr, Pause},
    rank::{Part, Stream, Wait, Work},
    tell::{MEND_AFTER, mix},
};
use crate::event::{
    Body, Exit, Nanos, Op, Signature,
    ids::{MICROSECOND, MILLISECOND, SECOND},
};

/// Time of one call.
const CALL: Nanos = 15 * MICROSECOND;
/// Operations that a host may be ahead of its GPU on its main stream.
const AHEAD: usize = 64;
/// And on the other.
const AHEAD_ASIDE: usize = 16;
/// From when on a creation that waits is looked at.
const LOOK_AT_JOINING: Nanos = SECOND;

impl Simulation {
    /// Lets a rank's host go on until it waits or others come first.
    pub(super) fn run_host(&mut self, r: u32) {
        while self.ranks[r as usize].wait == Wait::Nothing {
            let t = self.ranks[r as usize].clock;
            if t > self.now && self.tasks.peek().is_some_and(|first| first.0.0 <= t) {
                self.set(t, Task::Host(r));
                return;
            }
            self.now = self.now.max(t);
            if self.held(r, t) {
                continue;
            }
            self.ranks[r as usize].pausing = None;
            self.instruct(r, t);
        }
    }

    /// Whether a fault keeps the host from going on.
    fn held(&mut self, r: u32, t: Nanos) -> bool {
        for fault in &self.config.faults {
            let whom = match fault.kind {
                Kind::HostBlocked { rank, .. } | Kind::Dies { rank, .. } | Kind::Stopped { rank, .. } => rank,
                _ => continue,
            };
            if whom != r || !fault.active(t) {
                continue;
            }
            match fault.until {
                Some(until) => self.ranks[r as usize].clock = until,
                None => self.ranks[r as usize].wait = Wait::Off,
            }
            return true;
        }
        false
    }

    fn instruct(&mut self, r: u32, t: Nanos) {
        let stage = self.layout.stage(r) as usize;
        let rank = &self.ranks[r as usize];
        let program = self.programs[stage].clone();
        let part = match rank.part {
            Part::Start => &program.start,
            Part::Step => &program.step,
            Part::Evaluation => &program.evaluation,
            Part::Checkpoint => &program.checkpoint,
            Part::Finish => &program.finish,
        };
        let pc = rank.pc;
        let Some(instr) = part.get(pc) else {
            self.ranks[r as usize].wait = Wait::Off;
            return;
        };
        match instr {
            Instr::InitBegin(group) => self.init_begin(r, *group, t),
            Instr::InitEnd(group) => self.init_end(r, *group, t),
            Instr::Host(span) => {
                let extra = self.extra(r, |k| matches!(k, Kind::SlowHostThread { rank, .. } if *rank == r));
                let span = self.about(*span) + extra;
                self.go_on(r, t + span);
            }
            Instr::Compute(span) => self.compute(r, t, *span),
            Instr::Collective(call) => self.collective(r, t, *call, part.get(pc + 1)),
            Instr::Messages(group, list) => self.messages(r, t, *group, list),
            Instr::Sync => self.sync(r, t),
            Instr::Pause(pause) => self.pause(r, t, *pause),
            Instr::StepEnd => self.end_step(r, t),
            Instr::Finish => self.finish(r, t),
        }
    }

    /// On to the next instruction, at a time.
    pub(super) fn go_on(&mut self, r: u32, t: Nanos) {
        let rank = &mut self.ranks[r as usize];
        rank.pc += 1;
        rank.clock = t;
    }

    fn init_begin(&mut self, r: u32, group: Group, t: Nanos) {
        let absent = self
            .config
            .faults
            .iter()
            .any(|f| matches!(f.kind, Kind::InitAbsent { rank, group: g } if rank == r && g == group));
        if absent {
            self.ranks[r as usize].wait = Wait::Off;
            return;
        }
        let comm = self.teller.handle(r, group, false);
        self.record(r, t, Body::InitBegin(comm));
        let (id, _) = self.layout.comm(group, r);
        if let Some(made) = self.comms.get_mut(id).join(t, 20 * MILLISECOND) {
            let layout = self.layout;
            for other in layout.members(id) {
                if self.ranks[other as usize].wait == Wait::Join(group) {
                    self.wake(other, made);
                }
            }
        }
        self.set(t + LOOK_AT_JOINING, Task::Joining(r, group));
        self.go_on(r, t + CALL);
    }

    fn init_end(&mut self, r: u32, group: Group, t: Nanos) {
        let (id, _) = self.layout.comm(group, r);
        match self.comms.get(id).made {
            Some(made) if made <= t => {
                let comm = self.teller.handle(r, group, true);
                self.record(r, t, Body::InitEnd { comm, result: 0 });
                let span = self.about(MILLISECOND);
                self.go_on(r, t + span);
            }
            Some(made) => self.ranks[r as usize].clock = made,
            None => self.ranks[r as usize].wait = Wait::Join(group),
        }
    }

    /// What a communicator's memory tells once its creation has lasted for a while.
    pub(super) fn look_at_joining(&mut self, r: u32, group: Group) {
        let (id, _) = self.layout.comm(group, r);
        if self.comms.get(id).made.is_none_or(|made| made > self.now) && !self.ranks[r as usize].gone {
            let comm = self.teller.handle(r, group, true);
            self.record(r, self.now, Body::InitBegin(comm));
        }
    }

    fn compute(&mut self, r: u32, t: Nanos, span: Nanos) {
        let percent = self.config.faults.iter().filter(|f| f.active(t)).find_map(|f| match f.kind {
            Kind::JobSlow { percent } => Some(percent),
            _ => None,
        });
        let mut span = self.about(span) * u64::from(percent.unwrap_or(100)) / 100;
        if !self.ranks[r as usize].slowed {
            self.ranks[r as usize].slowed = true;
            let host = self.layout.host(r);
            span += self.extra(r, |k| match k {
                Kind::SlowGpu { rank, .. } => *rank == r,
                Kind::SlowMachine { host: h, .. } => *h == host,
                _ => false,
            });
        }
        self.ranks[r as usize].compute += span;
        self.go_on(r, t + CALL);
    }

    /// The time that faults of these kinds cost now.
    fn extra(&self, r: u32, which: impl Fn(&Kind) -> bool) -> Nanos {
        let t = self.ranks[r as usize].clock;
        let mine = self.config.faults.iter().filter(|f| f.active(t) && which(&f.kind));
        mine.map(|f| match f.kind {
            Kind::SlowGpu { extra, .. } | Kind::SlowHostThread { extra, .. } | Kind::SlowMachine { extra, .. } => extra,
            _ => 0,
        })
        .sum()
    }

    /// A fault of these kinds that is due on this rank and shows only once; it has shown now.
    pub(super) fn due(&mut self, t: Nanos, which: impl Fn(&Kind) -> bool) -> Option<Kind> {
        let due = |(i, f): &(usize, &super::Fault)| f.active(t) && !self.shown[*i] && which(&f.kind);
        let (i, kind) = self.config.faults.iter().enumerate().find(due).map(|(i, f)| (i, f.kind))?;
        self.shown[i] = true;
        Some(kind)
    }

    fn collective(&mut self, r: u32, t: Nanos, call: Call, after: Option<&Instr>) {
        let stream = if call.aside { Stream::Aside } else { Stream::Main };
        let room = if call.aside { AHEAD_ASIDE } else { AHEAD };
        if self.ranks[r as usize].queue(stream).items.len() >= room {
            self.ranks[r as usize].wait = Wait::Room(stream);
            return;
        }
        if self.left_out(r, t, call.group) {
            self.go_on(r, t + CALL);
            return;
        }
        if let Some(Instr::Collective(next)) = after
            && next.group != call.group
            && self.due(t, |k| matches!(k, Kind::Swapped { rank } if *rank == r)).is_some()
        {
            self.call(r, t, *next);
            self.call(r, t + CALL, call);
            self.go_on(r, t + 2 * CALL);
            self.ranks[r as usize].pc += 1;
            return;
        }
        self.call(r, t, call);
        self.go_on(r, t + CALL);
    }

    /// Whether the rank leaves this operation out, as it does once a step.
    fn left_out(&mut self, r: u32, t: Nanos, group: Group) -> bool {
        let rank = &mut self.ranks[r as usize];
        let drifts = |f: &super::Fault| {
            f.active(t) && matches!(f.kind, Kind::Drifts { rank, group: g } if rank == r && g == group)
        };
        let out = !rank.skipped && self.config.faults.iter().any(drifts);
        rank.skipped |= out;
        out
    }

    fn call(&mut self, r: u32, t: Nanos, call: Call) {
        let group = call.group;
        let mut signature = call.signature;
        if let Some(Kind::Differs { what, .. }) =
            self.due(t, |k| matches!(k, Kind::Differs { rank, group: g, .. } if *rank == r && *g == group))
        {
            change(&mut signature, what);
        }
        let rank = &mut self.ranks[r as usize];
        let number = rank.collectives[group.index()];
        rank.collectives[group.index()] += 1;
        let op = Op {
            comm: self.teller.handle(r, group, true),
            seq: number,
            absolute: true,
            collective: true,
            empty: false,
            signature,
            peer: None,
            stream: 0x10 + group as u64,
            depth: 0,
        };
        self.operation(r, group, t, op);
        let (id, member) = self.layout.comm(group, r);
        self.comms.get_mut(id).launch(member, number, signature, call.takes, t);
        let stream = if call.aside { Stream::Aside } else { Stream::Main };
        self.launch(r, stream, Work::Collective(group, number), t);
    }

    /// Tells of an operation.
    pub(super) fn operation(&mut self, r: u32, group: Group, t: Nanos, op: Op) {
        if self.teller.op(r, group, t, op) {
            self.set(t + MEND_AFTER, Task::Mend(self.layout.host(r)));
        }
    }

    /// Tells of something else that comes through the ring buffer.
    pub(super) fn record(&mut self, r: u32, t: Nanos, body: Body) {
        if self.teller.record(r, t, body) {
            self.set(t + MEND_AFTER, Task::Mend(self.layout.host(r)));
        }
    }

    fn sync(&mut self, r: u32, t: Nanos) {
        let rank = &mut self.ranks[r as usize];
        if rank.main.items.is_empty() {
            let free = rank.main.free + std::mem::take(&mut rank.compute);
            self.go_on(r, t.max(free) + CALL);
        } else {
            rank.wait = Wait::Sync;
        }
    }

    /// What a rank waited for has come.
    pub(super) fn wake(&mut self, r: u32, t: Nanos) {
        let rank = &mut self.ranks[r as usize];
        rank.wait = Wait::Nothing;
        rank.clock = rank.clock.max(t);
        let at = rank.clock;
        self.set(at.max(self.now), Task::Host(r));
    }

    fn pause(&mut self, r: u32, t: Nanos, pause: Pause) {
        let work = &self.config.workload;
        let (compile, checkpoint) = (work.compile, work.checkpoint);
        let extra = if r == 0 { work.writer_extra } else { 0 };
        let step = self.ranks[r as usize].step;
        let span = match pause {
            Pause::Compile if step > 0 => 0,
            Pause::Compile => compile * 9 / 10 + (compile as f64 / 5.0 * self.chance()) as Nanos,
            Pause::Checkpoint => checkpoint + (1.2 * SECOND as f64 * self.chance()) as Nanos + extra,
            Pause::Request => {
                // Requests come to all ranks of a server together.
                let even = mix(self.config.seed ^ u64::from(step)) % 1000;
                even * even / 1000 * 45 * MILLISECOND
            }
        };
        self.ranks[r as usize].pausing = (span > 0).then_some(pause);
        self.go_on(r, t + span);
    }

    fn end_step(&mut self, r: u32, t: Nanos) {
        let work = &self.config.workload;
        let rank = &mut self.ranks[r as usize];
        (rank.slowed, rank.skipped) = (false, false);
        rank.step += u32::from(rank.part == Part::Step);
        let every = |n: u32| n > 0 && rank.step > 0 && rank.step.is_multiple_of(n);
        rank.part = match rank.part {
            Part::Step if work.steps.is_some_and(|n| rank.step >= n) => Part::Finish,
            Part::Step if every(work.checkpoint_every) => Part::Checkpoint,
            Part::Step if every(work.evaluate_every) => Part::Evaluation,
            _ => Part::Step,
        };
        rank.pc = 0;
        rank.clock = t + CALL;
    }

    fn finish(&mut self, r: u32, t: Nanos) {
        self.ranks[r as usize].wait = Wait::Off;
        if self.config.workload.teardown_stuck.contains(&r) {
            return;
        }
        let layout = self.layout;
        for group in Group::ALL.into_iter().filter(|g| layout.size(*g) > 1) {
            let comm = self.teller.handle(r, group, true);
            self.record(r, t, Body::Destroy(comm));
        }
        self.teller.forget(r);
        let exit = t + SECOND + (self.chance() * 2e9) as Nanos;
        self.set(exit, Task::Exit(r));
    }

    pub(super) fn exit(&mut self, r: u32) {
        self.end_process(r, Exit::Code(0));
    }

    pub(super) fn end_process(&mut self, r: u32, exit: Exit) {
        let rank = &mut self.ranks[r as usize];
        rank.gone = true;
        rank.wait = Wait::Off;
        let proc = super::tell::proc(&self.layout, r);
        self.teller.tell(self.layout.host(r), self.now, Body::ProcessGone { proc, exit });
        self.teller.forget(r);
    }
}

fn change(signature: &mut Signature, what: Differs) {
    match what {
        Differs::Function => {
            signature.func = if signature.func == Func::AllReduce { Func::AllGather } else { Func::AllReduce };
        }
        Differs::Count => signature.count += 1,
        Differs::Datatype => signature.datatype = 7,
        Differs::Root => signature.root = 1,
    }
}
