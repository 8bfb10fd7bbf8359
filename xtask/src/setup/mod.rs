//! `cargo xtask setup`: everything that a build or a test needs and that does not come with the system.

pub(crate) mod bpf_linker;

use anyhow::Result;

use crate::{cache::Cache, progress::Steps};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    let cache = Cache::open()?;
    let mut steps = Steps::new(1);
    steps.run("bpf-linker for this rustc", || bpf_linker::install(&cache))?;
    Ok(())
}
