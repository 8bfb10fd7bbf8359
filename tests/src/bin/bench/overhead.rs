//! What a traced job loses: one running job, windows without and with the agent in turn.
//!
//! Pairs change which window comes first, so that a drift of the machine does not look like an effect, and so that
//! there are windows without the agent next to each other: what their ratio strays from 1 is noise.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;
use mycroft_bed::Job;

use crate::{
    NCCL, Scale,
    agent::{Agent, Cache},
    machine, note,
    stats::{Spread, row},
};

const RANKS: usize = 4;
const COUNT: usize = 10_000;
/// After attaching and detaching.
const SETTLE: Duration = Duration::from_millis(700);
/// Pairs are repeated if another tracer runs on the machine, but not for ever.
const MOST_TRIES: usize = 3;

/// Iterations per second.
#[derive(Clone, Copy, Debug)]
struct Pair {
    without: f64,
    with: f64,
    without_first: bool,
}

pub(crate) fn measure(scale: Scale) -> Result<String> {
    let (pairs_wanted, window) = (scale.of(8, 2), Duration::from_secs(scale.of(4, 1)));
    let job = Job::builder()
        .nccl(NCCL)
        .ranks(RANKS)
        .count(COUNT)
        // A check would take most of an iteration's time and hide what is looked for.
        .check(false)
        .timeout(Duration::from_secs(1200))
        .start()?;
    job.wait_iteration(200, Duration::from_secs(60))?;
    let cache = Cache::new()?;
    // Reads the library once.
    drop(Agent::on(&cache, &[], &pids(&job))?);
    let (mut pairs, mut spoilt) = (Vec::new(), 0);
    while pairs.len() < pairs_wanted && pairs.len() + spoilt < pairs_wanted * MOST_TRIES {
        match pair(&job, &cache, window, pairs.len() % 2 == 0)? {
            Some(pair) => {
                note(&format!("without {:.0}/s, with {:.0}/s", pair.without, pair.with));
                pairs.push(pair);
            }
            None => spoilt += 1,
        }
    }
    Ok(report(&pairs, spoilt, window))
}

fn pids(job: &Job) -> Vec<u32> {
    job.ranks().map(|r| r.pid()).collect()
}

/// None if another tracer ran meanwhile.
fn pair(job: &Job, cache: &Cache, window: Duration, without_first: bool) -> Result<Option<Pair>> {
    let mut rates = [0.0; 2];
    let mut clean = true;
    for with in [!without_first, without_first] {
        let agent = if with { Some(Agent::on(cache, &[], &pids(job))?) } else { None };
        let ours = agent.as_ref().map(Agent::pid);
        clean &= !machine::foreign_tracer(ours);
        sleep(SETTLE);
        rates[usize::from(with)] = iterations_per_second(job, window);
        clean &= !machine::foreign_tracer(ours);
    }
    Ok(clean.then_some(Pair { without: rates[0], with: rates[1], without_first }))
}

fn iterations_per_second(job: &Job, window: Duration) -> f64 {
    let completed = || job.ranks().map(|r| r.completed()).min().unwrap_or(0);
    let (begin, before) = (Instant::now(), completed());
    sleep(window);
    let after = completed();
    (after - before) as f64 / begin.elapsed().as_secs_f64()
}

fn report(pairs: &[Pair], spoilt: usize, window: Duration) -> String {
    let without = Spread::of(pairs.iter().map(|p| p.without));
    let with = Spread::of(pairs.iter().map(|p| p.with));
    let ratio = Spread::of(pairs.iter().map(|p| p.without / p.with));
    // Second window of one pair and first of the next.
    let neighbours = pairs.windows(2).filter(|p| !p[0].without_first && p[1].without_first);
    let control: Vec<f64> = neighbours.map(|p| p[1].without / p[0].without).collect();
    let noise = Spread::of(control.iter().copied());
    let n = pairs.len().to_string();
    let mut text = format!(
        "{RANKS} ranks, AllReduce of {COUNT} float32 without a pause, windows of {} s, {n} pairs{}.\n\n\
         | | min | median | max | quartiles | n |\n|---|---|---|---|---|---|\n",
        window.as_secs(),
        if spoilt > 0 { format!(" ({spoilt} more left out: another tracer ran)") } else { String::new() }
    );
    let quartiles = |s: &Spread, n: &str, decimals: usize| {
        format!("{:.decimals$} to {:.decimals$} | {n}", s.lower_quartile, s.upper_quartile)
    };
    text += &row("iterations/s without the agent", &without, 0, &quartiles(&without, &n, 0));
    text += &row("iterations/s with the agent", &with, 0, &quartiles(&with, &n, 0));
    text += &row("ratio without/with, by pair", &ratio, 3, &quartiles(&ratio, &n, 3));
    let n = control.len().to_string();
    text += &row("ratio of two neighbouring windows, both without", &noise, 3, &quartiles(&noise, &n, 3));
    let effect_percent = (ratio.median - 1.0) * 100.0;
    let spread_percent = ratio.middle() * 100.0;
    text += &format!("\nThe median pair is {effect_percent:+.1} % slower with the agent; between the quartiles lie ");
    text += &format!("{spread_percent:.1} percentage points. ");
    text += if spread_percent > effect_percent.abs() {
        "The spread is larger than the effect: this machine does not show one."
    } else {
        "The effect is larger than the spread."
    };
    text
}
