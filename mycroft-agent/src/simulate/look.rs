//! What an agent sees of processes: what they do, how they end, what errors NCCL holds for them.

use super::{
    SLICES, Simulation, Task,
    fault::{Fault, Idle, Kind},
    layout::Group,
    program::Pause,
    rank::Wait,
    tell::{BEGIN, address, proc},
};
use crate::event::{
    Activity, Body, Nanos,
    ids::{MILLISECOND, SECOND},
};

/// `ncclRemoteError`, `ncclSystemError`.
const REMOTE_ERROR: i32 = 6;
const SYSTEM_ERROR: i32 = 2;
/// So long after an error of its own a job gives up.
const GIVES_UP_AFTER: Nanos = 10 * SECOND;

impl Simulation {
    /// A fault shows by itself.
    pub(super) fn show(&mut self, i: usize) {
        match self.config.faults[i].kind {
            Kind::Dies { rank, exit } => self.end_process(rank, exit),
            Kind::Errors { rank } => {
                self.error(rank, SYSTEM_ERROR);
                self.set(self.now + SECOND, Task::Follow(i));
            }
            _ => {}
        }
    }

    fn error(&mut self, r: u32, code: i32) {
        let proc = proc(&self.layout, r);
        let body = Body::CommError { proc, ptr: address(Group::Dp), code };
        self.teller.tell(self.layout.host(r), self.now, body);
    }

    /// The others of the communicator are told of the error, and later all abort.
    pub(super) fn follow(&mut self, i: usize) {
        let Kind::Errors { rank } = self.config.faults[i].kind else { return };
        let since = self.config.faults[i].at;
        if self.now < since + GIVES_UP_AFTER {
            let layout = self.layout;
            let (comm, _) = layout.comm(Group::Dp, rank);
            for other in layout.members(comm).filter(|o| *o != rank) {
                self.error(other, REMOTE_ERROR);
            }
            self.set(since + GIVES_UP_AFTER, Task::Follow(i));
            return;
        }
        for r in 0..self.layout.world() {
            self.ranks[r as usize].wait = Wait::Off;
            let late = (self.chance() * 5e8) as Nanos;
            let layout = self.layout;
            for group in Group::ALL.into_iter().filter(|g| layout.size(*g) > 1) {
                let comm = self.teller.handle(r, group, true);
                self.teller.tell(self.layout.host(r), self.now + late, Body::Abort(comm));
            }
        }
    }

    /// Looks at a part of all processes.
    pub(super) fn look_at_processes(&mut self, slice: u32) {
        for r in (slice..self.layout.world()).step_by(SLICES as usize) {
            self.look_at_process(r);
        }
    }

    /// Ranks that keep others waiting are looked at more often: those that faults hold.
    pub(super) fn look_at_suspects(&mut self) {
        for i in 0..self.config.faults.len() {
            let fault = self.config.faults[i];
            if !fault.active(self.now) {
                continue;
            }
            if let Kind::HostBlocked { rank, .. } | Kind::Stopped { rank, .. } = fault.kind {
                self.look_at_process(rank);
            }
        }
    }

    fn look_at_process(&mut self, r: u32) {
        if self.ranks[r as usize].gone {
            return;
        }
        let (proc, at) = (proc(&self.layout, r), self.now);
        let (state, wchan, syscall, ran) = self.doing(r);
        let activity = Activity {
            at,
            state,
            tid: proc.pid,
            wchan: wchan.map(str::to_owned),
            syscall: syscall.map(str::to_owned),
            cpu_ticks: ran / (10 * MILLISECOND),
            threads: 64,
        };
        self.teller.tell(self.layout.host(r), at, Body::ProcessActivity { proc, activity: Box::new(activity) });
    }

    /// State letter, kernel function, system call, and CPU time so far.
    fn doing(&self, r: u32) -> (char, Option<&'static str>, Option<&'static str>, Nanos) {
        let ran = self.now - BEGIN;
        let sleeps = ('S', Some("hrtimer_nanosleep"), Some("clock_nanosleep"));
        let writes = ('D', Some("folio_wait_bit_common"), Some("fsync"));
        let waits = ('S', Some("futex_wait_queue"), Some("futex"));
        let held = self.config.faults.iter().find_map(|f| {
            let begun = f.active(self.now).then_some(f.at - BEGIN)?;
            let (state, wchan, syscall) = match f.kind {
                Kind::HostBlocked { rank, idle } if rank == r => match idle {
                    Idle::Sleeps => sleeps,
                    Idle::Disk => writes,
                    Idle::Busy => return Some(('R', None, None, ran)),
                },
                Kind::Stopped { rank, debugger } if rank == r => (if debugger { 't' } else { 'T' }, None, None),
                _ => return None,
            };
            Some((state, wchan, syscall, begun))
        });
        if let Some(held) = held {
            return held;
        }
        let rank = &self.ranks[r as usize];
        let (state, wchan, syscall) = match (rank.pausing, rank.wait) {
            (Some(Pause::Checkpoint), _) => writes,
            (Some(Pause::Request), _) | (_, Wait::Join(_) | Wait::Off) => waits,
            // Waiting for a GPU is a loop in user space.
            _ => return ('R', None, None, ran),
        };
        (state, wchan, syscall, ran / 2)
    }

    /// The fault that keeps a rank's progress thread from running now.
    pub(super) fn proxy_fault(&self, r: u32) -> Option<&Fault> {
        let now = self.now;
        self.config.faults.iter().find(|f| {
            let whom = matches!(f.kind, Kind::ProxyStarved { rank } | Kind::Stopped { rank, .. } if rank == r);
            whom && f.active(now)
        })
    }
}
