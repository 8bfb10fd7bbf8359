//! What the agent takes of the host, and what it loses.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use mycroft_tests::{
    load::{Build, Driver, Load},
    programs,
};

use crate::{
    Scale,
    agent::{Agent, Cache, Events},
    library::Pushing,
    note,
    stats::{Spread, row},
};

/// The release with the largest library: 474 MB.
const LARGEST: &str = "2.32.3";
const STEADY_PER_SECOND: u64 = 10_000;
const FAST_PER_SECOND: u64 = 50_000;
/// The driver, and a library that is as fast to probe as NCCL.
type Loads = (Load, Pushing);
/// Events of a communicator's creation.
const CREATION: u64 = 2;

#[derive(Debug, Default)]
struct Samples {
    idle_cpu_percent: Vec<f64>,
    idle_mb: Vec<f64>,
    steady_rate: Vec<f64>,
    steady_cpu_percent: Vec<f64>,
    steady_mb: Vec<f64>,
    reading_seconds: Vec<f64>,
    after_reading_mb: Vec<f64>,
    while_reading_mb: Vec<f64>,
    fast_rate: Vec<f64>,
    fast_lost: Vec<f64>,
    full_rate: Vec<f64>,
    full_lost_percent: Vec<f64>,
    unaccounted: Vec<f64>,
}

pub(crate) fn measure(scale: Scale) -> Result<String> {
    let load = (Load::build(Build::Debug), Pushing::build()?);
    let cache = Cache::new()?;
    let mut s = Samples::default();
    let steady_seconds = scale.of(8, 2);
    for _ in 0..scale.of(3, 1) {
        steady(&mut s, &load, &cache, steady_seconds)?;
        reading(&mut s, &load.0)?;
        let (rate, events) = counted(&load, &cache, FAST_PER_SECOND * scale.of(5, 1), FAST_PER_SECOND)?;
        s.fast_rate.push(rate);
        s.fast_lost.push(events.lost as f64);
        let calls = scale.of(500_000, 100_000);
        let (rate, events) = counted(&load, &cache, calls, 0)?;
        s.full_rate.push(rate);
        s.full_lost_percent.push(events.lost as f64 * 100.0 / calls as f64);
        s.unaccounted.push((calls + CREATION) as f64 - (events.seen + events.lost) as f64);
        note(&format!("full speed: {calls} calls, {events:?}"));
    }
    Ok(report(&s))
}

/// A driver of one communicator, and an agent that traces only it, so that counts are exact.
fn traced(load: &Loads, cache: &Cache, calls: u64, per_second: u64) -> Result<(Driver, Agent)> {
    let driver = load.0.start_on(&load.1.path(), &format!("ops={calls} rate={per_second} nranks=2 init=1 stay=1"));
    let pid = driver.pid();
    let agent = Agent::on(cache, &["--pid", &pid.to_string()], &[pid])?;
    Ok((driver, agent))
}

fn steady(s: &mut Samples, load: &Loads, cache: &Cache, seconds: u64) -> Result<()> {
    let calls = STEADY_PER_SECOND * seconds;
    let (mut driver, agent) = traced(load, cache, calls, STEADY_PER_SECOND)?;
    sleep(Duration::from_secs(1));
    let (begin, before) = (Instant::now(), agent.cpu_seconds()?);
    sleep(Duration::from_secs(4));
    s.idle_cpu_percent.push((agent.cpu_seconds()? - before) * 100.0 / begin.elapsed().as_secs_f64());
    s.idle_mb.push(agent.memory_mb("VmRSS")?);
    let (begin, before) = (Instant::now(), agent.cpu_seconds()?);
    driver.go();
    s.steady_rate.push(1e9 / driver.ns_per_op());
    let cpu_percent = (agent.cpu_seconds()? - before) * 100.0 / begin.elapsed().as_secs_f64();
    s.steady_cpu_percent.push(cpu_percent);
    s.steady_mb.push(agent.memory_mb("VmRSS")?);
    let events = agent.events()?;
    ensure!(events == Events { seen: calls + CREATION, lost: 0 }, "{calls} calls, {events:?}");
    note(&format!("{STEADY_PER_SECOND} operations/s: {cpu_percent:.1} % of a core"));
    Ok(())
}

/// Reads the largest library with nothing in the cache.
fn reading(s: &mut Samples, load: &Load) -> Result<()> {
    let library = programs::cache().join("nccl").join(LARGEST).join("libnccl.so.2");
    ensure!(library.is_file(), "NCCL {LARGEST} is not there: run `cargo xtask setup --nccl {LARGEST}`");
    let process = load.start_on(&library, "");
    let cache = Cache::new()?;
    let begin = Instant::now();
    let mut agent = Agent::on(&cache, &["--pid", &process.pid().to_string()], &[process.pid()])?;
    agent.wait("attached to the library", |a| Ok(a.libraries()? == 1))?;
    s.reading_seconds.push(begin.elapsed().as_secs_f64());
    s.after_reading_mb.push(agent.memory_mb("VmRSS")?);
    s.while_reading_mb.push(agent.memory_mb("VmHWM")?);
    Ok(())
}

/// Rate reached and what became of the events. `per_second` 0: as fast as it goes.
fn counted(load: &Loads, cache: &Cache, calls: u64, per_second: u64) -> Result<(f64, Events)> {
    let (mut driver, agent) = traced(load, cache, calls, per_second)?;
    driver.go();
    let rate = 1e9 / driver.ns_per_op();
    Ok((rate, agent.events()?))
}

fn report(s: &Samples) -> String {
    let n = s.idle_mb.len();
    let mut text = format!("{n} repetitions.\n\n| | min | median | max | unit |\n|---|---|---|---|---|\n");
    let mut line = |what: &str, values: &[f64], decimals, unit| {
        text += &row(what, &Spread::of(values.iter().copied()), decimals, unit);
    };
    line("idle: CPU", &s.idle_cpu_percent, 1, "% of a core");
    line("idle: resident memory", &s.idle_mb, 1, "MB");
    let steady = format!("{STEADY_PER_SECOND} operations/s");
    line(&format!("{steady}: rate reached"), &s.steady_rate, 0, "operations/s");
    line(&format!("{steady}: CPU"), &s.steady_cpu_percent, 1, "% of a core");
    line(&format!("{steady}: resident memory"), &s.steady_mb, 1, "MB");
    let reading = format!("first reading of NCCL {LARGEST}");
    line(&format!("{reading}: time from start to traced"), &s.reading_seconds, 2, "s");
    line(&format!("{reading}: resident memory just after"), &s.after_reading_mb, 1, "MB");
    line(&format!("{reading}: most resident memory (VmHWM)"), &s.while_reading_mb, 1, "MB");
    let fast = format!("{FAST_PER_SECOND} operations/s");
    line(&format!("{fast}: rate reached"), &s.fast_rate, 0, "operations/s");
    line(&format!("{fast}: events lost"), &s.fast_lost, 0, "events");
    line("full speed: rate reached", &s.full_rate, 0, "operations/s");
    line("full speed: events lost, all counted", &s.full_lost_percent, 1, "%");
    line("full speed: calls neither seen nor counted as lost", &s.unaccounted, 0, "calls");
    text
}
