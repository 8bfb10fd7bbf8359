//! Verdicts as an engineer reads them: first the one line to forward, then how we know it.

use anstyle::{AnsiColor, Style};

use crate::{
    model::ids::{Nanos, SECOND},
    rules::{Change, Severity, Verdict},
};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

fn colour(severity: Severity) -> Style {
    let colour = match severity {
        Severity::Critical => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
        Severity::Info => AnsiColor::Cyan,
    };
    Style::new().bold().fg_color(Some(colour.into()))
}

/// A whole verdict, at time `now`. Carries ANSI colours; print it through `anstream`, which drops them where
/// they don't belong.
#[must_use]
pub fn verdict(v: &Verdict, now: Nanos) -> String {
    let mut out = String::new();
    let c = colour(v.severity);
    out += &format!("{c}{} {} [{}]{c:#} {BOLD}{}{BOLD:#}\n", v.rule, v.name, v.severity.label(), v.headline);
    out += &format!("  confidence: {}, {}\n", v.confidence.level.label(), v.confidence.reason);
    out += "  evidence:\n";
    for e in &v.evidence {
        let ago = now.saturating_sub(e.at) as f64 / SECOND as f64;
        out += &format!("    - {} {DIM}({}, {ago:.1} s ago){DIM:#}\n", e.text, e.source.label());
    }
    // One step says no more than the headline.
    if v.chain.len() > 1 {
        out += &chain(&v.chain);
    }
    out += &format!("  refuted by: {}\n", v.refuted_by);
    out += "  next:\n";
    for step in &v.next_steps {
        out += &format!("    $ {step}\n");
    }
    out
}

/// The way from a symptom to the first cause.
#[must_use]
pub fn chain(steps: &[String]) -> String {
    let lines = steps.iter().enumerate().map(|(i, step)| format!("    {}. {step}\n", i + 1));
    std::iter::once("  chain:\n".to_owned()).chain(lines).collect()
}

/// What `watch` prints of a change.
#[must_use]
pub fn change(c: &Change, now: Nanos) -> String {
    match c {
        Change::Raised(v) => verdict(v, now),
        Change::Updated(v) => format!("UPDATE {}", verdict(v, now)),
        Change::Cleared(v) => {
            let after = now.saturating_sub(v.since) as f64 / SECOND as f64;
            format!("CLEARED {} {} after {after:.1} s: {}\n", v.rule, v.name, v.headline)
        }
    }
}
