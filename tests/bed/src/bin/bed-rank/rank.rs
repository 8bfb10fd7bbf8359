//! A rank: connect, loop, check, wait for the others, disconnect.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mycroft_bed::Step;
use mycroft_bed::control::{Control, Phase};
use mycroft_bed::fault::kind;

use crate::Args;
use crate::data::{Plan, encode};
use crate::faults::{self, Faults};
use crate::ffi::{Api, Call, Comm, Stream};
use crate::pytorch::Pytorch;

/// A line of progress at most this often.
const REPORT: Duration = Duration::from_secs(1);
/// How often a waiting rank asks NCCL for errors.
const ASK: Duration = Duration::from_millis(100);

/// Whether all data were right.
pub(crate) fn run(args: &Args, api: &'static Api, control: &'static Control, device: usize) -> Result<bool> {
    let index = args.first_rank + device;
    api.set_device(device)?;
    control.set_phase(index, Phase::Connecting);
    let mut rank = Rank::connect(args, api, control, index)?;
    control.set_phase(index, Phase::Running);
    println!("rank {index}: connected in {:.3} s", control.init_time(index).as_secs_f64());
    let mut reported = Instant::now();
    let mut iteration = 0;
    let mut left = false;
    while (args.iters == 0 || iteration < args.iters) && control.stop_at().is_none_or(|at| iteration < at) {
        if faults::strikes(control, index, kind::LEAVE, iteration) {
            println!("rank {index}: leaves at iteration {iteration}");
            left = true;
            break;
        }
        let took = rank.iterate(iteration).with_context(|| format!("iteration {iteration}"))?;
        iteration += 1;
        control.set_completed(index, iteration);
        if reported.elapsed() >= REPORT || iteration == 1 || iteration == args.iters {
            reported = Instant::now();
            println!("rank {index}: iteration {iteration} took {} us", took.as_micros());
        }
        if args.pause_us > 0 {
            std::thread::sleep(Duration::from_micros(args.pause_us));
        }
    }
    rank.disconnect(left)?;
    let wrong = control.wrong(index);
    println!("rank {index}: done after {iteration} iterations, {wrong} wrong");
    Ok(wrong == 0)
}

struct Rank<'a> {
    args: &'a Args,
    api: &'static Api,
    control: &'static Control,
    index: usize,
    comms: Vec<Comm>,
    /// Numbers of the reductions, per communicator and step.
    redops: Vec<Vec<i32>>,
    stream: Stream,
    /// With room for what a fault may make of the call: twice the count, elements of eight bytes.
    input: &'static mut [u8],
    output: &'static mut [u8],
    faults: Faults,
    pytorch: Option<Pytorch>,
}

impl<'a> Rank<'a> {
    fn connect(args: &'a Args, api: &'static Api, control: &'static Control, index: usize) -> Result<Rank<'a>> {
        let mut comms = Vec::new();
        let mut took = Duration::ZERO;
        for nth in 0..args.comms {
            if index == 0 {
                control.publish_id(&api.unique_id()?);
            }
            let id = control.await_id(nth);
            if faults::strikes(control, index, kind::NEVER_JOIN, nth as u64) {
                println!("rank {index}: does not join communicator {nth}");
                faults::sleep_for_good();
            }
            let begin = Instant::now();
            comms.push(api.init(id, index, control.ranks())?);
            took += begin.elapsed();
            control.set_init_time(index, took);
        }
        let of_comm = |comm: &Comm| args.step.iter().map(|step| redop(api, step, *comm)).collect();
        let redops = comms.iter().map(of_comm).collect::<Result<_>>()?;
        let room = (2 * args.count + 64) * control.ranks() * 8;
        let (input, output) = (api.buffer(room)?, api.buffer(room)?);
        let (stream, faults) = (api.stream()?, Faults::default());
        let pytorch = args.like_pytorch.then(|| Pytorch::start(api, control, index)).transpose()?;
        Ok(Rank { args, api, control, index, comms, redops, stream, input, output, faults, pytorch })
    }

    /// One collective; how long it took from the call until its end.
    fn iterate(&mut self, iteration: u64) -> Result<Duration> {
        let (args, rank) = (self.args, self.index);
        // Which call this is: the next one's if the two are swapped, or the one before.
        let swapped = |at| faults::strikes(self.control, rank, kind::SWAP_ORDER, at);
        let place = match iteration.checked_sub(1) {
            _ if swapped(iteration) => iteration + 1,
            Some(before) if swapped(before) => before,
            _ => iteration,
        };
        let nth = place as usize % args.step.len();
        let comm = place as usize % self.comms.len();
        let step = args.step[nth];
        let plan = Plan { step, count: args.count, ranks: self.control.ranks(), root: args.root };
        if !args.no_check {
            plan.fill(self.input, rank, iteration);
            self.output[..plan.lengths().1 * step.dtype.size()].fill(0xff);
        }
        let mut op = step.op;
        let mut call = Call {
            send: self.input.as_ptr().cast(),
            recv: self.output.as_mut_ptr().cast(),
            count: args.count,
            dtype: step.dtype,
            redop: self.redops[comm][nth],
            root: args.root as i32,
            rank: rank as i32,
            ranks: plan.ranks as i32,
            receive: !faults::strikes(self.control, rank, kind::ONLY_SEND, iteration),
        };
        let changed = self.faults.apply(self.control, rank, iteration, &mut op, &mut call);
        self.control.set_entered(rank, iteration + 1);
        let begin = Instant::now();
        if let Some(pytorch) = &self.pytorch {
            pytorch.before(self.stream)?;
        }
        self.api.call(op, &call, self.comms[comm], self.stream)?;
        match &self.pytorch {
            Some(pytorch) => pytorch.after(self.stream, self.comms[comm])?,
            None => self.finish(self.comms[comm])?,
        }
        let took = begin.elapsed();
        if !args.no_check && !changed {
            let (wrong, first) = plan.check(self.output, rank, iteration);
            if let Some(first) = first {
                println!("rank {rank}: iteration {iteration}, {step}: {wrong} wrong, {first}");
                self.control.add_wrong(rank, wrong);
            }
        }
        Ok(took)
    }

    /// Waits for the stream as an application does that also looks for errors.
    fn finish(&self, comm: Comm) -> Result<()> {
        let mut asked = Instant::now();
        let mut sleep = Duration::from_micros(20);
        while !self.api.idle(self.stream) {
            std::thread::sleep(sleep);
            sleep = (sleep * 2).min(Duration::from_millis(1));
            if !self.args.ask_no_errors && asked.elapsed() >= ASK {
                self.api.async_error(comm)?;
                asked = Instant::now();
            }
        }
        Ok(())
    }

    /// Every rank waits for all others first, unless it is to leave early: one that is gone resets sockets that may still
    /// hold data for them.
    fn disconnect(self, early: bool) -> Result<()> {
        if let Some(pytorch) = self.pytorch {
            pytorch.end()?;
        }
        self.control.set_phase(self.index, Phase::Finished);
        while !early && (0..self.control.ranks()).any(|r| self.control.phase(r) < Phase::Finished) {
            std::thread::sleep(Duration::from_millis(2));
        }
        for comm in self.comms {
            self.api.destroy(comm)?;
        }
        self.control.set_phase(self.index, Phase::Left);
        Ok(())
    }
}

fn redop(api: &Api, step: &Step, comm: Comm) -> Result<i32> {
    let mut two = [0u8; 8];
    encode(step.dtype, 2.0, &mut two[..step.dtype.size()]);
    api.redop(step.redop, step.dtype, &two, comm)
}
