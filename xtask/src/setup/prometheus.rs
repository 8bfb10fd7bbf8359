//! The Prometheus server and promtool, which the tests let scrape Mycroft and evaluate its alerts.
//!
//! What is on the PATH is used; else Debian's package is unpacked into the cache, since installing it would also start
//! a service on the machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Uid;

use super::space;
use crate::{cache::Cache, exec, preflight};

const PROGRAMS: [&str; 2] = ["prometheus", "promtool"];
const NEEDED_MB: u64 = 400;

pub(crate) fn install(cache: &Cache) -> Result<String> {
    let _lock = cache.lock("prometheus")?;
    let home = cache.path("prometheus");
    if let Some(found) = PROGRAMS.iter().map(|p| on_path(p, cache)).collect::<Option<Vec<_>>>() {
        for (name, program) in PROGRAMS.iter().zip(found) {
            cache.link_bin(name, &program)?;
        }
        return Ok("Prometheus of the system is used".into());
    }
    let known = PROGRAMS.iter().all(|p| works(&home.join(p)));
    if !known {
        fetch(cache, &home)?;
    }
    for name in PROGRAMS {
        cache.link_bin(name, &home.join(name))?;
    }
    let state = if known { "was fetched before" } else { "is fetched" };
    Ok(format!("Prometheus {state}"))
}

/// The system's program; a PATH that names the cache's own `bin` finds nothing new there.
fn on_path(program: &str, cache: &Cache) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let elsewhere = |dir: &PathBuf| dir.canonicalize().is_ok_and(|d| d != cache.path("bin"));
    env::split_paths(&path).filter(elsewhere).map(|dir| dir.join(program)).find(|p| works(p))
}

fn works(program: &Path) -> bool {
    program.is_file() && exec::output(Command::new(program).arg("--version")).is_ok()
}

fn fetch(cache: &Cache, home: &Path) -> Result<()> {
    if !preflight::on_path("apt-get") || !preflight::on_path("dpkg") {
        bail!("no `prometheus` and `promtool` on the PATH: install Prometheus 2.40 or later");
    }
    space::check(cache.root(), NEEDED_MB, "Prometheus")?;
    let scratch = cache.scratch("prometheus")?;
    let log = scratch.path().join("apt.log");
    // Not as apt's own user, who cannot enter root's home.
    let download = || {
        let mut apt = Command::new("apt-get");
        apt.args(["-q", "-o", "APT::Sandbox::User=root", "download", "prometheus"]).current_dir(scratch.path());
        exec::logged(&mut apt, &log, str::to_owned)
    };
    let mut ended = download()?;
    if !ended.success {
        // Its list of packages is missing or older than what the registry still has.
        if !Uid::effective().is_root() {
            bail!("apt-get cannot fetch Prometheus: sudo apt-get update, then once more");
        }
        exec::logged(Command::new("apt-get").args(["-q", "update"]), &log, str::to_owned)?.ok()?;
        ended = download()?;
    }
    if !ended.success {
        let cause = ended.output.lines().rfind(|l| l.starts_with("E: ")).unwrap_or("no reason given").to_owned();
        bail!("apt-get cannot fetch Prometheus ({cause}): check the network, or install Prometheus 2.40 or later");
    }
    let package =
        fs::read_dir(scratch.path())?.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "deb"));
    let unpacked = scratch.path().join("unpacked");
    let mut dpkg = Command::new("dpkg");
    dpkg.arg("-x").arg(package.context("apt-get fetched no package")?).arg(&unpacked);
    exec::output(&mut dpkg)?;

    fs::create_dir_all(home)?;
    for name in PROGRAMS {
        fs::rename(unpacked.join("usr/bin").join(name), home.join(name))
            .with_context(|| format!("Debian's package has no {name}"))?;
    }
    Ok(())
}
