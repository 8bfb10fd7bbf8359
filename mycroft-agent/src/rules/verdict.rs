//! What a rule says: who, what, how we know, what would refute it, what to do.

use std::fmt;

use crate::model::{
    CommId, Member, Origin, State,
    ids::{Nanos, bus_id_text},
};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Info,
    Warning,
    Critical,
}

impl Severity {
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// How sure we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Low,
    Medium,
    High,
}

impl Level {
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// How sure, and why not more or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confidence {
    pub level: Level,
    pub reason: String,
}

/// Where a fact comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A uprobe on libnccl.
    NcclProbe,
    /// NCCL's own structures in the process's memory.
    NcclMemory,
    /// `/proc`.
    Proc,
    /// A Python interpreter's own structures in the process's memory.
    Python,
    /// A pidfd's exit information.
    PidFd,
    /// A dump of PyTorch's Flight Recorder.
    FlightRecorder,
    /// NCCL's RAS subsystem.
    Ras,
    /// NCCL's Inspector plugin.
    Inspector,
    /// A log.
    Log,
    /// A simulation.
    Simulation,
    /// Drawn from the other evidence.
    Derived,
}

impl Source {
    /// Where a rank's calls are known from.
    #[must_use]
    pub fn of_calls(state: &State, member: &Member) -> Self {
        match state.processes.get(&member.proc).map_or(Origin::Live, |p| p.origin) {
            Origin::Live => Self::NcclProbe,
            Origin::FlightRecorder => Self::FlightRecorder,
            Origin::Ras => Self::Ras,
            Origin::Inspector => Self::Inspector,
            Origin::Log => Self::Log,
            Origin::Synthetic => Self::Simulation,
        }
    }

    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NcclProbe => "nccl uprobe",
            Self::NcclMemory => "nccl memory",
            Self::Proc => "/proc",
            Self::Python => "python memory",
            Self::PidFd => "pidfd",
            Self::FlightRecorder => "flight recorder",
            Self::Ras => "nccl ras",
            Self::Inspector => "nccl inspector",
            Self::Log => "log",
            Self::Simulation => "simulation",
            Self::Derived => "derived",
        }
    }
}

/// One fact that a verdict rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub at: Nanos,
    pub source: Source,
    pub text: String,
}

/// A rank of a communicator, with where it runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Empty, and pid 0, if the rank's process is not known.
    pub host: String,
    pub pid: u32,
    /// Its rank in the communicator.
    pub rank: u32,
    /// Its rank in the whole job, where the launcher tells.
    pub job_rank: Option<u32>,
    pub cuda_dev: i32,
    /// PCI address of its GPU.
    pub bus_id: String,
}

impl Subject {
    #[must_use]
    pub fn of(state: &State, member: &Member) -> Self {
        Self {
            host: state.host_name(member.proc.host).to_owned(),
            pid: member.proc.pid,
            rank: member.rank,
            job_rank: state.processes.get(&member.proc).and_then(|p| p.job_rank),
            cuda_dev: member.cuda_dev,
            bus_id: bus_id_text(member.bus_id),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (", self.rank)?;
        if let Some(rank) = self.job_rank.filter(|r| *r != self.rank) {
            write!(f, "rank {rank} of the job, ")?;
        }
        if self.pid == 0 {
            return f.write_str("its process is not known)");
        }
        write!(f, "host {}, pid {}, GPU {})", self.host, self.pid, self.bus_id)
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `MYC001`.
    pub rule: &'static str,
    /// `rank-not-launched`.
    pub name: &'static str,
    pub severity: Severity,
    pub confidence: Confidence,
    /// The one line that an engineer forwards.
    pub headline: String,
    pub comm: CommId,
    /// Number of the collective at which it shows, if it shows at one.
    pub seq: Option<u64>,
    pub culprits: Vec<Subject>,
    pub victims: Vec<Subject>,
    pub since: Nanos,
    pub evidence: Vec<Evidence>,
    /// What would show that this verdict is wrong.
    pub refuted_by: String,
    pub next_steps: Vec<String>,
    /// From a symptom to the first cause, a line a step; filled in by the engine.
    pub chain: Vec<String>,
}

/// What makes two verdicts the same finding at two moments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerdictKey {
    pub rule: &'static str,
    pub comm: CommId,
    pub seq: Option<u64>,
    pub culprits: Vec<(String, u32, u32)>,
}

impl Verdict {
    #[must_use]
    pub fn key(&self) -> VerdictKey {
        VerdictKey {
            rule: self.rule,
            comm: self.comm,
            seq: self.seq,
            culprits: self.culprits.iter().map(|c| (c.host.clone(), c.pid, c.rank)).collect(),
        }
    }
}
