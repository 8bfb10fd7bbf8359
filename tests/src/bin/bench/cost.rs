//! What one traced operation costs the process that calls it: the load library at full speed, with the agent minus
//! without. The agent drains on another core, as in life.

use std::{fs, path::Path, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use mycroft_tests::load::{Build, Load};

use crate::{
    Scale,
    agent::{Agent, Cache},
    library::Pushing,
    machine, note,
    stats::{Spread, row},
};

/// Calls take 6 ns without a probe, and more than 1 µs with another tracer's.
const UNPROBED_NS: f64 = 200.0;
const MOST_SPOILT: usize = 100;

struct Kind {
    name: &'static str,
    agent: &'static [&'static str],
    driver: &'static str,
    pushing: bool,
}

const KINDS: &[Kind] = &[
    Kind { name: "one probe (default)", agent: &[], driver: "", pushing: true },
    Kind { name: "two probes (`--launches`)", agent: &["--launches"], driver: "launch=1", pushing: true },
    Kind { name: "one probe, not on a `push`", agent: &[], driver: "", pushing: false },
];

#[derive(Debug, Default)]
struct Samples {
    without_ns: Vec<f64>,
    cost_us: Vec<f64>,
    cpu_us: Vec<f64>,
    lost_percent: Vec<f64>,
}

pub(crate) fn measure(scale: Scale) -> Result<String> {
    let (ops, repetitions) = (scale.of(200_000, 50_000), scale.of(6, 2));
    let load = Load::build(Build::Debug);
    let pushing = Pushing::build()?;
    let cache = Cache::new()?;
    let mut text = format!(
        "{ops} operations at full speed, {repetitions} repetitions, with and without in turn.\n\n\
         | | min | median | max | unit |\n|---|---|---|---|---|\n"
    );
    for kind in KINDS {
        let library = if kind.pushing { pushing.path() } else { load.library() };
        let samples = sample(&load, &library, &cache, kind, ops, repetitions)?;
        let cost = Spread::of(samples.cost_us.iter().copied());
        text += &row(&format!("{}: cost of an operation", kind.name), &cost, 2, "µs");
        let cpu = Spread::of(samples.cpu_us.iter().copied());
        text += &row(&format!("{}: of that, CPU time", kind.name), &cpu, 2, "µs");
        text += &row(&format!("{}: call untraced", kind.name), &Spread::of(samples.without_ns), 1, "ns");
        text += &row(&format!("{}: events lost", kind.name), &Spread::of(samples.lost_percent), 1, "%");
    }
    Ok(text)
}

/// CPU time of all threads of a process so far.
fn cpu_ns(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // Finer than the ticks of `stat`.
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        sum += text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).context("/proc/PID/task/TID/schedstat")?;
    }
    Ok(sum)
}

fn sample(load: &Load, library: &Path, cache: &Cache, kind: &Kind, ops: u64, repetitions: usize) -> Result<Samples> {
    let options = format!("ops={ops} nranks=2 init=1 stay=1 {}", kind.driver);
    let mut samples = Samples::default();
    let mut spoilt = 0;
    while samples.cost_us.len() < repetitions {
        let mut free = load.start_on(library, &options);
        free.go();
        let without_ns = free.ns_per_op();
        drop(free);
        if without_ns > UNPROBED_NS || machine::foreign_tracer(None) {
            spoilt += 1;
            ensure!(spoilt < MOST_SPOILT, "another tracer runs here (an untraced call takes {without_ns} ns)");
            sleep(Duration::from_secs(1));
            continue;
        }
        let mut traced = load.start_on(library, &options);
        let agent = Agent::on(cache, kind.agent, &[traced.pid()])?;
        let before_ns = cpu_ns(traced.pid())?;
        traced.go();
        let cost_us = (traced.ns_per_op() - without_ns) / 1000.0;
        let cpu_us = ((cpu_ns(traced.pid())? - before_ns) / ops as f64 - without_ns) / 1000.0;
        let events = agent.events()?;
        note(&format!("{}: {cost_us:.2} µs, {cpu_us:.2} µs of CPU, {} events lost", kind.name, events.lost));
        samples.without_ns.push(without_ns);
        samples.cost_us.push(cost_us);
        samples.cpu_us.push(cpu_us);
        samples.lost_percent.push(events.lost as f64 * 100.0 / (events.lost + events.seen) as f64);
    }
    Ok(samples)
}
