//! `mycroft completions` and `mycroft man`: what is generated from the grammar, so that it cannot be behind it.

use std::{fs, io};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use super::{
    Args, HEALTHY,
    args::{Completions, Man},
};

pub(super) fn completions(args: &Completions) -> Result<u8> {
    // In memory first: the generator panics where it cannot write, as into a pipe that was closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "mycroft", &mut script);
    match io::Write::write_all(&mut io::stdout(), &script) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e).context("cannot write the completions"),
        _ => Ok(HEALTHY),
    }
}

/// One page for the command and one for each of its own commands.
pub(super) fn man(args: &Man) -> Result<u8> {
    let dir = &args.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}: name a folder you may write", dir.display()))?;
    clap_mangen::generate_to(Args::command().disable_help_subcommand(true), dir)
        .with_context(|| format!("cannot write man pages into {}: name a folder you may write", dir.display()))?;
    Ok(HEALTHY)
}
