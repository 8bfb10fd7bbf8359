//! Tables of docs/accuracy.md.

use std::collections::BTreeMap;

use mycroft_agent::{
    event::Nanos,
    simulate::{
        incidents::{Covered, INCIDENTS},
        scenario::CLASSES,
    },
};

use crate::run::{Gap, Outcome};

/// Wrong accusations told one by one at most.
const TOLD: usize = 40;

/// Sums over runs.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub runs: usize,
    pub right: usize,
    pub wrong: usize,
    pub found: usize,
    insufficient: usize,
    silent: usize,
    accusations: usize,
    just: usize,
    alarms: usize,
    detect: Vec<Nanos>,
    name: Vec<Nanos>,
}

impl Sum {
    pub(crate) fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Self {
        let mut sum = Self::default();
        for o in outcomes {
            sum.runs += 1;
            sum.right += usize::from(o.right());
            sum.wrong += usize::from(!o.wrong.is_empty());
            sum.found += usize::from(o.detected.is_some());
            sum.insufficient += usize::from(o.named.is_none() && o.insufficient);
            sum.silent += usize::from(o.detected.is_none());
            sum.accusations += o.accusations;
            sum.just += o.just;
            sum.alarms += usize::from(!o.false_alarms.is_empty());
            sum.detect.extend(o.detected);
            sum.name.extend(o.named);
        }
        sum.detect.sort_unstable();
        sum.name.sort_unstable();
        sum
    }
}

pub(crate) fn share(part: usize, of: usize) -> String {
    if of == 0 { "–".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / of as f64) }
}

/// Median, 90th percentile and worst, in seconds.
fn spread(sorted: &[Nanos]) -> String {
    let Some(worst) = sorted.last() else { return "–".to_owned() };
    let at = |p: usize| sorted[(sorted.len() - 1) * p / 100] as f64 / 1e9;
    format!("{:.1} / {:.1} / {:.1}", at(50), at(90), *worst as f64 / 1e9)
}

/// Faults, one class a row, with nothing missing; then what is no fault.
pub(crate) fn simulation(results: &[Outcome]) -> String {
    let mut text = "| fault | runs | precision | recall | right culprit | wrong accusations | insufficient evidence | silent | \
                    to detect, s (p50 / p90 / worst) | to name, s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    let whole = |o: &&Outcome| o.case.gap == Gap::Nothing;
    for class in CLASSES.iter().filter(|c| c.is_fault()) {
        let sum = Sum::of(results.iter().filter(whole).filter(|o| o.case.class.name == class.name));
        if sum.runs > 0 {
            text += &row(class.name, &sum);
        }
    }
    let faults = || results.iter().filter(whole).filter(|o| o.case.class.is_fault());
    text += &row("**all faults**", &Sum::of(faults()));
    text += "\n| ranks | runs | precision | recall | right culprit | wrong accusations | insufficient evidence | silent | \
             to detect, s (p50 / p90 / worst) | to name, s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for ranks in sizes(results) {
        text += &row(&ranks.to_string(), &Sum::of(faults().filter(|o| o.case.ranks == ranks)));
    }
    text += "\n| no fault | what happens | runs | false alarms |\n| --- | --- | --- | --- |\n";
    for class in CLASSES.iter().filter(|c| !c.is_fault()) {
        let sum = Sum::of(results.iter().filter(|o| o.case.class.name == class.name));
        text += &format!("| {} | {} | {} | {} |\n", class.name, class.about, sum.runs, sum.alarms);
    }
    text
}

fn row(name: &str, s: &Sum) -> String {
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        s.runs,
        share(s.just, s.accusations),
        share(s.found, s.runs),
        share(s.right, s.runs),
        s.wrong,
        share(s.insufficient, s.runs),
        share(s.silent, s.runs),
        spread(&s.detect),
        spread(&s.name)
    )
}

fn sizes(results: &[Outcome]) -> Vec<u32> {
    let mut list: Vec<u32> = results.iter().map(|o| o.case.ranks).collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// All faults together, by what is missing.
pub(crate) fn gaps(results: &[Outcome]) -> String {
    let mut by: BTreeMap<(Gap, u32), Vec<&Outcome>> = BTreeMap::new();
    for o in results.iter().filter(|o| o.case.class.is_fault()) {
        by.entry((o.case.gap, o.case.ranks)).or_default().push(o);
    }
    let mut text = "| not seen | ranks | runs | right culprit | wrong accusations | insufficient evidence | silent |\n\
                    | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for ((gap, ranks), list) in by {
        let s = Sum::of(list.into_iter());
        text += &format!(
            "| {} | {ranks} | {} | {} | {} | {} | {} |\n",
            gap.label(),
            s.runs,
            share(s.right, s.runs),
            s.wrong,
            share(s.insufficient, s.runs),
            share(s.silent, s.runs)
        );
    }
    text
}

/// Wrong accusations and false alarms, with how to see them again.
pub(crate) fn wrong(results: &[Outcome]) -> String {
    let list: Vec<String> = results
        .iter()
        .filter_map(|o| {
            let what = o.wrong.first().or(o.false_alarms.first())?;
            Some(format!("- `{}`: {what}", o.case.command()))
        })
        .collect();
    if list.is_empty() {
        return "None.".to_owned();
    }
    let more = list.len().saturating_sub(TOLD);
    let mut text = list.into_iter().take(TOLD).collect::<Vec<_>>().join("\n");
    if more > 0 {
        text += &format!("\n- and {more} more");
    }
    text
}

/// Public incidents, by their scenarios.
pub(crate) fn incidents(results: &[Outcome]) -> String {
    let mut text = "| incident | what happened | scenario | right culprit, or nothing where nothing is wrong |\n\
                    | --- | --- | --- | --- |\n"
        .to_owned();
    for row in INCIDENTS {
        let (scenario, outcome) = match row.covered {
            Covered::Unseen(why) => ("not seen".to_owned(), why.to_owned()),
            Covered::Scenario(name) => {
                let runs = results.iter().filter(|o| o.case.gap == Gap::Nothing && o.case.class.name == name);
                let good = |o: &Outcome| if o.case.class.is_fault() { o.right() } else { o.false_alarms.is_empty() };
                let (good, all) = runs.fold((0, 0), |(g, n), o| (g + usize::from(good(o)), n + 1));
                (name.to_owned(), share(good, all))
            }
        };
        text += &format!("| {} | {} | {scenario} | {outcome} |\n", row.id, row.what);
    }
    text
}
