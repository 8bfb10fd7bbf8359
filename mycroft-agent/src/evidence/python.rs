//! The stack of a Python process, read from its memory without stopping it.

use py_spy::{Config, PythonSpy, StackTrace, config::LockingStrategy};

use super::Suspect;
use crate::event::{Fact, fact::PythonThread};

/// Frames told of a thread at most.
const FRAMES: usize = 16;
/// Threads told at most: data loaders have many that are all alike.
const THREADS: usize = 64;

/// `None` if it is no Python, or not one that can be read.
pub(super) fn collect(suspect: Suspect) -> Option<Fact> {
    // Never stop it: a rank that is stopped holds up the whole job.
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let read = || PythonSpy::new(suspect.pid as py_spy::Pid, &config)?.get_stack_traces();
    match read() {
        Ok(traces) if !traces.is_empty() => Some(Fact::Python(traces.iter().take(THREADS).map(thread).collect())),
        Ok(_) => None,
        Err(e) => {
            tracing::debug!(pid = suspect.pid, error = %e, "no Python stack");
            None
        }
    }
}

fn thread(trace: &StackTrace) -> PythonThread {
    let frame = |f: &py_spy::Frame| {
        let file = f.short_filename.as_deref().unwrap_or(&f.filename);
        let file = file.rsplit('/').next().unwrap_or(file);
        format!("{} ({file}:{})", f.name, f.line)
    };
    PythonThread {
        tid: trace.os_thread_id.and_then(|t| u32::try_from(t).ok()),
        name: trace.thread_name.clone(),
        holds_gil: trace.owns_gil,
        frames: trace.frames.iter().take(FRAMES).map(frame).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn a_data_loader_that_sleeps_is_named_by_function_and_line() {
        let program = "import time\ndef load_batch():\n  print('now', flush=True)\n  time.sleep(600)\nload_batch()\n";
        let mut child = Command::new("python3").args(["-c", program]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut frames = Vec::new();
        for _ in 0..100 {
            if let Some(Fact::Python(threads)) = collect(Suspect { pid: child.id(), tid: child.id() }) {
                frames = threads[0].frames.clone();
            }
            if frames.first().is_some_and(|f| f.ends_with(":4)")) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(frames, ["load_batch (<string>:4)", "<module> (<string>:5)"]);
    }

    #[test]
    fn what_is_no_python_tells_nothing() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let found = collect(Suspect { pid: child.id(), tid: child.id() });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, None);
    }
}
