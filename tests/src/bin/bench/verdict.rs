//! Time from a fault to the verdict that names it, over the agent's API.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use mycroft_bed::{Fault, Job, NOW};
use mycroft_tests::agent::Agent;

use crate::stats::Sample;

pub(crate) fn time(quick: bool) -> Result<String> {
    let n = if quick { 1 } else { 5 };
    let mut out = format!(
        "## Time from fault to verdict\n\nSeconds, 4 ranks of real NCCL 2.27.5, {n} runs each, polled every 20 ms over \
         the agent's API; target: under 3.\n\n| fault | rule | min | median | max |\n| --- | --- | --- | --- | --- |\n"
    );
    for (name, rule) in
        [("never enters", "MYC001"), ("killed", "MYC002"), ("stopped", "MYC003"), ("another count", "MYC004")]
    {
        let times = (0..n).map(|_| one(name, rule)).collect::<Result<Vec<f64>>>()?;
        out += &format!("| {name} | {rule} | {} |\n", Sample::new(times).row(2));
    }
    Ok(out)
}

fn one(name: &str, rule: &str) -> Result<f64> {
    const RANK: usize = 2;
    let job = Job::builder().ranks(4).count(10_000).pause(Duration::from_millis(20)).start()?;
    job.wait_iteration(5, Duration::from_secs(60))?;
    let agent = Agent::start(&[]);
    agent.until_known(job.rank(RANK).pid());
    sleep(Duration::from_secs(2));
    let at = job.ranks().map(|r| r.entered()).max().unwrap_or(0) + 3;
    job.inject(match name {
        "never enters" => Fault::NeverEnter { rank: RANK, at },
        "killed" => Fault::Die { rank: RANK, at: NOW },
        "stopped" => Fault::Stop { rank: RANK, at: NOW },
        _ => Fault::DifferentCount { rank: RANK, at },
    })?;
    let now = matches!(name, "killed" | "stopped");
    while !now && job.ranks().all(|r| r.entered() <= at) {
        sleep(Duration::from_millis(2));
    }
    let start = Instant::now();
    let pid = job.rank(RANK).pid();
    while start.elapsed() < Duration::from_secs(20) {
        if agent.state().verdicts.iter().any(|v| v.rule == rule && v.culprits.iter().any(|c| c.pid == pid)) {
            return Ok(start.elapsed().as_secs_f64());
        }
        sleep(Duration::from_millis(20));
    }
    bail!("{name}: no {rule} within 20 s")
}
