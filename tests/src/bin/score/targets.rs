//! What the score must reach.

use std::time::Duration;

use mycroft_agent::simulate::scenario::CLASSES;

use crate::{
    bed::{self, Row},
    healthy,
    run::{Gap, Outcome},
    table::{Sum, share},
    timing::Time,
};

/// Right culprit, in percent.
const RIGHT: usize = 99;
/// Seconds on the test bed: 90th percentile to detect and to name, and the worst to name.
const DETECT: f64 = 2.0;
const NAME: f64 = 3.0;
const NAME_WORST: f64 = 5.0;
/// One evaluation at 16,384 ranks.
const EVALUATION: Duration = Duration::from_secs(1);
/// A class of which nothing can be seen: it must accuse nobody, and need not be right.
const UNSEEN: &[&str] = &["gpu-stands-still-nvlink"];

/// Missed targets of the simulation, each with its cell.
pub(crate) fn simulation(results: &[Outcome]) -> Vec<String> {
    let mut missed = Vec::new();
    for class in CLASSES {
        let all = || results.iter().filter(|o| o.case.class.name == class.name);
        let sum = Sum::of(all().filter(|o| o.case.gap == Gap::Nothing));
        if class.is_fault() && !UNSEEN.contains(&class.name) && sum.right * 100 < sum.runs * RIGHT {
            missed.push(format!("{}: right culprit in {}", class.name, share(sum.right, sum.runs)));
        }
        let wrong = all().filter(|o| !o.wrong.is_empty()).count();
        if wrong > 0 {
            missed.push(format!("{}: innocent ranks accused in {wrong} of {} runs", class.name, all().count()));
        }
        let alarms = all().filter(|o| !o.false_alarms.is_empty()).count();
        if alarms > 0 {
            missed.push(format!("{}: false alarms in {alarms} of {} runs", class.name, all().count()));
        }
    }
    missed
}

pub(crate) fn healthy(runs: &[healthy::Run]) -> Vec<String> {
    let of = |r: &healthy::Run| format!("healthy, {} ranks, seed {}: {} false alarms", r.ranks, r.seed, r.alarms.len());
    runs.iter().filter(|r| !r.alarms.is_empty()).map(of).collect()
}

pub(crate) fn time(times: &[Time]) -> Vec<String> {
    let slow = times.iter().filter(|t| t.hang.max(t.healthy) > EVALUATION);
    slow.map(|t| format!("evaluation at {} ranks: {:.1} s", t.ranks, t.hang.max(t.healthy).as_secs_f64())).collect()
}

pub(crate) fn bed(rows: &[Row]) -> Vec<String> {
    let mut missed = Vec::new();
    let right = rows.iter().filter(|r| r.right).count();
    if right * 100 < rows.len() * RIGHT {
        missed.push(format!("test bed: right culprit in {}", share(right, rows.len())));
    }
    let wrong = rows.iter().filter(|r| r.wrong).count();
    if wrong > 0 {
        missed.push(format!("test bed: innocent ranks accused in {wrong} runs"));
    }
    let [(detect, _), (name, worst)] = bed::times(rows);
    for (what, took, most) in [
        ("to detect, 90th percentile", detect, DETECT),
        ("to name, 90th percentile", name, NAME),
        ("to name, worst", worst, NAME_WORST),
    ] {
        if took > most {
            missed.push(format!("test bed: {took:.1} s {what}, wanted {most} s"));
        }
    }
    missed
}

pub(crate) fn list(missed: &[String]) -> String {
    if missed.is_empty() {
        return "All targets are met.".to_owned();
    }
    format!("Missed:\n\n- {}", missed.join("\n- "))
}
