//! Looks at a process, in the model's terms.

use std::{fs, path::Path};

use crate::{
    discover::{environment::job_rank, state::ProcessState},
    model::{Activity, Nanos, Origin, ProcId, Process},
};

/// What the process is doing; `None` if it is gone.
pub(super) fn activity(pid: u32, tid: u32, at: Nanos) -> Option<Activity> {
    let s = ProcessState::read(Path::new("/proc"), pid, tid)?;
    Some(Activity {
        at,
        state: s.state,
        tid: s.tid,
        wchan: s.wchan,
        syscall: s.syscall,
        cpu_ticks: s.cpu_ticks,
        threads: s.threads,
    })
}

/// A process of which only its number is known yet.
pub(super) fn process(id: ProcId) -> Process {
    let name = fs::read_to_string(format!("/proc/{}/comm", id.pid)).unwrap_or_default();
    Process {
        name: name.trim().to_owned(),
        job_rank: job_rank(Path::new("/proc"), id.pid),
        ..Process::unknown(id, Origin::Live)
    }
}
