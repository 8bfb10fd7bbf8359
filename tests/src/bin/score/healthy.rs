//! Healthy jobs over many hours: whatever is said of them is false.

use std::collections::BTreeMap;

use mycroft_agent::{
    event::{Body, Nanos, ids::SECOND},
    model::State,
    rules::{Change, Engine, Severity},
    simulate::{Config, Simulation},
};

use crate::suite::in_parallel;

const HOUR: Nanos = 3600 * SECOND;

/// Ranks, jobs, hours of each: 100 hours, more of them where they cost less.
const FULL: &[(u32, u64, u64)] = &[(8, 10, 5), (64, 6, 5), (256, 7, 2), (1024, 5, 1), (4096, 1, 1)];
const QUICK: &[(u32, u64, u64)] = &[(8, 2, 1)];

#[derive(Debug)]
pub(crate) struct Run {
    pub ranks: u32,
    pub seed: u64,
    pub hours: u64,
    /// What was said, as a warning or worse.
    pub alarms: Vec<String>,
}

pub(crate) fn run(quick: bool) -> Vec<Run> {
    let plan = if quick { QUICK } else { FULL };
    let jobs = plan.iter().flat_map(|(ranks, jobs, hours)| (0..*jobs).map(move |seed| (*ranks, seed, *hours)));
    let mut jobs: Vec<(u32, u64, u64)> = jobs.collect();
    jobs.sort_by_key(|(ranks, ..)| std::cmp::Reverse(*ranks));
    in_parallel(&jobs, |(ranks, seed, hours)| one(*ranks, *seed, *hours))
}

/// A job with checkpoints and evaluations.
fn one(ranks: u32, seed: u64, hours: u64) -> Run {
    let mut config = Config::healthy(seed ^ 0x4ea1, ranks, hours * HOUR).sparse();
    config.workload.checkpoint_every = 20;
    config.workload.evaluate_every = 7;
    let mut state = State::default();
    let mut engine = Engine::default();
    let mut alarms = Vec::new();
    for event in Simulation::new(config) {
        state.apply(&event);
        if event.body != Body::Tick {
            continue;
        }
        for change in engine.evaluate(&state) {
            if let Change::Raised(v) = change
                && v.severity > Severity::Info
            {
                alarms.push(format!("{} {}", v.rule, v.headline));
            }
        }
    }
    Run { ranks, seed, hours, alarms }
}

pub(crate) fn table(runs: &[Run]) -> String {
    let mut by: BTreeMap<u32, (u64, u64, usize)> = BTreeMap::new();
    for r in runs {
        let row = by.entry(r.ranks).or_default();
        *row = (row.0 + 1, row.1 + r.hours, row.2 + r.alarms.len());
    }
    let mut text = "| ranks | jobs | hours | false alarms |\n| --- | --- | --- | --- |\n".to_owned();
    for (ranks, (jobs, hours, alarms)) in &by {
        text += &format!("| {ranks} | {jobs} | {hours} | {alarms} |\n");
    }
    let total: (u64, usize) = by.values().fold((0, 0), |t, r| (t.0 + r.1, t.1 + r.2));
    text += &format!("| **all** | {} | {} | {} |\n", runs.len(), total.0, total.1);
    for r in runs.iter().filter(|r| !r.alarms.is_empty()).take(10) {
        text += &format!("\n- {} ranks, seed {}: {}", r.ranks, r.seed, r.alarms[0]);
    }
    text
}
