//! When `diagnose` may give its answer, and which. Pure.

use crate::{
    graph::frontiers,
    model::{
        State,
        ids::{Nanos, SECOND},
    },
};

/// A communicator must be seen to finish this many collectives before it counts as moving.
const MOVING: u64 = 3;
/// No answer of health before this much time was watched.
const LEAST_WATCHED: Nanos = 3 * SECOND;
/// A rank this late makes us wait for the rules to judge.
const LATE: Nanos = SECOND;

/// What the state says besides its verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// All that can be seen moves.
    Healthy(String),
    /// Not yet clear.
    Open(String),
}

/// Judges whether all communicators move, `watched` after the probes went in.
pub(super) fn health(state: &State, watched: Nanos) -> Health {
    let living = state.processes.values().filter(|p| p.alive()).count();
    if living == 0 {
        return Health::Open("no living process on this host maps NCCL".to_owned());
    }
    if state.ops == 0 {
        let doing: Vec<String> = state
            .processes
            .values()
            .filter(|p| p.alive())
            .take(8)
            .map(|p| {
                let what =
                    crate::rules::words::activity(Some(p)).map_or_else(|| "not looked at".to_owned(), |(_, t)| t);
                format!("pid {} {} is {what}", p.id.pid, p.name)
            })
            .collect();
        return Health::Open(format!(
            "insufficient evidence: {living} processes map NCCL but none has called it in {:.0} s: idle, or stuck \
             since before Mycroft attached ({})",
            watched as f64 / SECOND as f64,
            doing.join("; ")
        ));
    }
    let frontiers = frontiers(state);
    for comm in state.comms.values().filter(|c| c.active().next().is_some()) {
        if let Some(f) = frontiers.get(&comm.id)
            && f.age(state.now) >= LATE
        {
            return Health::Open(format!(
                "insufficient evidence: ranks of communicator {} are late, but within its habits",
                comm.id
            ));
        }
        if comm.comparable().count() > 1 && comm.rhythm.completed < MOVING {
            return Health::Open(format!(
                "insufficient evidence: communicator {} ({} of {} ranks seen) finished only {} collectives while watched",
                comm.id,
                comm.members.len(),
                comm.id.nranks,
                comm.rhythm.completed
            ));
        }
        let idle = state.now.saturating_sub(comm.last_launch);
        if idle > LEAST_WATCHED {
            return Health::Open(format!(
                "insufficient evidence: communicator {} moved, but nothing was launched on it for {:.1} s",
                comm.id,
                idle as f64 / SECOND as f64
            ));
        }
    }
    if watched < LEAST_WATCHED {
        return Health::Open("watched too briefly".to_owned());
    }
    Health::Healthy(format!(
        "{} communicators of {living} processes move, no rank holds up another ({} operations in {:.1} s)",
        state.comms.len(),
        state.ops,
        watched as f64 / SECOND as f64
    ))
}
