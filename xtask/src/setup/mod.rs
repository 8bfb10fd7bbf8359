//! `cargo xtask setup`: what a build or a test needs and that does not come with the system, once, into the cache.

mod bpf_linker;
mod nccl;
mod pip;
mod prometheus;
mod space;
pub(crate) mod wheels;

use anyhow::Result;

use crate::{
    cache::Cache,
    preflight,
    progress::{self, Step},
    toolchain::Rustc,
};
use wheels::{Choice, Wheel};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    nccl: Choice,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let (cache, rustc, wheels) = (Cache::open()?, Rustc::in_use()?, args.nccl.wheels()?);
    let mut steps = build_steps(&cache, &rustc);
    steps.extend(test_steps(&cache, &wheels));
    let report = progress::run(steps);
    if report.passed() {
        println!("set up in {}: all is in {}", progress::seconds(report.took()), cache.root().display());
    }
    Ok(report.passed())
}

/// What building takes.
pub(crate) fn build_steps<'a>(cache: &'a Cache, rustc: &'a Rustc) -> Vec<Step<'a>> {
    vec![
        Step::gate("system", || preflight::system(rustc)),
        Step::gate("bpf-linker", || bpf_linker::install(cache, rustc)),
    ]
}

/// What running the bed takes.
pub(crate) fn nccl_steps<'a>(cache: &'a Cache, wheels: &'a [Wheel]) -> Vec<Step<'a>> {
    let step = |wheel: &'a Wheel| Step::gate(format!("NCCL {}", wheel.release), || nccl::install(cache, wheel));
    wheels.iter().map(step).collect()
}

/// What the tests take beyond that.
pub(crate) fn test_steps<'a>(cache: &'a Cache, wheels: &'a [Wheel]) -> Vec<Step<'a>> {
    let mut steps = nccl_steps(cache, wheels);
    steps.push(Step::gate("Prometheus", || prometheus::install(cache)));
    steps
}
