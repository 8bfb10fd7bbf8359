//! What the job loses: one job, windows with and without the agent in turn.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;
use mycroft_bed::Job;
use mycroft_tests::agent::Agent;

use crate::stats::Sample;

pub(crate) fn job(quick: bool) -> Result<String> {
    let pairs = if quick { 2 } else { 10 };
    let window = Duration::from_secs(if quick { 2 } else { 5 });
    let job = Job::builder().ranks(4).count(10_000).start()?;
    job.wait_iteration(20, Duration::from_secs(60))?;
    let rate = || {
        let (n, start) = (job.rank(0).completed(), Instant::now());
        sleep(window);
        (job.rank(0).completed() - n) as f64 / start.elapsed().as_secs_f64()
    };
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        // Which comes first alternates, so that a drift of the machine cancels out.
        let with = || {
            let agent = Agent::start(&[]);
            agent.until_known(job.rank(0).pid());
            sleep(Duration::from_millis(500));
            rate()
        };
        let (a, b) = if pair % 2 == 0 {
            let bare = rate();
            (with(), bare)
        } else {
            let traced = with();
            sleep(Duration::from_millis(500));
            (traced, rate())
        };
        ratios.push((1.0 - a / b) * 100.0);
        rates.push(b);
    }
    let (ratios, rates) = (Sample::new(ratios), Sample::new(rates));
    Ok(format!(
        "## Job overhead\n\nAllReduce of 10,000 float32 without a pause, 4 ranks of real NCCL 2.27.5 on emulated GPUs \
         sharing the cores with the agent; {pairs} pairs of windows of {} s in turn; {:.0} iterations/s without the \
         agent.\n\n| loss of iterations/s with the agent | % |\n| --- | --- |\n| lower quartile | {:.2} |\n| median | {:.2} |\n\
         | upper quartile | {:.2} |\n",
        window.as_secs(),
        rates.at(0.5),
        ratios.at(0.25),
        ratios.at(0.5),
        ratios.at(0.75)
    ))
}
