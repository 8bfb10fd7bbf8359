//! The `mycroft` command: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser as _;
use mycroft_agent::cli::{self, Args};

fn main() -> ExitCode {
    cli::run(Args::parse())
}
