//! Whom to look at more closely: asked of `/proc` before the rules judge.

use std::collections::BTreeSet;

use crate::{
    graph::frontiers,
    model::{
        State,
        ids::{MILLISECOND, Nanos, ProcId},
    },
};

/// From this lateness on a rank's process is looked at.
const CURIOUS: Nanos = 500 * MILLISECOND;

/// Processes whose ranks keep others waiting, with the thread that last called NCCL.
#[must_use]
pub fn suspects(state: &State) -> BTreeSet<(ProcId, u32)> {
    let mut set = BTreeSet::new();
    for frontier in frontiers(state).values() {
        let Some(comm) = state.comms.get(&frontier.comm) else {
            continue;
        };
        for missing in &frontier.missing {
            if state.now.saturating_sub(missing.since) < CURIOUS {
                continue;
            }
            if let Some(m) = comm.members.get(&missing.rank)
                && state.processes.get(&m.proc).is_none_or(|p| p.alive())
            {
                set.insert((m.proc, m.tid));
            }
        }
    }
    set
}
