//! `cargo xtask bench`: measures, and puts the tables into docs/performance.md, between their markers.

use anyhow::{Result, bail};

use crate::{
    cache::Cache,
    exec, preflight,
    progress::{self, Step},
    sections,
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

fn measure(args: &Args) -> Result<String> {
    let mut bench = sections::program("bench")?;
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
    sections::write(PAGE, "bench", &end.kept.join("\n"))?;
    Ok(format!("{PAGE} has them"))
}
