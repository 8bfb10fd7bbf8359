//! The cost of one traced operation, and what the agent itself uses.

use std::{fs, thread::sleep, time::Duration};

use mycroft_tests::{
    agent::Agent,
    load::{Build, Load},
};

use crate::stats::Sample;

/// One run of the driver with `ops` operations at full speed: ns an operation.
fn run(load: &Load, agent: Option<&Agent>, options: &str) -> f64 {
    let mut d = load.start(options);
    if let Some(agent) = agent {
        agent.until_known(d.pid());
    }
    d.go();
    d.ns_per_op()
}

pub(crate) fn per_operation(quick: bool) -> String {
    let load = Load::build(Build::Debug);
    let n = if quick { 3 } else { 10 };
    let mut out = "## Cost of one traced operation\n\nµs an operation, at full speed in one thread, agent attached \
                   minus not attached; target: under 2 with one probe.\n\n| probes an operation | min | median | max |\n\
                   | --- | --- | --- | --- |\n"
        .to_owned();
    for (name, options, driver) in [
        ("1 (`ncclEnqueueCheck`)", vec![], "ops=100000"),
        ("2 (with `--launches`)", vec!["--launches"], "ops=100000 launch=1"),
    ] {
        let bare = Sample::new((0..n).map(|_| run(&load, None, driver)).collect()).at(0.5);
        let agent = Agent::start(&options);
        let cost: Vec<f64> = (0..n).map(|_| (run(&load, Some(&agent), driver) - bare) / 1000.0).collect();
        out += &format!("| {name} | {} |\n", Sample::new(cost).row(2));
    }
    out
}

/// CPU seconds and resident MB of a process.
fn usage(pid: u32) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(')').next().unwrap_or("").split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    let field = |i: usize| fields.get(i).copied().unwrap_or(f64::NAN);
    // After the name: state is field 0, utime 11, stime 12, rss (pages) 21.
    ((field(11) + field(12)) / 100.0, field(21) * 4096.0 / 1e6)
}

pub(crate) fn agent(quick: bool) -> String {
    let load = Load::build(Build::Debug);
    let seconds = if quick { 3 } else { 10 };
    let mut out = "## The agent itself\n\n| | |\n| --- | --- |\n".to_owned();
    let agent = Agent::start(&[]);
    sleep(Duration::from_secs(seconds));
    let (idle_cpu, idle_rss) = usage(agent.pid());
    sleep(Duration::from_secs(seconds));
    let idle = (usage(agent.pid()).0 - idle_cpu) / seconds as f64;
    out += &format!("| CPU idle, share of one core | {:.1} % |\n", idle * 100.0);
    out += &format!("| resident memory idle | {idle_rss:.1} MB |\n");
    for rate in [10_000u64, 50_000] {
        let mut d = load.start(&format!("ops={} rate={rate} stay=1 hash={rate}", rate * seconds));
        agent.until_known(d.pid());
        let lost = agent.metric("mycroft_events_dropped_total", "ring_full");
        let before = usage(agent.pid()).0;
        d.go();
        let ns = d.ns_per_op();
        sleep(Duration::from_millis(300));
        let (after, rss) = usage(agent.pid());
        let took = ns * (rate * seconds) as f64 / 1e9;
        let lost = agent.metric("mycroft_events_dropped_total", "ring_full") - lost;
        let real = 1e9 / ns;
        out += &format!(
            "| at {real:.0} operations/s for {took:.0} s | CPU {:.1} % of one core, {rss:.1} MB, {lost:.0} lost |\n",
            (after - before) / took * 100.0
        );
    }
    let calls = 2_000_000u64;
    let mut d = load.start(&format!("ops={calls} stay=1 hash=7 threads=1"));
    agent.until_known(d.pid());
    let before = agent.metric("mycroft_events_total", "") + agent.metric("mycroft_events_dropped_total", "ring_full");
    d.go();
    let ns = d.ns_per_op();
    sleep(Duration::from_secs(1));
    let lost = agent.metric("mycroft_events_dropped_total", "ring_full");
    let seen = agent.metric("mycroft_events_total", "") + lost - before;
    out += &format!(
        "| at full speed, {:.0} operations/s, {calls} calls | {seen:.0} accounted for, of which {lost:.0} lost |\n",
        1e9 / ns
    );
    out
}
