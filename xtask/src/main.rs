//! `cargo xtask`: what a person or CI does to this repository beyond `cargo build`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "talking to a person is what this program is for")]

mod bench;
mod cache;
mod demo;
mod exec;
mod layouts;
mod preflight;
mod progress;
mod score;
mod sections;
mod setup;
mod stage;
mod stream;
mod test;
mod tidy;
mod toolchain;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Sets up, tests and shows Mycroft")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Builds or fetches, once, what a build or a test needs and the system does not have
    Setup(setup::Args),
    /// Format, lints, build and every test; what must pass before a change lands
    Test(test::Args),
    /// The rules of this repository that no compiler checks
    Tidy,
    /// Hangs a small job on this machine and shows what Mycroft says about it
    Demo(demo::Args),
    /// Measures what Mycroft costs and how soon it speaks, for docs/performance.md
    Bench(bench::Args),
    /// Measures how often the analyser is right on simulated clusters, for docs/accuracy.md
    Score(score::Args),
    /// Writes the table of struct layouts that comes with the agent, from NVIDIA's wheels (20 GB to fetch)
    Layouts,
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        // what failed has been told where it failed
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<bool> {
    match task {
        Task::Setup(args) => setup::run(args),
        Task::Test(args) => test::run(args),
        Task::Tidy => tidy::run(),
        Task::Demo(args) => demo::run(args),
        Task::Bench(args) => bench::run(args),
        Task::Score(args) => score::run(args),
        Task::Layouts => layouts::run(),
    }
}
