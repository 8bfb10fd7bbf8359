//! Circles of waits: deadlocks.

use std::collections::BTreeSet;

use petgraph::{algo::tarjan_scc, graph::NodeIndex};

use super::wait::{Node, RankKey, Step, WaitGraph};

/// Circles are looked for from so many of their nodes at most; the shortest of those is told.
const STARTS: usize = 64;

/// Ranks that wait for each other in a circle from which no wait leads out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// The shortest circle among them.
    pub steps: Vec<Step>,
}

impl Circle {
    /// The ranks on it, in its order.
    pub fn ranks(&self) -> impl Iterator<Item = RankKey> {
        self.steps.iter().filter_map(|s| match s.from {
            Node::Rank(key) => Some(key),
            _ => None,
        })
    }
}

/// The circles of a graph. One from which a wait leads to a rank outside, or out of sight, is none: its cause is there.
#[must_use]
pub fn circles(waits: &WaitGraph) -> Vec<Circle> {
    let graph = &waits.graph;
    let mut found: Vec<Circle> = tarjan_scc(graph)
        .into_iter()
        .filter(|part| part.len() > 1)
        .map(BTreeSet::from_iter)
        .filter(|part| {
            part.iter().all(|ix| graph.neighbors(*ix).all(|next| part.contains(&next) || !leads_on(waits, next)))
        })
        .filter_map(|part| shortest(waits, &part))
        .map(|steps| Circle { steps })
        .collect();
    found.sort_by_key(|c| c.steps.first().map(|s| s.from));
    found
}

/// A rank that is waited for beside the circle explains it only if it is a cause, or is not in sight.
fn leads_on(waits: &WaitGraph, next: NodeIndex) -> bool {
    match waits.graph[next] {
        Node::Rank(key) => waits.is_root(key) || waits.has_root_behind(key) || waits.has_unseen_behind(key),
        Node::Unseen { .. } => true,
        Node::Operation { .. } => waits.graph.neighbors(next).any(|n| leads_on(waits, n)),
    }
}

fn shortest(waits: &WaitGraph, part: &BTreeSet<NodeIndex>) -> Option<Vec<Step>> {
    let mut starts: Vec<NodeIndex> =
        part.iter().copied().filter(|ix| matches!(waits.graph[*ix], Node::Rank(_))).collect();
    starts.sort_unstable_by_key(|ix| waits.graph[*ix]);
    let circle = |ix: &NodeIndex| waits.shortest(*ix, *ix, &|next| part.contains(&next));
    starts.iter().take(STARTS).map(circle).filter(|c| !c.is_empty()).min_by_key(Vec::len)
}
