//! What a person sees while long things run: `[2/5] what`, a sign of life, and the time at the end.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Numbers the steps of one command.
#[derive(Debug)]
pub(crate) struct Steps {
    total: usize,
    done: usize,
}

impl Steps {
    pub(crate) fn new(total: usize) -> Self {
        Self { total, done: 0 }
    }

    /// Runs one step; its value says in a few words what came out of it.
    pub(crate) fn run(&mut self, what: &str, step: impl FnOnce() -> Result<String>) -> Result<Duration> {
        self.done += 1;
        let (n, total) = (self.done, self.total);
        println!("[{n}/{total}] {what}");
        let start = Instant::now();
        let outcome = step()?;
        let took = start.elapsed();
        println!("[{n}/{total}] {outcome} ({})", seconds(took));
        Ok(took)
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
