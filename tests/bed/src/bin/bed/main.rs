//! `bed`: a job by hand, with faults.
#![expect(clippy::print_stdout, reason = "a command-line program")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};
use mycroft_bed::{Algorithm, Job, Protocol, Step, Timed};

#[derive(Debug, Parser)]
#[command(about = "Jobs of real NCCL processes on a machine with no GPU")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a job until it ends
    Run(Run),
    /// Prints where the fields of a release's device structures lie
    Layout { nccl: String },
}

#[derive(Debug, clap::Args)]
struct Run {
    #[arg(long, default_value = "2.27.5")]
    nccl: String,
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    #[arg(long, default_value_t = 1)]
    gpus_per_proc: usize,
    #[arg(long, default_value_t = 1)]
    comms: usize,
    /// OP, OP:TYPE or OP:TYPE:REDUCTION; several, separated by commas, are used in turn
    #[arg(long, value_delimiter = ',', default_value = "allreduce")]
    op: Vec<Step>,
    #[arg(long, default_value_t = 0)]
    root: usize,
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// 0: for ever
    #[arg(long, default_value_t = 0)]
    iters: u64,
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// simple, ll or ll128
    #[arg(long, default_value = "simple")]
    protocol: Protocol,
    /// ring, or tree (allreduce only)
    #[arg(long, default_value = "ring")]
    algorithm: Algorithm,
    /// 0: as many as NCCL takes
    #[arg(long, default_value_t = 0)]
    channels: usize,
    /// A network namespace per process (root)
    #[arg(long)]
    netns: bool,
    /// Let NCCL name its threads
    #[arg(long)]
    thread_names: bool,
    /// Wait and look for errors as PyTorch does
    #[arg(long)]
    like_pytorch: bool,
    /// The job ends after this
    #[arg(long, default_value_t = 3600)]
    timeout_s: u64,
    /// NAME:RANK with @ITERATION and +DELAY where that makes sense: never-enter:2@20, slow:1+50ms, link-down:3@20, gpu-stall:1@20.3
    #[arg(long)]
    fault: Vec<Timed>,
    /// NAME=VALUE for every process
    #[arg(long)]
    env: Vec<String>,
}

fn main() -> Result<ExitCode> {
    // SAFETY: the default action: with the reader of its output, the program goes, too.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    match Args::parse().command {
        Command::Run(run) => run.run(),
        Command::Layout { nccl } => {
            print!("{}", mycroft_bed::layout::of_library(&mycroft_bed::library(&nccl)?, &nccl)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Run {
    fn run(&self) -> Result<ExitCode> {
        let mut builder = Job::builder()
            .nccl(&self.nccl)
            .ranks(self.ranks)
            .gpus_per_proc(self.gpus_per_proc)
            .comms(self.comms)
            .cycle(self.op.iter().copied())
            .root(self.root)
            .count(self.count)
            .iters(self.iters)
            .pause(Duration::from_millis(self.pause_ms))
            .protocol(self.protocol)
            .algorithm(self.algorithm)
            .channels(self.channels)
            .netns(self.netns)
            .thread_names(self.thread_names)
            .like_pytorch(self.like_pytorch)
            .timeout(Duration::from_secs(self.timeout_s));
        for (name, value) in self.env.iter().filter_map(|e| e.split_once('=')) {
            builder = builder.env(name, value);
        }
        let (now, mut later): (Vec<Timed>, Vec<Timed>) = self.fault.iter().partition(|f| f.after.is_none());
        for timed in now {
            builder = builder.fault(timed.fault);
        }
        let job = builder.start()?;
        println!("files: {}", job.dir().display());
        for rank in job.ranks() {
            println!("rank {}: process {}", rank.index(), rank.pid());
        }
        let mut reported = Instant::now();
        loop {
            if let Ok(statuses) = job.wait(Duration::from_millis(20)) {
                println!("{}", job.describe().trim_start());
                return Ok(if statuses.iter().all(|s| s.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            let reached = job.ranks().map(|r| r.completed()).min().unwrap_or(0);
            for timed in later.extract_if(.., |t| t.after.is_none_or(|a| a <= reached)) {
                println!("{:?} at iteration {reached}", timed.fault);
                job.inject(timed.fault)?;
            }
            if reported.elapsed() >= Duration::from_secs(1) {
                reported = Instant::now();
                let ranks: Vec<_> = job.ranks().map(|r| format!("{}/{}", r.completed(), r.entered())).collect();
                println!("completed/entered: {}", ranks.join("  "));
            }
        }
    }
}
