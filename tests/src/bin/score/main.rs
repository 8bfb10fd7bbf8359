//! `cargo xtask score`: how often the analyser is right, on simulated clusters. Prints Markdown, in sections between
//! markers, which xtask puts into docs/accuracy.md; exits with 1 if a target is missed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "talking to a person is what this program is for")]

mod bed;
mod healthy;
mod run;
mod suite;
mod table;
mod targets;
mod timing;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use mycroft_agent::simulate::scenario::{CLASSES, Class};

use run::{Case, Gap};

/// What is asked for.
#[derive(Debug, Default)]
struct Args {
    quick: bool,
    trace: bool,
    class: Option<String>,
    seed: Option<u64>,
    size: Option<u32>,
    gap: Option<String>,
    bed: Option<String>,
    only: Option<String>,
}

impl Args {
    fn parse() -> Result<Self> {
        let mut parsed = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} wants a value"));
            match arg.as_str() {
                "--quick" => parsed.quick = true,
                "--trace" => parsed.trace = true,
                "--class" => parsed.class = Some(value()?),
                "--seed" => parsed.seed = Some(value()?.parse()?),
                "--size" => parsed.size = Some(value()?.parse()?),
                "--gap" => parsed.gap = Some(value()?),
                "--bed" => parsed.bed = Some(value()?),
                "--only" => parsed.only = Some(value()?),
                other => bail!(
                    "{other}: score takes --quick, --only PART, --bed FILE, --class NAME, --seed N, --size RANKS, \
                     --gap none|1%|host|culprit|completions and --trace"
                ),
            }
        }
        Ok(parsed)
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse()?;
    match &args.class {
        Some(name) => one(&args, name).map(|()| ExitCode::SUCCESS),
        None => all(&args),
    }
}

/// One class, for a closer look.
fn one(args: &Args, name: &str) -> Result<()> {
    let names = || CLASSES.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
    let class = Class::named(name).with_context(|| format!("no class {name}: there are {}", names()))?;
    let gap = args.gap.as_deref().unwrap_or("none");
    let gap = Gap::parse(gap).with_context(|| format!("--gap {gap}: none, 1%, host, culprit or completions"))?;
    let ranks = args.size.unwrap_or(64);
    let case = Case { class, seed: args.seed.unwrap_or(0), ranks, gap };
    let truth = class.scenario(case.seed, ranks).truth;
    println!("{name}: {}\ntruth: {truth:?}", class.about);
    let outcome = run::run(case, &mut |line| {
        if args.trace {
            println!("{line}");
        }
    });
    println!("{outcome:#?}");
    Ok(())
}

fn all(args: &Args) -> Result<ExitCode> {
    let wanted = |part: &str| args.only.as_deref().is_none_or(|o| o == part);
    let mut missed = Vec::new();
    if wanted("simulation") {
        let results = suite::run(args.quick);
        section("simulation", &table::simulation(&results));
        section("gaps", &table::gaps(&results));
        section("wrong", &table::wrong(&results));
        section("incidents", &table::incidents(&results));
        missed.extend(targets::simulation(&results));
    }
    if wanted("healthy") {
        let runs = healthy::run(args.quick);
        section("healthy", &healthy::table(&runs));
        missed.extend(targets::healthy(&runs));
    }
    if wanted("time") {
        let times = timing::measure(args.quick);
        section("time", &timing::table(&times));
        missed.extend(targets::time(&times));
    }
    if let Some(path) = &args.bed {
        let rows = bed::read(path)?;
        section("bed", &bed::table(&rows));
        missed.extend(targets::bed(&rows));
    }
    let list = targets::list(&missed);
    section("targets", &list);
    eprintln!("{list}");
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn section(name: &str, text: &str) {
    println!("<!-- score:{name} -->\n{}\n<!-- /score:{name} -->", text.trim());
}

/// A sign of life, not part of the result.
fn note(text: &str) {
    eprintln!("  {text}");
}
