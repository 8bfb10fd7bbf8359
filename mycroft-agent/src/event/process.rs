//! A traced process.

use serde::{Deserialize, Serialize};

use super::{
    fact::{Blocked, PythonThread},
    ids::{Nanos, ProcId},
};

/// A process that maps NCCL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub id: ProcId,
    /// Name of the executable's main thread (`comm`).
    pub name: String,
    /// First words of its command line.
    pub command: String,
    /// NCCL's version as its library says, such as `2.27.5`; empty if not known.
    pub nccl: String,
    pub origin: Origin,
    /// Its rank in the whole job (`RANK`, `OMPI_COMM_WORLD_RANK`, `SLURM_PROCID`), which is how its users name it.
    pub job_rank: Option<u32>,
    pub gone: Option<Gone>,
    /// The newest look at it.
    pub activity: Option<Activity>,
    /// Since when it has been found stopped, without a break.
    pub stopped_since: Option<Nanos>,
    /// What it waited on, and when that was read.
    #[serde(default)]
    pub blocked: Option<(Nanos, Blocked)>,
    /// Its Python threads, and when they were read.
    #[serde(default)]
    pub python: Option<(Nanos, Vec<PythonThread>)>,
}

/// Where what is known of a process comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Origin {
    /// Our own probes and samples.
    #[default]
    Live,
    /// A dump of PyTorch's Flight Recorder.
    FlightRecorder,
    /// NCCL's RAS subsystem.
    Ras,
    /// NCCL's Inspector plugin.
    Inspector,
    /// Lines of a log.
    Log,
    /// Made up by the simulation.
    Synthetic,
}

impl Process {
    /// A process of which nothing but its number is known.
    #[must_use]
    pub const fn unknown(id: ProcId, origin: Origin) -> Self {
        Self {
            id,
            name: String::new(),
            command: String::new(),
            nccl: String::new(),
            origin,
            job_rank: None,
            gone: None,
            activity: None,
            stopped_since: None,
            blocked: None,
            python: None,
        }
    }

    #[must_use]
    pub fn alive(&self) -> bool {
        self.gone.is_none()
    }
}

/// When and how a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    pub at: Nanos,
    pub exit: Exit,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// `exit(code)`.
    Code(i32),
    /// Killed by a signal.
    Signal(i32),
    /// Replaced by exec, or no longer maps NCCL.
    Replaced,
    /// The kernel does not tell (before Linux 6.15, or the process was gone before we looked).
    Unknown,
}

impl Exit {
    /// Whether the end by itself says that something went wrong.
    #[must_use]
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Signal(_)) || matches!(self, Self::Code(c) if c != 0)
    }
}

/// What a process was doing at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Time of the look.
    pub at: Nanos,
    /// State letter of the thread that last called NCCL, as in `/proc/PID/stat`: R, S, D, T, t, Z, X.
    pub state: char,
    /// The thread looked at.
    pub tid: u32,
    /// Kernel function in which it sleeps.
    pub wchan: Option<String>,
    /// System call in which it is; `None` when it runs in user space.
    pub syscall: Option<String>,
    /// CPU time of the process, in clock ticks (USER_HZ, 1/100 s).
    pub cpu_ticks: u64,
    pub threads: u32,
}

impl Activity {
    /// Stopped by a signal or by a debugger.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    #[must_use]
    pub fn state_text(&self) -> &'static str {
        match self.state {
            'R' => "running",
            'S' => "sleeping",
            'D' => "in uninterruptible sleep",
            'T' => "stopped by a signal",
            't' => "stopped by a debugger",
            'Z' => "a zombie",
            'X' => "dead",
            'I' => "idle",
            _ => "in an unknown state",
        }
    }
}
