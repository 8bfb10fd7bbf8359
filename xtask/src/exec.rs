//! Running other programs: what they print, signs of life while they are silent, and errors that name them.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::ErrorKind,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::progress;

const HEARTBEAT: Duration = Duration::from_secs(10);
const TAIL_LINES: usize = 20;

/// The standard output of a program that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.stderr(Stdio::piped()).output().with_context(|| cannot_start(command))?;
    if !out.status.success() {
        bail!("{}: {}\n{}", shown(command), out.status, String::from_utf8_lossy(&out.stderr).trim_end());
    }
    String::from_utf8(out.stdout).with_context(|| format!("{} did not print UTF-8", shown(command)))
}

/// Runs a program whose output matters only if it fails: it goes to `log`, its newest line is shown every 10 s.
pub(crate) fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let child = command.spawn().with_context(|| cannot_start(command))?;
    let status = wait(child, |elapsed| {
        let text = fs::read_to_string(log).unwrap_or_default();
        let line = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no output yet").trim();
        progress::note(&format!("{}: {line}", progress::seconds(elapsed)));
    })?;
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        bail!("{}: {status}\n{}", shown(command), tail(&text));
    }
    Ok(())
}

/// Runs a program that talks to the person itself; true if it succeeded.
pub(crate) fn shown_to_user(command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| cannot_start(command))?;
    Ok(status.success())
}

/// Whether the program can be started at all; its outcome does not matter.
pub(crate) fn exists(program: impl AsRef<OsStr>) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    !matches!(command.status(), Err(e) if e.kind() == ErrorKind::NotFound)
}

fn wait(mut child: Child, mut alive: impl FnMut(Duration)) -> Result<ExitStatus> {
    let start = Instant::now();
    let mut last = start;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if last.elapsed() >= HEARTBEAT {
            last = Instant::now();
            alive(start.elapsed());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start {}", command.get_program().display())
}

fn shown(command: &Command) -> String {
    let args = command.get_args().map(|a| format!(" {}", a.display())).collect::<String>();
    format!("{}{args}", command.get_program().display())
}
