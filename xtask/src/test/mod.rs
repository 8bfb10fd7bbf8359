//! `cargo xtask test`: what must pass before a change lands, with the time of each part.
//!
//! Everything is built in the release profile. The jobs that the tests trace and the agent itself have to be: a slow
//! agent loses events that a user's does not. A second profile for the rest would compile every dependency, and the
//! eBPF programs, once more, and compiling is most of the time on two cores. clippy shares the profile for the sake of
//! its build scripts and proc macros.
//!
//! One selection of packages throughout, since cargo unites the features of the packages selected together: another
//! selection would compile dependencies again with other features.

mod counts;

use std::{cell::Cell, env, ffi::OsString};

use anyhow::{Result, bail};

use crate::{
    cache::Cache,
    exec, preflight,
    progress::{self, Step},
    setup::{
        self,
        wheels::{Choice, Wheel},
    },
    stream,
    toolchain::{self, Rustc},
};
use counts::Counts;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    nccl: Choice,
    /// Only what runs without root: no integration tests
    #[arg(long)]
    unit: bool,
    /// Only tests whose names contain this, and no format check and lints
    filter: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let (cache, rustc, wheels) = (Cache::open()?, Rustc::in_use()?, args.nccl.wheels()?);
    // The unit tests read the layout of every release, whichever ones the jobs then run.
    let libraries = Choice::all().wheels()?;
    let all = Suite { args, env: environment(&cache, &wheels)?, counts: Cell::default() };

    let mut steps = setup::build_steps(&cache, &rustc);
    if args.unit {
        steps.extend(setup::nccl_steps(&cache, &libraries));
    } else {
        steps.insert(1, Step::gate("kernel", || preflight::kernel(", or with --unit for the tests that do not")));
        steps.extend(setup::test_steps(&cache, &libraries));
    }
    if args.filter.is_none() {
        steps.extend(all.lints());
    }
    steps.push(Step::gate("build", || all.build()));
    steps.extend(all.tests());
    let report = progress::run(steps);

    println!("\n{}", report.table());
    let took = progress::seconds(report.took());
    match report.failed().collect::<Vec<_>>() {
        failed if failed.is_empty() => println!("passed in {took}"),
        failed => println!("FAILED in {took}: {}", failed.join(", ")),
    }
    let ran = all.counts.get().any();
    if report.passed() && !ran {
        eprintln!("error: no test has such a name");
    }
    // the last line, in the form that test reports are read by
    println!("tests: {}", all.counts.get());
    Ok(report.passed() && ran)
}

struct Suite<'a> {
    args: &'a Args,
    env: Vec<(&'static str, OsString)>,
    counts: Cell<Counts>,
}

impl Suite<'_> {
    fn lints(&self) -> Vec<Step<'_>> {
        let mut steps = vec![
            Step::check("format", || self.must(&["fmt", "--all", "--check"])),
            Step::check("clippy", || {
                self.must(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"])
            }),
        ];
        // a workspace of its own, which the commands above do not see
        let ebpf = toolchain::repository().join("mycroft-ebpf/Cargo.toml");
        if ebpf.is_file() {
            steps.push(Step::check("mycroft-ebpf: format, clippy", || {
                let at = ["--manifest-path", "mycroft-ebpf/Cargo.toml"];
                self.must(&["fmt", at[0], at[1], "--check"])?;
                self.must(&["clippy", at[0], at[1], "--release", "--lib", "--", "-D", "warnings"])
            }));
        }
        steps
    }

    /// With the test programs, so that the features of dependencies are those of `cargo test`.
    fn build(&self) -> Result<String> {
        self.must(&["build", "--release", "--workspace", "--lib", "--bins", "--tests"])
    }

    fn tests(&self) -> Vec<Step<'_>> {
        let mut steps = vec![
            Step::check("unit tests", || self.test(&["--lib", "--bins"], &[])),
            Step::check("examples in the documentation", || self.test(&["--doc"], &[])),
        ];
        if !self.args.unit {
            // One at a time: they share the kernel's probes, and two cores with the jobs they start.
            steps.push(Step::check("integration tests", || self.test(&["--test", "*"], &["--test-threads=1"])));
        }
        steps
    }

    fn test(&self, what: &[&str], options: &[&str]) -> Result<String> {
        let mut cargo = toolchain::cargo();
        cargo.args(["test", "--release", "--workspace", "--no-fail-fast"]).args(what).args(&self.args.filter);
        cargo.arg("--").args(options).envs(self.env.iter().map(|(k, v)| (k, v)));
        let end = stream::run(&mut cargo, counts::is_closing)?;
        let counts = Counts::of(&end.kept);
        let mut sum = self.counts.get();
        sum += counts;
        self.counts.set(sum);
        if !end.success {
            bail!("{counts}: once more with `{}`", exec::shown(&cargo));
        }
        Ok(counts.to_string())
    }

    fn must(&self, args: &[&str]) -> Result<String> {
        let mut cargo = toolchain::cargo();
        cargo.args(args);
        if !stream::run(&mut cargo, |_| false)?.success {
            bail!("see above; once more with `{}`", exec::shown(&cargo));
        }
        Ok("ok".into())
    }
}

/// What the tests look up: the releases to run, and the programs in the cache.
///
/// Not MYCROFT_CACHE: the build scripts look at it too, and a value that only the tests have would build them again.
fn environment(cache: &Cache, wheels: &[Wheel]) -> Result<Vec<(&'static str, OsString)>> {
    let releases: Vec<_> = wheels.iter().map(|w| w.release.as_str()).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([cache.path("bin")].into_iter().chain(env::split_paths(&path)))?;
    Ok(vec![("BED_NCCL", releases.join(",").into()), ("PATH", path)])
}
