//! Sends and receives whose other half has not come.

use super::wait::{Node, RankKey, SETTLED, Why};
use crate::model::{Comm, Launch, Program, State, ids::Nanos, pair::Pair};
use mycroft_common::nccl::Func;

/// A send up to this size can end before its receive is called: it fits the connection's buffer (`NCCL_BUFFSIZE`, 4 MiB
/// by default).
const BUFFERED: u64 = 4 << 20;

/// A rank that waits in a send or receive.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub waiter: RankKey,
    pub why: Why,
    pub for_whom: Node,
    pub since: Nanos,
}

/// Waits of all ranks that are older than the ordinary coming and going.
#[must_use]
pub fn waits(state: &State) -> Vec<Wait> {
    let mut found = Vec::new();
    for ((proc, cuda_dev), program) in &state.programs {
        let waiter = RankKey { proc: *proc, cuda_dev: *cuda_dev };
        for launch in newest_messages(program) {
            let Some(comm) = state.comms.get(&launch.comm) else { continue };
            let wait = wait_of(comm, waiter, launch);
            found.extend(wait.filter(|w| state.now.saturating_sub(w.since) >= SETTLED));
        }
    }
    found
}

/// Sends and receives that were called after the last collective: what the rank may be waiting in. Those before it have
/// ended, or the collective would wait for them.
fn newest_messages(program: &Program) -> impl Iterator<Item = &Launch> {
    let is_message = |l: &&Launch| matches!(l.signature.func, Func::Send | Func::Recv);
    program.iter().rev().take_while(is_message)
}

fn wait_of(comm: &Comm, waiter: RankKey, launch: &Launch) -> Option<Wait> {
    let (rank, peer) = (launch.rank, launch.peer?);
    let member = comm.members.get(&rank).filter(|m| m.end.is_none())?;
    let receives = launch.signature.func == Func::Recv;
    let why =
        if receives { Why::Receives { comm: comm.id, rank, peer } } else { Why::Sends { comm: comm.id, rank, peer } };
    let Some(other) = comm.members.get(&peer) else {
        // Whether the peer has called cannot be seen, but for what has ended.
        let ended = member.done_other.is_some_and(|done| done >= launch.seq);
        let waits = receives || launch.signature.bytes() > BUFFERED;
        return (waits && !ended).then_some(Wait {
            waiter,
            why,
            for_whom: Node::Unseen { comm: comm.id },
            since: launch.ts,
        });
    };
    if !(member.from_start && other.from_start) {
        return None;
    }
    let pair = comm.pairs.get(&if receives { (peer, rank) } else { (rank, peer) })?;
    let unmet = if receives { pair.unmet_recv() } else { unbuffered(pair) }?;
    Some(Wait { waiter, why, for_whom: Node::Rank(other.into()), since: unmet.ts })
}

fn unbuffered(pair: &Pair) -> Option<&crate::model::pair::Call> {
    pair.unmet_send().filter(|call| call.bytes > BUFFERED)
}
