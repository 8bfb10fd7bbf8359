//! Chains of waits in words.

use super::{Subject, Verdict, View, words};
use crate::{
    graph::{Node, RankKey, Step, Why},
    model::{CommId, Member},
};

/// One line for each rank on the way: where it waits, and for whom.
#[must_use]
pub(super) fn lines(view: &View<'_>, steps: &[Step]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = steps;
    while let [first, after @ ..] = rest {
        match (first.to, after) {
            // Two edges through an operation are one wait.
            (Node::Operation { .. }, [second, after @ ..]) => {
                lines.push(line(view, first, second.to));
                rest = after;
            }
            _ => {
                lines.push(line(view, first, first.to));
                rest = after;
            }
        }
    }
    lines
}

/// From the symptom furthest away to the verdict's first culprit.
pub(super) fn chain(view: &View<'_>, verdict: &Verdict) -> Vec<String> {
    let Some(key) = verdict.culprits.first().and_then(|c| culprit(view, verdict, c)) else { return Vec::new() };
    let Some(symptom) = view.graph.farthest(key) else { return Vec::new() };
    lines(view, &view.graph.chain(symptom, key))
}

fn culprit(view: &View<'_>, verdict: &Verdict, subject: &Subject) -> Option<RankKey> {
    let member = view.state.comms.get(&verdict.comm)?.members.get(&subject.rank)?;
    (member.proc.pid == subject.pid).then(|| member.into())
}

fn line(view: &View<'_>, step: &Step, to: Node) -> String {
    let whom = match to {
        Node::Rank(key) => rank_of(view, key, comm_of(step.why)),
        Node::Operation { .. } => "a rank".to_owned(),
        Node::Unseen { .. } => "ranks that are not in sight".to_owned(),
    };
    let (id, rank) = place(step.why);
    let who = member(view, id, rank).map_or_else(|| format!("rank {rank}"), |m| words::rank_and_pid(view, m));
    let comm = view.state.comms.get(&id).map_or_else(|| id.to_string(), words::comm);
    match step.why {
        Why::Launched { .. } | Why::NotLaunched { .. } => match step.to {
            Node::Operation { seq, .. } => {
                format!("{who} has launched {} of {comm} and waits for {whom}, which has not", operation(view, id, seq))
            }
            _ => format!("{who} waits for {whom} in {comm}"),
        },
        Why::Receives { peer, .. } => {
            format!("{who} waits to receive from rank {peer} of {comm}: {whom}, which has not sent")
        }
        Why::Sends { peer, .. } => {
            format!("{who} waits to send to rank {peer} of {comm}: {whom}, which has not asked for it")
        }
        Why::Data { peer, .. } => format!("{who} waits for data of rank {peer} of {comm}: {whom}"),
        Why::MayWait { .. } => format!("{who} launched last in {comm} and may wait there for {whom}"),
        Why::Lost { .. } => format!("{who} may have launched since: events of its host were lost"),
    }
}

fn operation(view: &View<'_>, id: CommId, seq: u64) -> String {
    let comm = view.state.comms.get(&id);
    comm.map_or_else(|| format!("collective #{seq}"), |c| words::expected(c, seq))
}

/// Communicator and rank at which a wait shows.
const fn place(why: Why) -> (CommId, u32) {
    match why {
        Why::Launched { comm, rank }
        | Why::NotLaunched { comm, rank }
        | Why::Receives { comm, rank, .. }
        | Why::Sends { comm, rank, .. }
        | Why::Data { comm, rank, .. }
        | Why::MayWait { comm, rank }
        | Why::Lost { comm, rank } => (comm, rank),
    }
}

const fn comm_of(why: Why) -> CommId {
    place(why).0
}

fn member<'v>(view: &View<'v>, id: CommId, rank: u32) -> Option<&'v Member> {
    view.state.comms.get(&id)?.members.get(&rank)
}

/// The rank of this communicator that a GPU's process is.
fn rank_of(view: &View<'_>, key: RankKey, id: CommId) -> String {
    let here = view.state.memberships(key.proc).find(|(c, m)| c.id == id && m.cuda_dev == key.cuda_dev);
    here.map_or_else(|| format!("pid {}", key.proc.pid), |(_, m)| words::rank_and_pid(view, m))
}
