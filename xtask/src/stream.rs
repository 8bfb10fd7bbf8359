//! Running a program whose output is for the person: it is passed on as it comes, and its silence is told.
//!
//! Bytes rather than lines, so that `test name ...` stands there while the test runs. A pipe rather than an inherited
//! terminal, since only then it is known how long nothing came, and the counts of tests can be read.

use std::{
    io::{self, Read},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{exec, progress};

const SILENCE: Duration = Duration::from_secs(20);
/// A grandchild that outlives the program may keep the pipes open; they are not waited for longer than this.
const AFTERWARDS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) success: bool,
    /// The lines of standard output that `keep` asked for.
    pub(crate) kept: Vec<String>,
}

#[derive(Debug)]
struct Heard {
    at: Instant,
    unfinished: String,
    kept: Vec<String>,
}

type Shared = Arc<Mutex<Heard>>;

pub(crate) fn run(command: &mut Command, keep: fn(&str) -> bool) -> Result<Streamed> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| exec::cannot_start(command))?;
    let heard = Arc::new(Mutex::new(Heard { at: Instant::now(), unfinished: String::new(), kept: Vec::new() }));
    let out = child.stdout.take().map(|pipe| pass_on(pipe, io::stdout(), Arc::clone(&heard), Some(keep)));
    let err = child.stderr.take().map(|pipe| pass_on(pipe, io::stderr(), Arc::clone(&heard), None));
    let readers: Vec<_> = [out, err].into_iter().flatten().collect();

    let start = Instant::now();
    let mut told = start;
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let (at, unfinished) = {
            let heard = lock(&heard);
            (heard.at, heard.unfinished.clone())
        };
        if at.max(told).elapsed() >= SILENCE {
            told = Instant::now();
            if !unfinished.is_empty() {
                println!();
            }
            progress::note(&format!("{}: at work {unfinished}", progress::seconds(start.elapsed())));
        }
        thread::sleep(Duration::from_millis(50));
    };
    let ended = Instant::now();
    while !readers.iter().all(JoinHandle::is_finished) && ended.elapsed() < AFTERWARDS {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(Streamed { success: status.success(), kept: std::mem::take(&mut lock(&heard).kept) })
}

fn pass_on(
    mut from: impl Read + Send + 'static,
    mut to: impl io::Write + Send + 'static,
    heard: Shared,
    keep: Option<fn(&str) -> bool>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        // An error on either side ends the passing on, not the program.
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..n];
            lock(&heard).hear(bytes, keep);
            if to.write_all(bytes).and_then(|()| to.flush()).is_err() {
                return;
            }
        }
    })
}

impl Heard {
    fn hear(&mut self, bytes: &[u8], keep: Option<fn(&str) -> bool>) {
        self.at = Instant::now();
        let Some(keep) = keep else { return };
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n');
        self.unfinished.push_str(lines.next().unwrap_or_default());
        for line in lines {
            let done = std::mem::replace(&mut self.unfinished, line.to_owned());
            if keep(&done) {
                self.kept.push(done);
            }
        }
    }
}

/// What a panicking reader has heard is still good.
fn lock(heard: &Shared) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Streamed {
        run(Command::new("sh").args(["-c", script]), |l| l.starts_with("result")).unwrap()
    }

    #[test]
    fn asked_for_lines_are_kept_even_when_they_come_in_pieces() {
        let end = sh("echo result one; printf 'res'; sleep 0.1; echo ult two; echo other; echo result not >&2");
        assert!(end.success);
        assert_eq!(end.kept, ["result one", "result two"]);
    }

    #[test]
    fn failure_is_seen() {
        assert!(!sh("exit 1").success);
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipe_is_not_waited_for() {
        let start = Instant::now();
        assert!(sh("sleep 8 &").success);
        assert!(start.elapsed() < Duration::from_secs(6));
    }
}
