//! `cargo xtask score`: how often the analyser is right; puts the tables into docs/accuracy.md, between their markers.

use anyhow::{Result, bail};

use crate::{
    cache::Cache,
    exec,
    progress::{self, Step},
    sections, setup, stream,
    toolchain::{self, Rustc},
};

const PAGE: &str = "docs/accuracy.md";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Few seeds and small clusters
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let (cache, rustc) = (Cache::open()?, Rustc::in_use()?);
    let mut steps = setup::build_steps(&cache, &rustc);
    steps.push(Step::gate("build", build));
    steps.push(Step::gate("score", || measure(args)));
    Ok(progress::run(steps).passed())
}

fn build() -> Result<String> {
    let mut cargo = toolchain::cargo();
    cargo.args(["build", "--release", "-p", "mycroft-tests", "--bin", "score"]);
    if !stream::run(&mut cargo, |_| false)?.success {
        bail!("cannot build; once more with `{}`", exec::shown(&cargo));
    }
    Ok("the analyser and the simulation".into())
}

/// The page gets what was measured also where a target is missed: that is what a reader must know.
fn measure(args: &Args) -> Result<String> {
    let mut score = sections::program("score")?;
    score.args(args.quick.then_some("--quick"));
    let end = stream::run(&mut score, |_| true)?;
    if !end.kept.iter().any(|l| l == "<!-- /score:targets -->") {
        bail!("the score ended before its last table; once more with `{}`", exec::shown(&score));
    }
    let what = if args.quick { "with `--quick`: few seeds, 8 and 64 ranks" } else { "in full" };
    let run = format!("<!-- score:run -->\nLast measured {what}.\n<!-- /score:run -->\n");
    sections::write(PAGE, "score", &(run + &end.kept.join("\n")))?;
    if !end.success {
        bail!("targets are missed: {PAGE} lists them");
    }
    Ok(format!("{PAGE} has it"))
}
