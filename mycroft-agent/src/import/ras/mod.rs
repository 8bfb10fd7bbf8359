//! What NCCL's RAS subsystem reports (`src/ras/client_support.cc`, 2.24 and later), as text or JSON.
//!
//! It counts launches, not what has ended; sends, receives and all-to-all are not counted. So it shows who is late, who
//! has an error and who is gone, and that is all.

mod json;
mod text;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use mycroft_common::nccl::Func;

use super::roster::Roster;
use crate::event::{Body, CommFound, CommRef, Exit, Ident, Nanos, Origin, ProcId, ids::SECOND};

pub(super) use json::{is_report, read as read_json};
pub(super) use text::{is_report as is_text_report, read as read_text};

/// The moment of a report that tells none.
pub(super) const UNTOLD: Nanos = SECOND;

/// A rank as a report knows it.
#[derive(Clone, Debug, Default)]
struct Rank {
    rank: u32,
    host: String,
    pid: u32,
    cuda_dev: i32,
    nvml_dev: i32,
    /// `None`: the report does not say.
    counts: Option<Vec<(Func, u64)>>,
    /// `ncclResult_t`; 0 is success.
    error: i32,
    aborted: bool,
    gone: bool,
}

/// A communicator as a report knows it.
#[derive(Clone, Debug, Default)]
struct Communicator {
    hash: u64,
    /// Tells communicators of one hash apart.
    second: String,
    size: u32,
    ranks: Vec<Rank>,
}

/// Tells what a report says of a communicator.
fn tell(comm: &Communicator, ts: Nanos, roster: &mut Roster) {
    for rank in comm.ranks.iter().filter(|r| r.rank < comm.size) {
        let Some(proc) = roster.process(ts, &rank.host, rank.pid, Origin::Ras, None) else { continue };
        let handle = handle(comm, rank, proc);
        let counts = rank.counts.clone().unwrap_or_default();
        let sum = |c: &Vec<(Func, u64)>| c.iter().fold(0u64, |n, (_, k)| n.saturating_add(*k));
        let found = CommFound {
            comm: handle,
            collectives: rank.counts.as_ref().map(sum),
            by_function: counts,
            name: None,
            init_state: None,
        };
        roster.tell(ts, Body::CommFound(Box::new(found)));
        if rank.error != 0 {
            roster.tell(ts, Body::CommError { proc, ptr: handle.ptr, code: rank.error });
        }
        if rank.aborted {
            roster.tell(ts, Body::Abort(handle));
        }
        if rank.gone {
            roster.tell(ts, Body::ProcessGone { proc, exit: Exit::Unknown });
        }
    }
}

fn handle(comm: &Communicator, rank: &Rank, proc: ProcId) -> CommRef {
    let ident = Ident {
        hash: comm.hash,
        rank: rank.rank,
        nranks: comm.size,
        cuda_dev: rank.cuda_dev,
        nvml_dev: rank.nvml_dev,
        bus_id: 0,
    };
    // A report gives no addresses. One process may have several ranks of a communicator.
    let mut hasher = DefaultHasher::new();
    (comm.hash, &comm.second, rank.rank).hash(&mut hasher);
    CommRef { proc, tid: proc.pid, ptr: hasher.finish(), ident: Some(ident) }
}

#[cfg(test)]
mod tests;
