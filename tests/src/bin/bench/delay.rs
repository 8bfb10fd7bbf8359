//! From a fault in a running job to the verdict that names the rank, as a client of the agent sees it.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;
use mycroft_bed::{Fault, Job, NOW};

use crate::{
    NCCL, Scale,
    agent::{Agent, Cache},
    note,
    stats::Spread,
};

const RANKS: usize = 4;
const WARM_ITERATIONS: u64 = 30;
const PAUSE: Duration = Duration::from_millis(20);
const POLL: Duration = Duration::from_millis(20);
/// Then it counts as not named.
const LIMIT: Duration = Duration::from_secs(15);

const FAULTS: &[(&str, Fault)] = &[
    ("never enters the collective", Fault::NeverEnter { rank: 2, at: NOW }),
    ("killed (SIGKILL)", Fault::Die { rank: 0, at: NOW }),
    ("stopped (SIGSTOP)", Fault::Stop { rank: 1, at: NOW }),
    ("calls another collective", Fault::DifferentCollective { rank: 1, at: NOW }),
    ("calls it with another count", Fault::DifferentCount { rank: 3, at: NOW }),
];

/// What the first verdict about the job said.
#[derive(Clone, Debug)]
struct Outcome {
    rule: String,
    right: bool,
    seconds: f64,
}

pub(crate) fn measure(scale: Scale) -> Result<String> {
    let cache = Cache::new()?;
    let mut text = format!(
        "{RANKS} ranks, AllReduce of 10000 float32 and a pause of {} ms, {WARM_ITERATIONS} iterations seen before; \
         polled every {} ms.\n\n\
         | a rank … | min, s | median, s | max, s | rule | named right |\n|---|---|---|---|---|---|\n",
        PAUSE.as_millis(),
        POLL.as_millis()
    );
    for (name, fault) in FAULTS.iter().take(scale.of(FAULTS.len(), 3)) {
        // Calls that differ are told by the same rule at once.
        let differs = matches!(fault, Fault::DifferentCollective { .. } | Fault::DifferentCount { .. });
        let runs = scale.of(if differs { 2 } else { 5 }, 1);
        let mut outcomes = Vec::new();
        for _ in 0..runs {
            let outcome = run(&cache, *fault)?;
            note(&format!("{name}: {outcome:?}"));
            outcomes.extend(outcome);
        }
        let right: Vec<&Outcome> = outcomes.iter().filter(|o| o.right).collect();
        let mut rules: Vec<&str> = outcomes.iter().map(|o| o.rule.as_str()).collect();
        rules.sort_unstable();
        rules.dedup();
        let cells = Spread::of(right.iter().map(|o| o.seconds)).cells(2);
        text += &format!("| {name} | {cells} | {} | {} of {runs} |\n", rules.join(", "), right.len());
    }
    Ok(text)
}

/// None if there was no verdict.
fn run(cache: &Cache, fault: Fault) -> Result<Option<Outcome>> {
    let job = Job::builder().nccl(NCCL).ranks(RANKS).count(10_000).pause(PAUSE).start()?;
    job.wait_iteration(10, Duration::from_secs(60))?;
    let pids: Vec<u32> = job.ranks().map(|r| r.pid()).collect();
    let mut agent = Agent::on(cache, &[], &pids)?;
    agent.wait("warm", |a| {
        let state = a.state()?;
        let ours =
            state.communicators.iter().find(|c| c.ranks.iter().filter(|r| pids.contains(&r.pid)).count() == RANKS);
        Ok(ours.is_some_and(|c| c.completed >= WARM_ITERATIONS))
    })?;
    let begin = Instant::now();
    job.inject(fault)?;
    while begin.elapsed() < LIMIT {
        let state = agent.state()?;
        // Others may run on this host.
        let ours = state.verdicts.iter().find(|v| v.culprits.iter().chain(&v.victims).any(|s| pids.contains(&s.pid)));
        if let Some(verdict) = ours {
            let seconds = begin.elapsed().as_secs_f64();
            let named: Vec<(usize, u32)> = verdict.culprits.iter().map(|c| (c.rank as usize, c.pid)).collect();
            let right = named == [(fault.rank(), pids[fault.rank()])];
            return Ok(Some(Outcome { rule: verdict.rule.clone(), right, seconds }));
        }
        sleep(POLL);
    }
    Ok(None)
}
