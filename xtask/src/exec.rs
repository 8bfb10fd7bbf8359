//! Running other programs: what becomes of their output, signs of life while they are silent, errors that name them.

use std::{
    fs::{self, File},
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
    let out = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().with_context(|| cannot_start(command))?;
    if !out.status.success() {
        bail!("{}: {}\n{}", shown(command), out.status, String::from_utf8_lossy(&out.stderr).trim_end());
    }
    String::from_utf8(out.stdout).with_context(|| format!("{} did not print UTF-8", shown(command)))
}

/// How a program ended whose output went to a file.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) output: String,
    command: String,
}

impl Ended {
    pub(crate) fn ok(self) -> Result<()> {
        if !self.success {
            bail!("{} failed:\n{}", self.command, tail(&self.output));
        }
        Ok(())
    }
}

/// Runs a program whose output matters only if it fails: it goes to `log`. Every 10 s a line is shown: what
/// `sign_of_life` makes of the newest line of output.
pub(crate) fn logged(command: &mut Command, log: &Path, sign_of_life: impl Fn(&str) -> String) -> Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let child = command.spawn().with_context(|| cannot_start(command))?;
    let read = || fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let status = wait(child, |elapsed| {
        let text = read();
        let line = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no output yet").trim();
        progress::note(&format!("{}: {}", progress::seconds(elapsed), sign_of_life(line)));
    })?;
    Ok(Ended { success: status.success(), output: read(), command: shown(command) })
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

pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

pub(crate) fn cannot_start(command: &Command) -> String {
    format!("cannot start {}", command.get_program().display())
}

pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).display().to_string();
    command.get_args().fold(name, |line, arg| format!("{line} {}", quoted(&arg.display().to_string())))
}

/// So that it can be pasted into a shell.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,@%+".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) { arg.to_owned() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_given_or_the_failure_is_named() {
        assert_eq!(output(Command::new("echo").arg("hello")).unwrap(), "hello\n");
        let error = output(Command::new("sh").args(["-c", "echo oh no >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.starts_with("sh -c ") && error.ends_with("oh no"), "{error}");
        let error = output(&mut Command::new("no-such-program")).unwrap_err().to_string();
        assert_eq!(error, "cannot start no-such-program");
    }

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "--test", "*", "it's"]);
        assert_eq!(shown(&command), r"cargo test --test '*' 'it'\''s'");
    }

    #[test]
    fn only_the_end_of_a_long_output_is_shown() {
        let text: Vec<String> = (1..=50).map(|n| n.to_string()).collect();
        assert_eq!(tail(&text.join("\n")).lines().next(), Some("31"));
        assert_eq!(tail("one"), "one");
    }
}
