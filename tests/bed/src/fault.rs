//! Faults: what they are, how they reach a rank, and how they are written on a command line.

use std::str::FromStr;
use std::time::Duration;

use crate::control::Slot;

/// "The next iteration" instead of a number.
pub const NOW: u64 = u64::MAX;

/// Something that goes wrong with one rank.
///
/// Iterations count from 0; a fault with `at` is exact: the rank itself applies it when it gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Sleeps in the application instead of calling the collective, for good.
    NeverEnter {
        rank: usize,
        at: u64,
    },
    /// Sleeps instead of creating a communicator, counted from 0, for good.
    NeverJoin {
        rank: usize,
        at: u64,
    },
    /// Calls the collectives of this iteration and the next in the other order. With several communicators in turn, it
    /// and the others wait for each other for good.
    SwapOrder {
        rank: usize,
        at: u64,
    },
    /// Sends and does not receive.
    OnlySend {
        rank: usize,
        at: u64,
    },
    /// Destroys its communicators and ends, while the others go on.
    Leave {
        rank: usize,
        at: u64,
    },
    /// Sleeps before calling it, once.
    EnterLate {
        rank: usize,
        at: u64,
        delay: Duration,
    },
    /// Sleeps before every call from an iteration on.
    Slow {
        rank: usize,
        from: u64,
        delay: Duration,
    },
    /// Calls another collective.
    DifferentCollective {
        rank: usize,
        at: u64,
    },
    /// Calls it with another count.
    DifferentCount {
        rank: usize,
        at: u64,
    },
    /// Calls it with a type of another size.
    DifferentType {
        rank: usize,
        at: u64,
    },
    /// Calls it with another root (where it has one).
    DifferentRoot {
        rank: usize,
        at: u64,
    },
    /// The process is killed.
    Die {
        rank: usize,
        at: u64,
    },
    /// The process is stopped (`SIGSTOP`).
    Stop {
        rank: usize,
        at: u64,
    },
    /// A stopped process continues.
    Cont {
        rank: usize,
    },
    /// The network link of the rank's host goes down (needs `netns`).
    LinkDown {
        rank: usize,
    },
    LinkUp {
        rank: usize,
    },
    /// The thread that drives the rank's network transfers gets next to no CPU time (needs `thread_names`).
    StarveProxy {
        rank: usize,
    },
    /// The emulated GPU stops before a step of a collective, both from 0.
    GpuStall {
        rank: usize,
        collective: u64,
        step: u64,
    },
    GpuResume {
        rank: usize,
    },
}

/// Numbers of the faults that a rank applies itself.
pub mod kind {
    pub const NEVER_ENTER: u64 = 1;
    pub const ENTER_LATE: u64 = 2;
    pub const SLOW: u64 = 3;
    pub const DIFFERENT_COLLECTIVE: u64 = 4;
    pub const DIFFERENT_COUNT: u64 = 5;
    pub const DIFFERENT_TYPE: u64 = 6;
    pub const DIFFERENT_ROOT: u64 = 7;
    pub const DIE: u64 = 8;
    pub const STOP: u64 = 9;
    pub const NEVER_JOIN: u64 = 10;
    pub const SWAP_ORDER: u64 = 11;
    pub const ONLY_SEND: u64 = 12;
    pub const LEAVE: u64 = 13;
}

impl Fault {
    pub fn rank(&self) -> usize {
        match *self {
            Fault::NeverEnter { rank, .. }
            | Fault::NeverJoin { rank, .. }
            | Fault::SwapOrder { rank, .. }
            | Fault::OnlySend { rank, .. }
            | Fault::Leave { rank, .. }
            | Fault::EnterLate { rank, .. }
            | Fault::Slow { rank, .. }
            | Fault::DifferentCollective { rank, .. }
            | Fault::DifferentCount { rank, .. }
            | Fault::DifferentType { rank, .. }
            | Fault::DifferentRoot { rank, .. }
            | Fault::Die { rank, .. }
            | Fault::Stop { rank, .. }
            | Fault::Cont { rank }
            | Fault::LinkDown { rank }
            | Fault::LinkUp { rank }
            | Fault::StarveProxy { rank }
            | Fault::GpuStall { rank, .. }
            | Fault::GpuResume { rank } => rank,
        }
    }

    /// How the rank is told, if it is the rank that applies it.
    pub(crate) fn slot(&self) -> Option<Slot> {
        let (kind, at, arg) = match *self {
            Fault::NeverEnter { at, .. } => (kind::NEVER_ENTER, at, 0),
            Fault::NeverJoin { at, .. } => (kind::NEVER_JOIN, at, 0),
            Fault::SwapOrder { at, .. } => (kind::SWAP_ORDER, at, 0),
            Fault::OnlySend { at, .. } => (kind::ONLY_SEND, at, 0),
            Fault::Leave { at, .. } => (kind::LEAVE, at, 0),
            Fault::EnterLate { at, delay, .. } => (kind::ENTER_LATE, at, delay.as_nanos() as u64),
            Fault::Slow { from, delay, .. } => (kind::SLOW, from, delay.as_nanos() as u64),
            Fault::DifferentCollective { at, .. } => (kind::DIFFERENT_COLLECTIVE, at, 0),
            Fault::DifferentCount { at, .. } => (kind::DIFFERENT_COUNT, at, 0),
            Fault::DifferentType { at, .. } => (kind::DIFFERENT_TYPE, at, 0),
            Fault::DifferentRoot { at, .. } => (kind::DIFFERENT_ROOT, at, 0),
            Fault::Die { at, .. } if at != NOW => (kind::DIE, at, 0),
            Fault::Stop { at, .. } if at != NOW => (kind::STOP, at, 0),
            _ => return None,
        };
        Some(Slot { kind, at, arg })
    }
}

/// A fault from a command line, and the iteration to wait for before it is injected.
///
/// `never-enter:2@20`, `enter-late:2@20+500ms`, `slow:2+50ms`, `die:1@20`, `link-down:3@20`, `gpu-stall:1@20.3`
/// (collective 20, step 3): name, rank, iteration, delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    pub fault: Fault,
    pub after: Option<u64>,
}

fn number<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what} {text} is not a number"))
}

fn duration(text: &str) -> Result<Duration, String> {
    if let Some(ms) = text.strip_suffix("ms") {
        number("delay", ms).map(Duration::from_millis)
    } else {
        number("delay", text.strip_suffix('s').unwrap_or(text)).map(Duration::from_secs)
    }
}

impl FromStr for Timed {
    type Err = String;

    fn from_str(text: &str) -> Result<Timed, String> {
        let (name, rest) = text.split_once(':').ok_or("a fault is NAME:RANK[@ITERATION][+DELAY]")?;
        let (rest, delay) = match rest.split_once('+') {
            Some((rest, delay)) => (rest, Some(duration(delay)?)),
            None => (rest, None),
        };
        let (rank, at) = match rest.split_once('@') {
            Some((rank, at)) => (rank, Some(at)),
            None => (rest, None),
        };
        let rank = number("rank", rank)?;
        let (iteration, step) = match at.map(|a| a.split_once('.').unwrap_or((a, "0"))) {
            Some((iteration, step)) => (Some(number("iteration", iteration)?), number("step", step)?),
            None => (None, 0),
        };
        let at = iteration.unwrap_or(NOW);
        let delay = delay.unwrap_or(Duration::from_millis(100));
        let fault = match name {
            "never-enter" => Fault::NeverEnter { rank, at },
            "never-join" => Fault::NeverJoin { rank, at: iteration.unwrap_or(0) },
            "swap-order" => Fault::SwapOrder { rank, at },
            "only-send" => Fault::OnlySend { rank, at },
            "leave" => Fault::Leave { rank, at },
            "enter-late" => Fault::EnterLate { rank, at, delay },
            "slow" => Fault::Slow { rank, from: iteration.unwrap_or(0), delay },
            "different-collective" => Fault::DifferentCollective { rank, at },
            "different-count" => Fault::DifferentCount { rank, at },
            "different-type" => Fault::DifferentType { rank, at },
            "different-root" => Fault::DifferentRoot { rank, at },
            "die" => Fault::Die { rank, at },
            "stop" => Fault::Stop { rank, at },
            "gpu-stall" => Fault::GpuStall { rank, collective: iteration.unwrap_or(0), step },
            "cont" => Fault::Cont { rank },
            "link-down" => Fault::LinkDown { rank },
            "link-up" => Fault::LinkUp { rank },
            "starve-proxy" => Fault::StarveProxy { rank },
            "gpu-resume" => Fault::GpuResume { rank },
            _ => return Err(format!("no fault is called {name}")),
        };
        let by_harness = fault.slot().is_none() && !matches!(fault, Fault::GpuStall { .. });
        Ok(Timed { fault, after: iteration.filter(|_| by_harness) })
    }
}
