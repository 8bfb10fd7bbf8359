//! Dumps of PyTorch's Flight Recorder: one file a rank, pickled or as JSON.

pub(super) mod dump;
mod events;
mod join;
pub(super) mod names;

use std::collections::BTreeMap;

use super::Part;
use crate::event::Nanos;
use dump::Dump;

/// The dumps of one job, by rank, as events.
pub(super) fn part(dumps: BTreeMap<u32, Dump>) -> Part {
    let newest = dumps.values().flat_map(|d| d.entries.iter().map(|e| e.newest)).max();
    let open = |d: &Dump| d.entries.iter().filter(|e| !e.completed).map(|e| e.timeout).max();
    let timeout: Nanos = dumps.values().filter_map(open).max().unwrap_or(0);
    let job = join::Job::of(dumps);
    let absent = job.all_ranks.iter().copied().filter(|r| !job.dumps.contains_key(r)).collect();
    Part { events: events::events(&job), newest, timeout, absent }
}
