//! Programs that run beside each other in a demo, and that are gone when it is over.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::exec;

/// How long a program may take to clean up after itself.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Actor {
    name: &'static str,
    child: std::cell::RefCell<Child>,
    lines: Receiver<String>,
}

impl Actor {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| exec::cannot_start(command))?;
        let (sender, lines) = mpsc::channel();
        if let Some(pipe) = child.stdout.take() {
            read_lines(pipe, sender.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            read_lines(pipe, sender);
        }
        Ok(Self { name, child: child.into(), lines })
    }

    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// What has been printed since the last call.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.lines.try_iter()
    }

    pub(crate) fn ended(&self) -> Result<Option<ExitStatus>> {
        Ok(self.child.borrow_mut().try_wait()?)
    }
}

fn read_lines(pipe: impl Read + Send + 'static, to: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

impl Drop for Actor {
    /// Asked first: the bed removes its network namespaces, the agent its probes.
    fn drop(&mut self) {
        let child = self.child.get_mut();
        if let Ok(pid) = child.id().try_into() {
            kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        }
        let asked = Instant::now();
        while asked.elapsed() < FAREWELL {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().and_then(|()| child.wait()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Actor {
        Actor::start("sh", Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn lines_of_both_kinds_are_heard() {
        let actor = sh("echo out; echo err >&2");
        let mut heard = Vec::new();
        let start = Instant::now();
        while heard.len() < 2 && start.elapsed() < Duration::from_secs(10) {
            heard.extend(actor.lines());
            thread::sleep(Duration::from_millis(5));
        }
        heard.sort();
        assert_eq!(heard, ["err", "out"]);
    }

    #[test]
    fn a_program_is_asked_to_end() {
        let start = Instant::now();
        drop(sh("exec sleep 60"));
        assert!(start.elapsed() < FAREWELL);
    }
}
