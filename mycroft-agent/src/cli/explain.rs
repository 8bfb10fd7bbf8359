//! `mycroft explain`: how a symptom leads to its first cause, step by step.

#![expect(clippy::print_stdout, reason = "the command's output")]

use std::{fs, path::Path};

use anyhow::{Context as _, Result, anyhow};

use super::{
    args::Explain,
    diagnose::{self, Answer},
};
use crate::report::dot;

/// Exit codes as `diagnose`.
pub(super) async fn run(args: Explain) -> Result<u8> {
    let answer = diagnose::ask(&args.diagnose).await?;
    if let Some(path) = &args.dot {
        write(path, &answer.dot)?;
    }
    if let Some(path) = &args.svg {
        let svg = dot::svg(&answer.dot).map_err(|e| anyhow!("cannot draw the graph: {e}"));
        write(path, &if answer.dot.is_empty() { String::new() } else { svg? })?;
    }
    if args.diagnose.json {
        return Ok(diagnose::print(&answer, true));
    }
    chains(&answer);
    Ok(diagnose::print(&answer, false))
}

fn write(path: &Path, text: &str) -> Result<()> {
    if text.is_empty() {
        anstream::eprintln!("nothing waits, so {} is not written", path.display());
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// First the ways, then the verdicts with their evidence.
fn chains(answer: &Answer) {
    for v in &answer.verdicts {
        println!("{} {}", v.rule, v.headline);
        for (i, step) in v.chain.iter().enumerate() {
            println!("  {}. {step}", i + 1);
        }
        match v.culprits.as_slice() {
            [] => println!("  => nobody is blamed: {}", v.confidence_reason),
            [one] => println!("  => rank {} (pid {}) is the first cause: it waits for nobody", one.rank, one.pid),
            many => println!("  => {} ranks are the first cause", many.len()),
        }
        println!();
    }
}
