//! `cargo xtask demo`: a job of real NCCL processes hangs, and Mycroft says which rank and why. Nothing is staged but
//! the fault: what is shown is what the bed and the agent print.

use std::{
    env,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{
    cache::Cache,
    preflight,
    progress::{self, Step},
    setup::{self, wheels::Choice},
    stage::Actor,
    stream,
    toolchain::{self, Rustc},
};

/// A verdict has more than one line.
const REST_OF_VERDICT: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The release of NCCL that the job runs on
    #[arg(long, value_name = "RELEASE", default_value = "2.27.5")]
    nccl: String,
    /// How many processes the job has
    #[arg(long, default_value_t = 4)]
    ranks: u32,
    /// What happens to the job, as `bed run --help` explains it
    #[arg(long, default_value = "never-enter:2@160")]
    fault: String,
    /// How long to wait for the verdict
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let (cache, rustc, wheels) = (Cache::open()?, Rustc::in_use()?, Choice::only(&args.nccl).wheels()?);
    let mut steps = setup::build_steps(&cache, &rustc);
    steps.insert(1, Step::gate("kernel", || preflight::kernel("")));
    steps.extend(setup::nccl_steps(&cache, &wheels));
    steps.push(Step::gate("build", build));
    steps.push(Step::gate(format!("a job of {} ranks, and {}", args.ranks, args.fault), || play(args)));
    Ok(progress::run(steps).passed())
}

fn build() -> Result<String> {
    let mut cargo = toolchain::cargo();
    cargo.args(["build", "--release", "-p", "mycroft-agent", "-p", "mycroft-bed"]);
    cargo.args(["-p", "mycroft-bed-cuda", "-p", "mycroft-bed-nvml", "-p", "mycroft-bed-cudart"]);
    if !stream::run(&mut cargo, |_| false)?.success {
        bail!("cannot build the bed and the agent");
    }
    Ok("the bed and the agent".into())
}

/// Ends when a verdict has come, when the agent or the job is gone, or with the patience.
fn play(args: &Args) -> Result<String> {
    let job = Actor::start("bed", &mut job(args)?)?;
    let start = Instant::now();
    let patience = Duration::from_secs(args.patience);
    println!("  xtask    a job of {} real NCCL processes starts; Mycroft is not there yet", args.ranks);
    until_it_moves(&job, start, patience)?;
    println!("  xtask    the job moves: now Mycroft attaches. The fault to come is {}", args.fault);
    let agent = Actor::start("mycroft", &mut agent()?)?;
    while start.elapsed() < patience {
        // before the lines are read, so that the last ones of a program that ended are
        let ended = [job.ended()?, agent.ended()?];
        if show(&job, &agent) {
            let took = start.elapsed();
            thread::sleep(REST_OF_VERDICT);
            show(&job, &agent);
            return Ok(format!("a verdict {} after the start of the job", progress::seconds(took)));
        }
        for (actor, status) in [&job, &agent].into_iter().zip(ended) {
            if let Some(status) = status {
                bail!("{} ended before there was a verdict: {status}", actor.name());
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("no verdict within {}", progress::seconds(patience))
}

/// Waits until all ranks have completed an iteration.
fn until_it_moves(job: &Actor, start: Instant, patience: Duration) -> Result<()> {
    loop {
        let ended = job.ended()?;
        for line in job.lines() {
            println!("  bed      {line}");
            if moves(&line) {
                return Ok(());
            }
        }
        if let Some(status) = ended {
            bail!("the job ended before it moved: {status}");
        }
        if start.elapsed() > patience {
            bail!("the job did not move within {}", progress::seconds(patience));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// `completed/entered: 9/9  9/10  …` with no rank at 0.
fn moves(line: &str) -> bool {
    line.strip_prefix("completed/entered:")
        .is_some_and(|ranks| ranks.split_whitespace().all(|r| r.split('/').next().is_some_and(|n| n != "0")))
}

/// What both have printed since the last time; true if a verdict is in it.
fn show(job: &Actor, agent: &Actor) -> bool {
    for line in job.lines() {
        println!("  bed      {line}");
    }
    let mut verdict = false;
    for line in agent.lines() {
        println!("  mycroft  {line}");
        verdict |= is_verdict(&line);
    }
    verdict
}

fn job(args: &Args) -> Result<Command> {
    let mut bed = built("bed")?;
    bed.args(["run", "--op", "allreduce", "--count", "100000", "--iters", "0", "--pause-ms", "50"]);
    bed.args(["--nccl", &args.nccl, "--fault", &args.fault, "--ranks"]).arg(args.ranks.to_string());
    Ok(bed)
}

fn agent() -> Result<Command> {
    let mut mycroft = built("mycroft")?;
    mycroft.arg("watch");
    Ok(mycroft)
}

/// A verdict is citable: it is printed with the number of its rule.
fn is_verdict(line: &str) -> bool {
    let numbered = |rest: &str| rest.len() >= 3 && rest.bytes().take(3).all(|b| b.is_ascii_digit());
    line.split("MYC").skip(1).any(numbered)
}

/// A program of this workspace, beside the one that runs now but in the release profile.
fn built(name: &str) -> Result<Command> {
    let xtask = env::current_exe()?;
    let target = xtask.parent().and_then(|profile| profile.parent()).map(|target| target.join("release").join(name));
    match target {
        Some(path) if path.is_file() => Ok(Command::new::<PathBuf>(path)),
        _ => bail!("the build made no program `{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_moves_when_no_rank_is_at_nought() {
        assert!(moves("completed/entered: 9/9  10/11"));
        assert!(!moves("completed/entered: 9/9  0/1"));
        assert!(!moves("rank 0: process 17"));
    }

    #[test]
    fn a_verdict_is_known_by_its_number() {
        assert!(is_verdict("MYC003 missing-rank: rank 2 never entered"));
        assert!(is_verdict("[critical] MYC003: x"));
        assert!(!is_verdict("MYCROFT is watching"));
        assert!(!is_verdict("watching 4 ranks"));
    }
}
