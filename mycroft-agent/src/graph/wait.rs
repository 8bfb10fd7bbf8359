//! The wait-for graph: rank → operation it has launched → rank that has not.

use std::collections::BTreeMap;

use petgraph::{
    Direction,
    graph::{DiGraph, NodeIndex},
};

use super::frontier::Frontier;
use crate::model::{
    CommId, Member, State,
    ids::{MILLISECOND, Nanos, ProcId},
};

/// A frontier younger than this is the ordinary coming and going of ranks and makes no edge.
const SETTLED: Nanos = 500 * MILLISECOND;

/// One GPU's work in one process: what waits and is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    pub proc: ProcId,
    pub cuda_dev: i32,
}

impl From<&Member> for RankKey {
    fn from(m: &Member) -> Self {
        Self { proc: m.proc, cuda_dev: m.cuda_dev }
    }
}

/// A node of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Rank(RankKey),
    Operation { comm: CommId, seq: u64 },
}

/// Who waits for whom, over all communicators.
#[derive(Clone, Debug, Default)]
pub struct WaitGraph {
    graph: DiGraph<Node, ()>,
    ranks: BTreeMap<RankKey, NodeIndex>,
    /// Every communicator's frontier, settled or not.
    pub frontiers: BTreeMap<CommId, Frontier>,
}

impl WaitGraph {
    #[must_use]
    pub fn build(state: &State) -> Self {
        let mut graph = Self::default();
        for comm in state.comms.values() {
            let Some(frontier) = Frontier::of(state, comm) else {
                continue;
            };
            if frontier.age(state.now) >= SETTLED {
                let op = graph.graph.add_node(Node::Operation { comm: comm.id, seq: frontier.seq });
                for member in frontier.waiting.iter().filter_map(|r| comm.members.get(r)) {
                    let waiter = graph.rank(member.into());
                    graph.graph.update_edge(waiter, op, ());
                }
                for member in frontier.missing.iter().filter_map(|m| comm.members.get(&m.rank)) {
                    let missing = graph.rank(member.into());
                    graph.graph.update_edge(op, missing, ());
                }
            }
            graph.frontiers.insert(comm.id, frontier);
        }
        graph
    }

    fn rank(&mut self, key: RankKey) -> NodeIndex {
        let graph = &mut self.graph;
        *self.ranks.entry(key).or_insert_with(|| graph.add_node(Node::Rank(key)))
    }

    /// Whether others wait for this rank while it waits for nobody.
    #[must_use]
    pub fn is_root(&self, key: RankKey) -> bool {
        self.ranks.get(&key).is_some_and(|ix| {
            self.graph.neighbors_directed(*ix, Direction::Incoming).next().is_some()
                && self.graph.neighbors_directed(*ix, Direction::Outgoing).next().is_none()
        })
    }

    /// Whether a root can be reached from this rank: its wait has a cause outside any circle.
    #[must_use]
    pub fn has_root_behind(&self, key: RankKey) -> bool {
        let Some(start) = self.ranks.get(&key) else {
            return false;
        };
        let mut walk = petgraph::visit::Dfs::new(&self.graph, *start);
        while let Some(ix) = walk.next(&self.graph) {
            if let Node::Rank(k) = self.graph[ix]
                && self.is_root(k)
            {
                return true;
            }
        }
        false
    }
}
