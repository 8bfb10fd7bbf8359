//! `cargo xtask bench`: measures, and puts the tables into docs/performance.md, between their markers.

use std::{env, fs, ops::Range, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    cache::Cache,
    exec, preflight,
    progress::{self, Step},
    setup::{self, wheels::Choice},
    stream,
    toolchain::{self, Rustc},
};

/// Jobs run on the first; the second has the largest library.
const RELEASES: [&str; 2] = ["2.27.5", "2.32.3"];
const PAGE: &str = "docs/performance.md";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Few and short measurements, to see that all works; the page stays as it is
    #[arg(long)]
    quick: bool,
    /// Only this part
    #[arg(long, value_parser = ["overhead", "cost", "agent", "time"])]
    only: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let (cache, rustc) = (Cache::open()?, Rustc::in_use()?);
    let mut wheels = Vec::new();
    for release in RELEASES {
        wheels.extend(Choice::only(release).wheels()?);
    }
    let mut steps = setup::build_steps(&cache, &rustc);
    steps.insert(1, Step::gate("kernel", || preflight::kernel("")));
    steps.extend(setup::nccl_steps(&cache, &wheels));
    steps.push(Step::gate("build", build));
    steps.push(Step::gate("measurements", || measure(args)));
    Ok(progress::run(steps).passed())
}

/// The selection of `cargo xtask test`, so that nothing is compiled for this alone.
fn build() -> Result<String> {
    let mut cargo = toolchain::cargo();
    cargo.args(["build", "--release", "--workspace", "--lib", "--bins", "--tests"]);
    if !stream::run(&mut cargo, |_| false)?.success {
        bail!("cannot build; once more with `{}`", exec::shown(&cargo));
    }
    Ok("the agent, the bed and the benchmark".into())
}

/// Beside the program that runs now, but in the release profile.
fn program() -> Result<Command> {
    let xtask = env::current_exe()?;
    let target = xtask.parent().and_then(|profile| profile.parent()).map(|target| target.join("release/bench"));
    target.filter(|p| p.is_file()).map(Command::new).context("the build made no program `bench`")
}

fn measure(args: &Args) -> Result<String> {
    let mut bench = program()?;
    bench.args(args.quick.then_some("--quick"));
    if let Some(part) = &args.only {
        bench.args(["--only", part]);
    }
    let end = stream::run(&mut bench, |_| true)?;
    if !end.success {
        bail!("the benchmark failed: see above");
    }
    if args.quick {
        return Ok("too short to be kept".into());
    }
    let path = toolchain::repository().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    fs::write(&path, replaced(&page, &end.kept.join("\n"))?)?;
    Ok(format!("{PAGE} has them"))
}

/// The page with every section that `output` has in the place of its own.
fn replaced(page: &str, output: &str) -> Result<String> {
    let mut page = page.to_owned();
    for name in output.lines().filter_map(|l| l.strip_prefix("<!-- bench:")?.strip_suffix(" -->")) {
        let section = between(output, name).with_context(|| format!("no end of {name} in the output"))?;
        let old = between(&page, name).with_context(|| format!("{PAGE} has no place for {name}"))?;
        page.replace_range(old, &output[section]);
    }
    Ok(page)
}

/// Where the text between two markers begins and ends.
fn between(text: &str, name: &str) -> Option<Range<usize>> {
    let (open, close) = (format!("<!-- bench:{name} -->"), format!("<!-- /bench:{name} -->"));
    let begin = text.find(&open)? + open.len();
    Some(begin..begin + text[begin..].find(&close)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_is_replaced() {
        let page = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n<!-- bench:y -->\nkept\n<!-- /bench:y -->\n";
        let output = "<!-- bench:x -->\nnew\nlines\n<!-- /bench:x -->";
        let new = replaced(page, output).unwrap();
        assert_eq!(new, page.replace("old", "new\nlines"));
        assert_eq!(replaced(&new, output).unwrap(), new);
    }

    #[test]
    fn a_section_without_a_place_is_told() {
        let error = replaced("a", "<!-- bench:x -->\n<!-- /bench:x -->").unwrap_err().to_string();
        assert!(error.contains("no place for x"), "{error}");
    }
}
