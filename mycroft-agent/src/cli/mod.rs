//! The command line: one file a command.

mod agent;
mod args;
mod check;
mod diagnose;
mod explain;
mod flows;
mod generate;
mod import;
mod outcome;
mod rules;
mod trace;
mod watch;

use std::{io::IsTerminal as _, process::ExitCode};

pub use args::Args;
use args::Command;
pub use rules::rule_page;
use tracing_subscriber::EnvFilter;

/// Exit codes, as documented in README.md.
pub const HEALTHY: u8 = 0;
/// Something was found.
pub const FINDING: u8 = 1;
/// Could not tell, or could not run.
pub const UNKNOWN: u8 = 2;

/// Runs a command and returns its exit code.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    log(args.verbose);
    let result = match args.command {
        Command::Check(a) => check::run(&a),
        Command::Watch(a) => trace::block_on(watch::run(a)),
        Command::Diagnose(a) => trace::block_on(diagnose::run(a)),
        Command::Explain(a) => trace::block_on(explain::run(a)),
        Command::Flows(a) => trace::block_on(flows::run(a)),
        Command::Import(a) => import::run(&a),
        Command::Agent(a) => trace::block_on(agent::run(a)),
        Command::Rules(a) => Ok(rules::run(&a)),
        Command::Completions(a) => generate::completions(&a),
        Command::Man(a) => generate::man(&a),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            anstream::eprintln!("mycroft: {e:#}");
            ExitCode::from(UNKNOWN)
        }
    }
}

/// Logs go to standard error, so that output stays clean. `MYCROFT_LOG` takes tracing's directives.
fn log(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_env("MYCROFT_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}
