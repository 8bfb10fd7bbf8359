//! What a job is to be, and its start.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::control::{self, Control};
use crate::fault::Fault;
use crate::job::Job;
use crate::netns::Hosts;
use crate::workload::{Algorithm, Dtype, Op, Protocol, RedOp, Step};
use crate::{artifacts, layout, nccl, spawn};

/// What a job is to be; see [`Job::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    nccl: String,
    pub(crate) ranks: usize,
    pub(crate) gpus_per_proc: usize,
    comms: usize,
    steps: Vec<Step>,
    root: usize,
    count: usize,
    iters: u64,
    pause: Duration,
    check: bool,
    protocol: Protocol,
    algorithm: Algorithm,
    channels: usize,
    pub(crate) netns: bool,
    pub(crate) thread_names: bool,
    like_pytorch: bool,
    ask_errors: bool,
    /// `Some(true)`: without a build-id, too.
    stripped: Option<bool>,
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
        /// Protocol (default `Simple`). Send/recv has no `Ll128` and then uses `Simple`, as it does for large messages.
        protocol: Protocol,
        /// Algorithm (default `Ring`).
        algorithm: Algorithm,
        /// Channels; 0 leaves it to NCCL (default). Small calls may use fewer.
        channels: usize,
        /// A network namespace per process, which needs root (default no).
        netns: bool,
        /// Lets NCCL name its threads, which `StarveProxy` needs; by default they have no names, as in production.
        thread_names: bool,
        /// Ranks wait and look for errors as PyTorch does, with events and a watchdog (default no).
        like_pytorch: bool,
        /// Waiting ranks ask NCCL for errors and end with one (default yes); without `like_pytorch` only.
        ask_errors: bool,
        /// Processes end themselves after this (default 5 minutes).
        timeout: Duration,
    }

    /// Runs a copy of the library without symbols and debug information, as distributions ship it; if `anonymous`, also
    /// without the build-id.
    #[must_use]
    pub fn stripped(mut self, anonymous: bool) -> Self {
        self.stripped = Some(anonymous);
        self
    }

    /// Release of NCCL, like `2.27.5`.
    #[must_use]
    pub fn nccl(mut self, version: &str) -> Self {
        version.clone_into(&mut self.nccl);
        self
    }

    /// The collective (default `AllReduce`).
    #[must_use]
    pub fn op(mut self, op: Op) -> Self {
        self.steps[0].op = op;
        self
    }

    /// The type of its elements (default `F32`).
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.steps[0].dtype = dtype;
        self
    }

    /// The reduction (default `Sum`).
    #[must_use]
    pub fn redop(mut self, redop: RedOp) -> Self {
        self.steps[0].redop = redop;
        self
    }

    /// A cycle of collectives instead of one: an iteration takes the next.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn cycle(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps = steps.into_iter().collect();
        assert!(!self.steps.is_empty(), "a cycle has at least one collective");
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
        ensure!((1..=control::MAX_COMMS).contains(&self.comms), "at most {} communicators", control::MAX_COMMS);
        let folder = artifacts::folder()?;
        let dir = folder.path().to_owned();
        fs::write(dir.join("layout"), layout::of_library(&library, &self.nccl)?.as_bytes())?;
        symlink(artifacts::find("libbed_nvml.so")?, dir.join("libnvidia-ml.so.1"))?;
        if self.like_pytorch {
            // a copy: it goes by this name in the list of mapped files, too
            fs::copy(artifacts::find("libbed_cudart.so")?, dir.join("libcudart.so.12"))?;
        }
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
            ensure!(!job.needs_process(fault), "{fault:?} can only be injected into a running job");
            job.inject(fault)?;
        }
        let loaded = job.config.loaded(&library, &job.dir)?;
        for process in 0..processes {
            let child = job.config.start_process(&job, process, &library, &loaded)?;
            job.processes.push(Mutex::new(child));
        }
        Ok(job)
    }

    /// The library that the ranks load.
    fn loaded(&self, library: &Path, dir: &Path) -> Result<PathBuf> {
        let Some(anonymous) = self.stripped else { return Ok(library.to_owned()) };
        let copy = dir.join("libnccl.so.2");
        let mut strip = Command::new("strip");
        strip.arg("-s").args(if anonymous { &["-R", ".note.gnu.build-id"][..] } else { &[] });
        let status = strip.arg("-o").arg(&copy).arg(library).status().context("strip, of binutils")?;
        ensure!(status.success(), "strip: {status}");
        Ok(copy)
    }

    fn start_process(&self, job: &Job, process: usize, library: &Path, loaded: &Path) -> Result<Child> {
        let mut command = Command::new(artifacts::find("bed-rank")?);
        command.env("BED_SYMBOLS", library).arg("--nccl").arg(loaded).arg("--control").arg(job.dir.join("control"));
        let numbers = [
            ("--first-rank", process * self.gpus_per_proc),
            ("--ranks-here", self.gpus_per_proc),
            ("--comms", self.comms),
            ("--root", self.root),
            ("--count", self.count),
        ];
        for (name, number) in numbers {
            command.arg(name).arg(number.to_string());
        }
        let words = [
            ("--iters", self.iters.to_string()),
            ("--pause-us", self.pause.as_micros().to_string()),
            ("--timeout-s", self.timeout.as_secs().max(1).to_string()),
        ];
        for (name, word) in words {
            command.arg(name).arg(word);
        }
        for step in &self.steps {
            command.arg("--step").arg(step.to_string());
        }
        if !self.check {
            command.arg("--no-check");
        }
        if self.like_pytorch {
            command.arg("--like-pytorch");
        }
        if !self.ask_errors {
            command.arg("--ask-no-errors");
        }
        self.set_environment(job, &mut command, process)?;
        let log = fs::File::create(job.log_path(process))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir(&job.dir);
        if let Some(hosts) = &job.hosts {
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

    fn set_environment(&self, job: &Job, command: &mut Command, process: usize) -> Result<()> {
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("NCCL_")) {
            command.env_remove(name);
        }
        let interface = if self.netns { "eth0" } else { "lo" };
        let settings = [
            ("NCCL_NET", "Socket"),
            ("NCCL_IB_DISABLE", "1"),
            ("NCCL_SOCKET_IFNAME", interface),
            ("NCCL_P2P_DISABLE", "1"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_CUMEM_ENABLE", "0"),
            ("NCCL_CUMEM_HOST_ENABLE", "0"),
            ("NCCL_NVLS_ENABLE", "0"),
            ("NCCL_ALGO", self.algorithm.name()),
            ("NCCL_PROTO", self.protocol.name()),
            ("NCCL_DEBUG", "WARN"),
        ];
        command.envs(settings);
        // send/recv uses LL up to a size, and only where connections do not share a buffer
        if self.protocol == Protocol::Ll {
            command.env("NCCL_NET_SHARED_BUFFERS", "0");
        } else {
            command.env("NCCL_P2P_LL_THRESHOLD", "0");
        }
        if self.channels > 0 {
            let channels = self.channels.to_string();
            command.env("NCCL_MIN_NCHANNELS", &channels).env("NCCL_MAX_NCHANNELS", &channels);
        }
        if self.thread_names {
            command.env("NCCL_SET_THREAD_NAME", "1");
        }
        command
            .env("NCCL_HOSTID", format!("bed-{}-{process}", job.dir.display()))
            .env("BED_DEVICES", self.gpus_per_proc.to_string())
            // Another GPU for each process, as on one host of 8, so that reports tell them apart.
            .env("BED_BUS", (16 + process * self.gpus_per_proc % 8).to_string())
            .env("BED_LAYOUT", job.dir.join("layout"))
            .env("BED_CONTROL", job.dir.join("control"))
            .env("LD_PRELOAD", artifacts::find("libbed_cuda.so")?)
            .env("LD_LIBRARY_PATH", &job.dir)
            .envs(self.env.iter().map(|(n, v)| (n, v)));
        Ok(())
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            nccl: "2.27.5".to_owned(),
            ranks: 4,
            gpus_per_proc: 1,
            comms: 1,
            steps: vec![Step::default()],
            root: 0,
            count: 1000,
            iters: 0,
            pause: Duration::ZERO,
            check: true,
            protocol: Protocol::Simple,
            algorithm: Algorithm::Ring,
            channels: 0,
            netns: false,
            thread_names: false,
            like_pytorch: false,
            ask_errors: true,
            stripped: None,
            timeout: Duration::from_secs(300),
            faults: Vec::new(),
            no_data: Vec::new(),
            env: Vec::new(),
        }
    }
}
