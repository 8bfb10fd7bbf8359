//! A running job: its processes, what they report, and the faults put into them.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::control::{self, Control, Phase};
use crate::fault::Fault;
use crate::netns::Hosts;
use crate::starve::{self, Starved};
use crate::workload::{Dtype, Op, RedOp};
use crate::{artifacts, layout, nccl, spawn};

/// What a job is to be; see [`Job::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    nccl: String,
    ranks: usize,
    gpus_per_proc: usize,
    comms: usize,
    op: Op,
    dtype: Dtype,
    redop: RedOp,
    root: usize,
    count: usize,
    iters: u64,
    pause: Duration,
    check: bool,
    netns: bool,
    thread_names: bool,
    timeout: Duration,
    faults: Vec<Fault>,
    no_data: Vec<usize>,
    env: Vec<(String, String)>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => { $(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )* };
}

impl Builder {
    setters! {
        /// Ranks in all (default 4).
        ranks: usize,
        /// Ranks (threads, each with a GPU of its own) per process (default 1).
        gpus_per_proc: usize,
        /// Communicators over the same ranks, used in turn (default 1).
        comms: usize,
        op: Op,
        dtype: Dtype,
        redop: RedOp,
        /// Root of `Broadcast` and `Reduce` (default 0).
        root: usize,
        /// Elements per rank (default 1000).
        count: usize,
        /// Iterations; 0 goes on until [`Job::stop`] (default 0).
        iters: u64,
        /// Sleep after each iteration (default none).
        pause: Duration,
        /// Whether every rank checks the data of every iteration (default yes).
        check: bool,
        /// A network namespace per process, which needs root (default no).
        netns: bool,
        /// Lets NCCL name its threads, which `StarveProxy` needs; by default they have no names, as in production.
        thread_names: bool,
        /// Processes end themselves after this (default 5 minutes).
        timeout: Duration,
    }

    /// Release of NCCL, like `2.27.5`.
    #[must_use]
    pub fn nccl(mut self, version: &str) -> Self {
        version.clone_into(&mut self.nccl);
        self
    }

    /// A fault from the start; several may be given.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.thread_names |= matches!(fault, Fault::StarveProxy { .. });
        self.faults.push(fault);
        self
    }

    /// The rank's emulated GPU moves no data: to show that the check can fail.
    #[must_use]
    pub fn no_data(mut self, rank: usize) -> Self {
        self.no_data.push(rank);
        self
    }

    /// An environment variable for every process; it wins over the bed's own.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn start(self) -> Result<Job> {
        let library = nccl::library(&self.nccl)?;
        ensure!(self.ranks >= 2, "a job has at least two ranks");
        ensure!(
            self.gpus_per_proc >= 1 && self.ranks.is_multiple_of(self.gpus_per_proc),
            "ranks do not fill processes"
        );
        ensure!(
            (1..=control::MAX_COMMS).contains(&self.comms),
            "at most {} communicators",
            control::MAX_COMMS
        );
        let folder = artifacts::folder()?;
        let dir = folder.path().to_owned();
        fs::write(dir.join("layout"), layout::of_library(&library, &self.nccl)?.as_bytes())?;
        symlink(artifacts::find("libbed_nvml.so")?, dir.join("libnvidia-ml.so.1"))?;
        let control = Control::create(&dir.join("control"), self.ranks)?;
        self.no_data.iter().for_each(|rank| control.move_no_data(*rank));
        let processes = self.ranks / self.gpus_per_proc;
        let hosts = if self.netns { Some(Hosts::new(processes)?) } else { None };
        let mut job = Job {
            processes: Vec::new(),
            starved: Mutex::default(),
            hosts,
            control,
            folder: Some(folder),
            dir,
            config: self,
        };
        for fault in job.config.faults.clone() {
            ensure!(
                !job.needs_process(fault),
                "{fault:?} can only be injected into a running job"
            );
            job.inject(fault)?;
        }
        for process in 0..processes {
            let child = job.start_process(process, &library)?;
            job.processes.push(Mutex::new(child));
        }
        Ok(job)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running job. Dropping it kills its processes and removes its namespaces and files.
#[derive(Debug)]
pub struct Job {
    // in the order in which they have to go
    processes: Vec<Mutex<Child>>,
    starved: Mutex<Vec<Starved>>,
    hosts: Option<Hosts>,
    control: Control,
    folder: Option<tempfile::TempDir>,
    dir: PathBuf,
    config: Builder,
}

/// One rank of a job.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    job: &'a Job,
    index: usize,
}

impl Job {
    pub fn builder() -> Builder {
        Builder {
            nccl: "2.27.5".to_owned(),
            ranks: 4,
            gpus_per_proc: 1,
            comms: 1,
            op: Op::AllReduce,
            dtype: Dtype::F32,
            redop: RedOp::Sum,
            root: 0,
            count: 1000,
            iters: 0,
            pause: Duration::ZERO,
            check: true,
            netns: false,
            thread_names: false,
            timeout: Duration::from_secs(300),
            faults: Vec::new(),
            no_data: Vec::new(),
            env: Vec::new(),
        }
    }

    fn start_process(&self, process: usize, library: &Path) -> Result<Child> {
        let c = &self.config;
        let mut command = Command::new(artifacts::find("bed-rank")?);
        command
            .arg("--nccl")
            .arg(library)
            .arg("--control")
            .arg(self.dir.join("control"))
            .args(["--first-rank".to_owned(), (process * c.gpus_per_proc).to_string()])
            .args(["--ranks-here".to_owned(), c.gpus_per_proc.to_string()])
            .args(["--comms".to_owned(), c.comms.to_string()])
            .args([
                "--op",
                c.op.name(),
                "--dtype",
                c.dtype.name(),
                "--redop",
                c.redop.name(),
            ])
            .args([
                "--root".to_owned(),
                c.root.to_string(),
                "--count".to_owned(),
                c.count.to_string(),
            ])
            .args(["--iters".to_owned(), c.iters.to_string()])
            .args(["--pause-us".to_owned(), c.pause.as_micros().to_string()])
            .args(["--timeout-s".to_owned(), c.timeout.as_secs().max(1).to_string()]);
        if !c.check {
            command.arg("--no-check");
        }
        self.set_environment(&mut command, process)?;
        let log = fs::File::create(self.log_path(process))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir(&self.dir);
        if let Some(hosts) = &self.hosts {
            let space = hosts.open(process)?;
            // SAFETY: the closure makes one system call and allocates only to report that it failed.
            unsafe {
                command.pre_exec(move || {
                    nix::sched::setns(&space, nix::sched::CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
                });
            }
        }
        spawn::spawn(command).context("bed-rank")
    }

    fn set_environment(&self, command: &mut Command, process: usize) -> Result<()> {
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("NCCL_")) {
            command.env_remove(name);
        }
        let interface = if self.config.netns { "eth0" } else { "lo" };
        let settings = [
            ("NCCL_NET", "Socket"),
            ("NCCL_IB_DISABLE", "1"),
            ("NCCL_SOCKET_IFNAME", interface),
            ("NCCL_P2P_DISABLE", "1"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_CUMEM_ENABLE", "0"),
            ("NCCL_CUMEM_HOST_ENABLE", "0"),
            ("NCCL_NVLS_ENABLE", "0"),
            ("NCCL_ALGO", "Ring"),
            ("NCCL_PROTO", "Simple"),
            ("NCCL_P2P_LL_THRESHOLD", "0"),
            ("NCCL_DEBUG", "WARN"),
        ];
        command.envs(settings);
        if self.config.thread_names {
            command.env("NCCL_SET_THREAD_NAME", "1");
        }
        command
            .env("NCCL_HOSTID", format!("bed-{}-{process}", self.dir.display()))
            .env("BED_DEVICES", self.config.gpus_per_proc.to_string())
            .env("BED_LAYOUT", self.dir.join("layout"))
            .env("BED_CONTROL", self.dir.join("control"))
            .env("LD_PRELOAD", artifacts::find("libbed_cuda.so")?)
            .env("LD_LIBRARY_PATH", &self.dir)
            .envs(self.config.env.iter().map(|(n, v)| (n, v)));
        Ok(())
    }

    fn process_of(&self, rank: usize) -> usize {
        rank / self.config.gpus_per_proc
    }

    fn log_path(&self, process: usize) -> PathBuf {
        self.dir.join(format!("process-{process}.log"))
    }

    /// # Panics
    /// If there is no such rank.
    pub fn rank(&self, index: usize) -> Rank<'_> {
        assert!(index < self.config.ranks, "the job has {} ranks", self.config.ranks);
        Rank { job: self, index }
    }

    pub fn ranks(&self) -> impl Iterator<Item = Rank<'_>> {
        (0..self.config.ranks).map(|index| Rank { job: self, index })
    }

    /// The folder with the job's files; it goes with the job unless `BED_KEEP` is set.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Everything every process has printed.
    pub fn logs(&self) -> Vec<String> {
        let read = |process| fs::read(self.log_path(process)).unwrap_or_default();
        (0..self.processes.len())
            .map(|p| String::from_utf8_lossy(&read(p)).into_owned())
            .collect()
    }

    fn needs_process(&self, fault: Fault) -> bool {
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
                ensure!(
                    self.config.thread_names,
                    "starving a proxy thread needs thread_names(true)"
                );
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
        ensure!(
            rc == 0,
            "signal {signal} to rank {rank}: {}",
            io::Error::last_os_error()
        );
        Ok(())
    }

    /// Waits until every rank has completed `n` iterations.
    pub fn wait_iteration(&self, n: u64, timeout: Duration) -> Result<()> {
        self.wait_for(timeout, &format!("iteration {n}"), |job| {
            job.ranks().all(|r| r.completed() >= n)
        })
    }

    /// Waits until every rank has its communicators.
    pub fn wait_running(&self, timeout: Duration) -> Result<()> {
        self.wait_for(timeout, "all ranks running", |job| {
            job.ranks().all(|r| r.phase() >= Phase::Running)
        })
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
                bail!(
                    "waiting for {what} for {:.1} s: {}",
                    begin.elapsed().as_secs_f64(),
                    self.describe()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Where every rank is, and the end of what it printed.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (rank, status) in self
            .ranks()
            .zip(self.ended().iter().flat_map(|s| vec![*s; self.config.gpus_per_proc]))
        {
            text += &format!(
                "\nrank {}: {:?}, entered {}, completed {}, {} wrong",
                rank.index,
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
        self.processes
            .iter()
            .map(|p| lock(p).try_wait().ok().flatten())
            .collect()
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
            ensure!(
                begin.elapsed() < timeout,
                "still running after {timeout:?}: {}",
                self.describe()
            );
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

impl Rank<'_> {
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

    /// Kernels that the rank's emulated GPU has begun.
    pub fn launches(&self) -> u64 {
        self.job.control.launches(self.index)
    }

    /// Whether a [`Fault::GpuStall`] has taken hold.
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
