//! One process of a job: a thread per rank, each with its communicators, in a loop of one collective.
#![expect(clippy::print_stdout, reason = "its output is the rank's log")]

mod data;
mod faults;
mod ffi;
mod pytorch;
mod rank;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use mycroft_bed::Step;
use mycroft_bed::control::{Control, Phase};

/// Started by the harness; see `bed run` for a job by hand.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// The library
    #[arg(long)]
    nccl: PathBuf,
    /// The job's control file, which also says how many ranks there are
    #[arg(long)]
    control: PathBuf,
    #[arg(long)]
    first_rank: usize,
    #[arg(long, default_value_t = 1)]
    ranks_here: usize,
    #[arg(long, default_value_t = 1)]
    comms: usize,
    /// OP:TYPE:REDUCTION, used in turn
    #[arg(long, required = true)]
    step: Vec<Step>,
    #[arg(long, default_value_t = 0)]
    root: usize,
    #[arg(long)]
    count: usize,
    /// 0: until told to stop
    #[arg(long, default_value_t = 0)]
    iters: u64,
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    #[arg(long)]
    no_check: bool,
    #[arg(long)]
    like_pytorch: bool,
    #[arg(long)]
    ask_no_errors: bool,
    /// The process ends itself after this
    #[arg(long, default_value_t = 300)]
    timeout_s: u32,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // SAFETY: no preconditions; the default action of the signal ends the process.
    unsafe { libc::alarm(args.timeout_s) };
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(e) => {
            println!("bed-rank: {e:#}");
            ExitCode::from(3)
        }
    }
}

/// Whether all data were right.
fn run(args: &Args) -> Result<bool> {
    // both stay for the threads that end with the process
    let control: &Control = Box::leak(Box::new(Control::open(&args.control)?));
    let api: &ffi::Api = Box::leak(Box::new(ffi::Api::open(&args.nccl)?));
    println!("NCCL {}", api.version()?);
    if args.ranks_here == 1 {
        let result = rank::run(args, api, control, 0);
        if result.is_err() {
            control.set_phase(args.first_rank, Phase::Failed);
        }
        return result;
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.ranks_here)
            .map(|device| {
                scope.spawn(move || {
                    let result = rank::run(args, api, control, device);
                    if let Err(e) = &result {
                        fail(control, args.first_rank + device, e);
                    }
                    result
                })
            })
            .collect();
        let mut right = true;
        for thread in threads {
            right &= thread.join().map_err(|_| anyhow::anyhow!("a rank's thread panicked"))??;
        }
        Ok(right)
    })
}

/// Ends the process: other ranks' threads may hang in it, but it has failed as a whole.
pub(crate) fn fail(control: &Control, rank: usize, error: &anyhow::Error) {
    println!("rank {rank}: {error:#}");
    control.set_phase(rank, Phase::Failed);
    // SAFETY: ends the process; nothing is left to clean up.
    unsafe { libc::_exit(3) };
}
