//! What a person sees while long things run: `[2/5] what`, signs of life, and what each step came to and took.

use std::time::{Duration, Instant};

use anyhow::Result;

pub(crate) struct Step<'a> {
    what: String,
    gate: bool,
    work: Box<dyn FnOnce() -> Result<String> + 'a>,
}

impl<'a> Step<'a> {
    /// A step without which the later ones make no sense: they are not run if it fails.
    /// The value of `work` says in a few words what came out of it.
    pub(crate) fn gate(what: impl Into<String>, work: impl FnOnce() -> Result<String> + 'a) -> Self {
        Self { what: what.into(), gate: true, work: Box::new(work) }
    }

    /// A step whose failure does not keep the later ones from telling more.
    pub(crate) fn check(what: impl Into<String>, work: impl FnOnce() -> Result<String> + 'a) -> Self {
        Self { what: what.into(), gate: false, work: Box::new(work) }
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
    total: Duration,
}

#[derive(Debug)]
struct Row {
    what: String,
    took: Duration,
    outcome: Outcome,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Done(String),
    Failed,
    NotRun,
}

/// Runs the steps in their order, and tells of each failure where it happens.
pub(crate) fn run(steps: Vec<Step<'_>>) -> Report {
    let total = steps.len();
    let begin = Instant::now();
    let mut stopped = false;
    let mut rows = Vec::new();
    for (n, step) in (1..).zip(steps) {
        if stopped {
            rows.push(Row { what: step.what, took: Duration::ZERO, outcome: Outcome::NotRun });
            continue;
        }
        println!("[{n}/{total}] {}", step.what);
        let start = Instant::now();
        let result = (step.work)();
        let took = start.elapsed();
        let outcome = match result {
            Ok(text) => {
                println!("[{n}/{total}] done in {}: {text}", seconds(took));
                Outcome::Done(text)
            }
            Err(error) => {
                eprintln!("[{n}/{total}] FAILED after {}\nerror: {error:#}", seconds(took));
                stopped = step.gate;
                Outcome::Failed
            }
        };
        rows.push(Row { what: step.what, took, outcome });
    }
    Report { rows, total: begin.elapsed() }
}

impl Report {
    pub(crate) fn passed(&self) -> bool {
        self.rows.iter().all(|r| matches!(r.outcome, Outcome::Done(_)))
    }

    /// The steps that failed, without those that were not run for it.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().filter(|r| r.outcome == Outcome::Failed).map(|r| r.what.as_str())
    }

    pub(crate) fn took(&self) -> Duration {
        self.total
    }

    /// Steps, their times and what came out, one a line.
    pub(crate) fn table(&self) -> String {
        let width = self.rows.iter().map(|r| r.what.chars().count()).max().unwrap_or(0);
        let line = |r: &Row| {
            let (took, text) = match &r.outcome {
                Outcome::Done(text) => (seconds(r.took), text.as_str()),
                Outcome::Failed => (seconds(r.took), "FAILED"),
                Outcome::NotRun => ("-".into(), "not run"),
            };
            format!("  {:width$}  {took:>11}  {text}\n", r.what)
        };
        self.rows.iter().map(line).collect()
    }
}

/// A line that belongs to the step at work.
pub(crate) fn note(text: &str) {
    println!("      {text}");
}

pub(crate) fn seconds(d: Duration) -> String {
    match d.as_secs() {
        s if s >= 60 => format!("{} min {:02} s", s / 60, s % 60),
        s if s >= 10 => format!("{s} s"),
        _ => format!("{:.1} s", d.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn good(what: &str) -> Step<'static> {
        Step::gate(what, || Ok("fine".into()))
    }

    #[test]
    fn all_done_is_a_pass() {
        assert!(run(vec![good("a"), good("b")]).passed());
    }

    #[test]
    fn a_failed_gate_stops_and_a_failed_check_does_not() {
        let after_gate = run(vec![Step::gate("a", || bail!("no")), good("b")]);
        assert!(!after_gate.passed());
        assert_eq!(after_gate.failed().collect::<Vec<_>>(), ["a"]);
        assert_eq!(after_gate.rows[1].outcome, Outcome::NotRun);

        let after_check = run(vec![Step::check("a", || bail!("no")), good("b")]);
        assert!(!after_check.passed());
        assert_eq!(after_check.rows[1].outcome, Outcome::Done("fine".into()));
    }

    #[test]
    fn the_table_shows_every_step() {
        let table = run(vec![good("build"), Step::gate("tests", || bail!("no")), good("last")]).table();
        let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["build", "0.0", "s", "fine"]);
        assert_eq!(rows[1], ["tests", "0.0", "s", "FAILED"]);
        assert_eq!(rows[2], ["last", "-", "not", "run"]);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(59)), "59 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 05 s");
    }
}
