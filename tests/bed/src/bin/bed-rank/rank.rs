//! A rank: connect, loop, check, wait for the others, disconnect.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mycroft_bed::control::{Control, Phase};

use crate::Args;
use crate::data::{Plan, encode};
use crate::faults::Faults;
use crate::ffi::{Api, Call, Comm, Stream};

/// A line of progress at most this often.
const REPORT: Duration = Duration::from_secs(1);
/// How often a waiting rank asks NCCL for errors.
const ASK: Duration = Duration::from_millis(100);

/// Input and output, with room for what a fault may make of the call: twice the count, elements of eight bytes.
struct Buffers {
    input: &'static mut [u8],
    output: &'static mut [u8],
}

/// Whether all data were right.
pub(crate) fn run(args: &Args, api: &Api, control: &Control, device: usize) -> Result<bool> {
    let (rank, ranks) = (args.first_rank + device, control.ranks());
    let plan = Plan { op: args.op, dtype: args.dtype, redop: args.redop, count: args.count, ranks, root: args.root };
    api.set_device(device)?;
    control.set_phase(rank, Phase::Connecting);
    let comms = connect(args, api, control, rank)?;
    let stream = api.stream()?;
    let room = (2 * args.count + 64) * ranks * 8;
    let buffers = Buffers { input: api.buffer(room)?, output: api.buffer(room)? };
    let mut two = [0u8; 8];
    encode(args.dtype, 2.0, &mut two[..args.dtype.size()]);
    let redops: Result<Vec<_>> = comms.iter().map(|c| api.redop(args.redop, args.dtype, &two, *c)).collect();
    let redops = redops?;
    control.set_phase(rank, Phase::Running);
    println!("rank {rank}: connected in {:.3} s", control.init_time(rank).as_secs_f64());

    let mut faults = Faults::default();
    let mut reported = Instant::now();
    let mut iteration = 0;
    while (args.iters == 0 || iteration < args.iters) && control.stop_at().is_none_or(|at| iteration < at) {
        let comm = comms[iteration as usize % comms.len()];
        if !args.no_check {
            plan.fill(buffers.input, rank, iteration);
            buffers.output[..plan.lengths().1 * args.dtype.size()].fill(0xff);
        }
        let mut op = args.op;
        let mut call = Call {
            send: buffers.input.as_ptr().cast(),
            recv: buffers.output.as_mut_ptr().cast(),
            count: args.count,
            dtype: args.dtype,
            redop: redops[iteration as usize % comms.len()],
            root: args.root as i32,
            rank: rank as i32,
            ranks: ranks as i32,
        };
        let changed = faults.apply(control, rank, iteration, &mut op, &mut call);
        control.set_entered(rank, iteration + 1);
        let begin = Instant::now();
        api.call(op, &call, comm, stream)?;
        finish(api, comm, stream).with_context(|| format!("iteration {iteration}"))?;
        let took = begin.elapsed();
        if !args.no_check && !changed {
            check(&plan, &buffers, control, rank, iteration);
        }
        iteration += 1;
        control.set_completed(rank, iteration);
        if reported.elapsed() >= REPORT || iteration == 1 || iteration == args.iters {
            reported = Instant::now();
            println!("rank {rank}: iteration {iteration} took {} us", took.as_micros());
        }
        if args.pause_us > 0 {
            std::thread::sleep(Duration::from_micros(args.pause_us));
        }
    }
    disconnect(api, control, rank, comms)?;
    println!("rank {rank}: done after {iteration} iterations, {} wrong", control.wrong(rank));
    Ok(control.wrong(rank) == 0)
}

fn check(plan: &Plan, buffers: &Buffers, control: &Control, rank: usize, iteration: u64) {
    let (wrong, first) = plan.check(buffers.output, rank, iteration);
    if let Some(first) = first {
        println!("rank {rank}: iteration {iteration}: {wrong} wrong, {first}");
        control.add_wrong(rank, wrong);
    }
}

fn connect(args: &Args, api: &Api, control: &Control, rank: usize) -> Result<Vec<Comm>> {
    let mut comms = Vec::new();
    let mut took = Duration::ZERO;
    for index in 0..args.comms {
        if rank == 0 {
            control.publish_id(&api.unique_id()?);
        }
        let id = control.await_id(index);
        let begin = Instant::now();
        comms.push(api.init(id, rank, control.ranks())?);
        took += begin.elapsed();
        control.set_init_time(rank, took);
    }
    Ok(comms)
}

/// Waits for the stream as an application does that also looks for errors.
fn finish(api: &Api, comm: Comm, stream: Stream) -> Result<()> {
    let mut asked = Instant::now();
    let mut sleep = Duration::from_micros(20);
    while !api.idle(stream) {
        std::thread::sleep(sleep);
        sleep = (sleep * 2).min(Duration::from_millis(1));
        if asked.elapsed() >= ASK {
            api.async_error(comm)?;
            asked = Instant::now();
        }
    }
    Ok(())
}

/// Every rank waits for all others first: one that is gone resets sockets that may still hold data for them.
fn disconnect(api: &Api, control: &Control, rank: usize, comms: Vec<Comm>) -> Result<()> {
    control.set_phase(rank, Phase::Finished);
    while (0..control.ranks()).any(|r| control.phase(r) < Phase::Finished) {
        std::thread::sleep(Duration::from_millis(2));
    }
    for comm in comms {
        api.destroy(comm)?;
    }
    control.set_phase(rank, Phase::Left);
    Ok(())
}
