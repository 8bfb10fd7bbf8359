//! One rank of a job, as the harness sees it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::control::Phase;
use crate::job::{Job, lock};

/// One rank of a job.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    job: &'a Job,
    index: usize,
}

impl<'a> Rank<'a> {
    pub(crate) fn new(job: &'a Job, index: usize) -> Rank<'a> {
        Rank { job, index }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn pid(&self) -> u32 {
        lock(&self.job.processes[self.job.process_of(self.index)]).id()
    }

    pub fn phase(&self) -> Phase {
        self.job.control.phase(self.index)
    }

    /// Iterations that the rank has entered: one more than completed while it is inside one.
    pub fn entered(&self) -> u64 {
        self.job.control.entered(self.index)
    }

    pub fn completed(&self) -> u64 {
        self.job.control.completed(self.index)
    }

    /// Elements that were wrong so far.
    pub fn wrong(&self) -> u64 {
        self.job.control.wrong(self.index)
    }

    /// How long the rank's communicators took to connect.
    pub fn init_time(&self) -> Duration {
        self.job.control.init_time(self.index)
    }

    /// Works that its watchdog has found done (only in a job like PyTorch).
    pub fn works_done(&self) -> u64 {
        self.job.control.works_done(self.index)
    }

    /// Kernels that the rank's emulated GPU has begun.
    pub fn launches(&self) -> u64 {
        self.job.control.launches(self.index)
    }

    /// Whether a [`crate::Fault::GpuStall`] has taken hold.
    pub fn gpu_stalled(&self) -> bool {
        self.job.control.stalled(self.index)
    }

    /// The signal that ended the rank's process, if one did.
    pub fn killed_by(&self) -> Option<i32> {
        let process = &self.job.processes[self.job.process_of(self.index)];
        lock(process).try_wait().ok().flatten().and_then(|s| s.signal())
    }

    pub fn log(&self) -> String {
        let bytes = fs::read(self.job.log_path(self.job.process_of(self.index))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
