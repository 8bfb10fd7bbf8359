//! `cargo xtask bench`: what Mycroft costs, measured and written into docs/performance.md.

use std::{fs, process::Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{exec, toolchain};

const BEGIN: &str = "<!-- measured: begin -->";
const END: &str = "<!-- measured: end -->";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fewer and shorter runs, and docs/performance.md stays as it is
    #[arg(long)]
    quick: bool,
    /// Only one part: cost, agent, time or overhead; docs/performance.md stays as it is
    #[arg(long, value_name = "PART")]
    only: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut build = toolchain::cargo();
    build.args(["build", "--release", "--workspace"]);
    if !build.status().with_context(|| exec::cannot_start(&build))?.success() {
        bail!("cannot build the bed and the agent");
    }
    let mut bench = toolchain::cargo();
    bench.args(["run", "--release", "--quiet", "-p", "mycroft-tests", "--bin", "bench", "--"]);
    bench.args(args.quick.then_some("--quick"));
    bench.args(args.only.iter().flat_map(|o| ["--only", o]));
    println!("measuring; this takes {}", if args.quick { "2 minutes" } else { "6 minutes" });
    let out = bench.stderr(Stdio::inherit()).output().with_context(|| exec::cannot_start(&bench))?;
    let tables = String::from_utf8_lossy(&out.stdout);
    println!("{tables}");
    if !out.status.success() {
        bail!("the benchmark failed: {}", out.status);
    }
    if !args.quick && args.only.is_none() {
        write(&tables)?;
    }
    Ok(true)
}

fn write(tables: &str) -> Result<()> {
    let page = toolchain::repository().join("docs/performance.md");
    let text = fs::read_to_string(&page)?;
    let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
        bail!("{} has lost its markers {BEGIN} and {END}", page.display());
    };
    fs::write(&page, format!("{}{BEGIN}\n\n{}\n\n{}", &text[..begin], tables.trim(), &text[end..]))?;
    println!("written to {}", page.display());
    Ok(())
}
