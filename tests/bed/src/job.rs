//! A running job: its processes, what they report, and the faults put into them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::artifacts;
use crate::builder::Builder;
use crate::control::{Control, Phase};
use crate::fault::Fault;
use crate::netns::Hosts;
use crate::rank::Rank;
use crate::starve::{self, Starved};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running job. Dropping it kills its processes and removes its namespaces and files.
#[derive(Debug)]
pub struct Job {
    // in the order in which they have to go
    pub(crate) processes: Vec<Mutex<Child>>,
    pub(crate) starved: Mutex<Vec<Starved>>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) control: Control,
    pub(crate) folder: Option<tempfile::TempDir>,
    pub(crate) dir: PathBuf,
    pub(crate) config: Builder,
}

impl Job {
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn process_of(&self, rank: usize) -> usize {
        rank / self.config.gpus_per_proc
    }

    pub(crate) fn log_path(&self, process: usize) -> PathBuf {
        self.dir.join(format!("process-{process}.log"))
    }

    /// # Panics
    /// If there is no such rank.
    pub fn rank(&self, index: usize) -> Rank<'_> {
        assert!(index < self.config.ranks, "the job has {} ranks", self.config.ranks);
        Rank::new(self, index)
    }

    pub fn ranks(&self) -> impl Iterator<Item = Rank<'_>> {
        (0..self.config.ranks).map(|index| Rank::new(self, index))
    }

    /// The folder with the job's files; it goes with the job unless `BED_KEEP` is set.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Everything every process has printed.
    pub fn logs(&self) -> Vec<String> {
        let read = |process| fs::read(self.log_path(process)).unwrap_or_default();
        (0..self.processes.len()).map(|p| String::from_utf8_lossy(&read(p)).into_owned()).collect()
    }

    pub(crate) fn needs_process(&self, fault: Fault) -> bool {
        fault.slot().is_none() && !matches!(fault, Fault::GpuStall { .. })
    }

    /// Puts a fault into the job. With `at: NOW` it strikes at the rank's next iteration, or at once for signals.
    pub fn inject(&self, fault: Fault) -> Result<()> {
        let rank = fault.rank();
        ensure!(rank < self.config.ranks, "the job has {} ranks", self.config.ranks);
        if let Some(slot) = fault.slot() {
            return self.control.add_fault(rank, slot);
        }
        let hosts = || self.hosts.as_ref().context("links can only be cut with netns(true)");
        match fault {
            Fault::GpuStall { collective, step, .. } => self.control.stall_gpu(rank, collective, step),
            Fault::GpuResume { .. } => self.control.resume_gpu(rank),
            Fault::LinkDown { .. } => hosts()?.set_link(self.process_of(rank), false)?,
            Fault::LinkUp { .. } => hosts()?.set_link(self.process_of(rank), true)?,
            Fault::Die { .. } => self.signal(rank, libc::SIGKILL)?,
            Fault::Stop { .. } => self.signal(rank, libc::SIGSTOP)?,
            Fault::Cont { .. } => self.signal(rank, libc::SIGCONT)?,
            Fault::StarveProxy { .. } => {
                ensure!(self.config.thread_names, "starving a proxy thread needs thread_names(true)");
                let nth = rank % self.config.gpus_per_proc;
                let tid = starve::find_thread(self.rank(rank).pid(), "NCCL Progress", nth)?;
                lock(&self.starved).push(starve::starve(tid)?);
            }
            _ => bail!("{fault:?} is applied by the rank"),
        }
        Ok(())
    }

    fn signal(&self, rank: usize, signal: i32) -> Result<()> {
        // SAFETY: the process is our child and not yet waited for, so the number is still its own.
        let rc = unsafe { libc::kill(self.rank(rank).pid() as i32, signal) };
        ensure!(rc == 0, "signal {signal} to rank {rank}: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Waits until every rank has completed `n` iterations.
    pub fn wait_iteration(&self, n: u64, timeout: Duration) -> Result<()> {
        self.wait_for(timeout, &format!("iteration {n}"), |job| job.ranks().all(|r| r.completed() >= n))
    }

    /// Waits until every rank has its communicators.
    pub fn wait_running(&self, timeout: Duration) -> Result<()> {
        self.wait_for(timeout, "all ranks running", |job| job.ranks().all(|r| r.phase() >= Phase::Running))
    }

    /// Waits until no rank has completed an iteration for `quiet`, and returns what each has completed.
    pub fn wait_hang(&self, quiet: Duration, timeout: Duration) -> Result<Vec<u64>> {
        let begin = Instant::now();
        let counts = || self.ranks().map(|r| r.completed()).collect::<Vec<_>>();
        let (mut last, mut since) = (counts(), Instant::now());
        while since.elapsed() < quiet {
            ensure!(begin.elapsed() < timeout, "the job still makes progress: {last:?}");
            std::thread::sleep(Duration::from_millis(10));
            let now = counts();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    fn wait_for(&self, timeout: Duration, what: &str, done: impl Fn(&Job) -> bool) -> Result<()> {
        let begin = Instant::now();
        while !done(self) {
            let ended: Vec<_> = self.ended().into_iter().flatten().filter(|s| !s.success()).collect();
            if begin.elapsed() > timeout || !ended.is_empty() {
                bail!("waiting for {what} for {:.1} s: {}", begin.elapsed().as_secs_f64(), self.describe());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Where every rank is, and the end of what it printed.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (rank, status) in self.ranks().zip(self.ended().iter().flat_map(|s| vec![*s; self.config.gpus_per_proc])) {
            text += &format!(
                "\nrank {}: {:?}, entered {}, completed {}, {} wrong",
                rank.index(),
                rank.phase(),
                rank.entered(),
                rank.completed(),
                rank.wrong()
            );
            if let Some(status) = status {
                text += &format!(", {status}");
            }
        }
        for (process, log) in self.logs().iter().enumerate() {
            for line in log.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev() {
                text += &format!("\n  [{process}] {line}");
            }
        }
        text
    }

    fn ended(&self) -> Vec<Option<ExitStatus>> {
        self.processes.iter().map(|p| lock(p).try_wait().ok().flatten()).collect()
    }

    /// Lets every rank end at the same iteration, and cleanly.
    pub fn stop(&self) {
        let furthest = self.ranks().map(|r| r.entered()).max().unwrap_or(0);
        // ranks go on while this is written; a rank may be a few iterations ahead of another
        self.control.set_stop_at(furthest + 20);
    }

    /// Waits for all processes to end.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<ExitStatus>> {
        let begin = Instant::now();
        loop {
            let ended = self.ended();
            if let Some(all) = ended.iter().copied().collect::<Option<Vec<_>>>() {
                return Ok(all);
            }
            ensure!(begin.elapsed() < timeout, "still running after {timeout:?}: {}", self.describe());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the job to end well: every process with status 0, and no element wrong.
    pub fn wait_success(&self, timeout: Duration) -> Result<()> {
        let statuses = self.wait(timeout)?;
        let good = statuses.iter().all(ExitStatus::success) && self.ranks().all(|r| r.wrong() == 0);
        ensure!(good, "the job failed: {}", self.describe());
        Ok(())
    }

    /// Kills what still runs and waits for it.
    pub fn kill(&self) {
        // a starved thread needs the CPU to die
        lock(&self.starved).clear();
        for process in &self.processes {
            let mut process = lock(process);
            // it may have ended by itself
            drop(process.kill());
            drop(process.wait());
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
        if std::env::var_os("BED_KEEP").is_some()
            && let Some(folder) = self.folder.take()
        {
            artifacts::keep(folder);
        }
    }
}
