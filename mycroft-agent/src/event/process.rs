//! A traced process.

use super::ids::{Nanos, ProcId};

/// A process that maps NCCL.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub id: ProcId,
    /// Name of the executable's main thread (`comm`).
    pub name: String,
    /// First words of its command line.
    pub command: String,
    /// NCCL's version as its library says, such as `2.27.5`; empty if not known.
    pub nccl: String,
    pub gone: Option<Gone>,
    /// The newest look at it.
    pub activity: Option<Activity>,
    /// Since when it has been found stopped, without a break.
    pub stopped_since: Option<Nanos>,
}

impl Process {
    #[must_use]
    pub fn alive(&self) -> bool {
        self.gone.is_none()
    }
}

/// When and how a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    pub at: Nanos,
    pub exit: Exit,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq)]
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
