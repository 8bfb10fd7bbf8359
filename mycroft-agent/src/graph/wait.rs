//! The wait-for graph: rank → what it waits in → rank that keeps it waiting, over all communicators.
//!
//! Edges come from three places: collectives that some have launched and others not (`frontier`), sends and receives
//! without their other half (`message`), and data that does not move (`flow`). A wait whose end is not in sight leads to
//! [`Node::Unseen`], so that nobody in sight is blamed for it.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{
    Direction,
    graph::{DiGraph, NodeIndex},
    visit::{Dfs, EdgeRef as _},
};

use super::{
    flow::{Findings, Stuck},
    frontier::Frontier,
    message, unseen,
};
use crate::model::{
    Comm, CommId, Member, State,
    ids::{MILLISECOND, Nanos, ProcId},
};

/// A wait younger than this is the ordinary coming and going of ranks and makes no edge.
pub const SETTLED: Nanos = 500 * MILLISECOND;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Rank(RankKey),
    Operation {
        comm: CommId,
        seq: u64,
    },
    /// Ranks of a communicator that are not in sight, or whose events were lost.
    Unseen {
        comm: CommId,
    },
}

/// Why one node waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The rank has launched the operation.
    Launched { comm: CommId, rank: u32 },
    /// The operation waits for the rank to launch it.
    NotLaunched { comm: CommId, rank: u32 },
    /// The rank has called a receive to which no send has come.
    Receives { comm: CommId, rank: u32, peer: u32 },
    /// The rank has called a send, too large to be buffered, that no receive has met.
    Sends { comm: CommId, rank: u32, peer: u32 },
    /// The rank's transfers wait for the other's.
    Data { comm: CommId, rank: u32, peer: u32 },
    /// The rank may wait there; what would tell is not in sight.
    MayWait { comm: CommId, rank: u32 },
    /// The host of the rank has lost events that were not made good.
    Lost { comm: CommId, rank: u32 },
}

/// One step of a chain of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub from: Node,
    pub why: Why,
    pub to: Node,
}

/// Who waits for whom, over all communicators.
#[derive(Clone, Debug, Default)]
pub struct WaitGraph {
    pub(super) graph: DiGraph<Node, Why>,
    nodes: BTreeMap<Node, NodeIndex>,
    /// Every communicator's frontier, settled or not.
    pub frontiers: BTreeMap<CommId, Frontier>,
}

impl WaitGraph {
    /// `flows`: what holds up the transfers of each communicator whose data stands still.
    #[must_use]
    pub fn build(state: &State, flows: &BTreeMap<CommId, Findings>) -> Self {
        let mut graph = Self { frontiers: frontiers(state), ..Self::default() };
        graph.add_collectives(state);
        for wait in message::waits(state) {
            graph.edge(Node::Rank(wait.waiter), wait.why, wait.for_whom);
        }
        graph.add_flows(state, flows);
        for (rank, why, comm) in unseen::waits(state, &graph.missing(state)) {
            graph.edge(Node::Rank(rank), why, Node::Unseen { comm });
        }
        graph
    }

    fn add_collectives(&mut self, state: &State) {
        let settled: Vec<Frontier> = self.frontiers.values().filter(|f| f.age(state.now) >= SETTLED).cloned().collect();
        for frontier in settled {
            let Some(comm) = state.comms.get(&frontier.comm) else { continue };
            let op = Node::Operation { comm: comm.id, seq: frontier.seq };
            for member in frontier.waiting.iter().filter_map(|r| comm.members.get(r)) {
                let why = Why::Launched { comm: comm.id, rank: member.rank };
                self.edge(Node::Rank(member.into()), why, op);
            }
            for member in frontier.missing.iter().filter_map(|m| comm.members.get(&m.rank)) {
                let why = Why::NotLaunched { comm: comm.id, rank: member.rank };
                self.edge(op, why, Node::Rank(member.into()));
            }
        }
    }

    /// A rank that is itself a cause in a communicator waits for nobody there.
    fn add_flows(&mut self, state: &State, flows: &BTreeMap<CommId, Findings>) {
        for (id, findings) in flows {
            let Some(comm) = state.comms.get(id) else { continue };
            for (rank, found) in findings.iter().filter(|(_, f)| f.keys().all(|s| !s.is_cause())) {
                let Some(member) = comm.members.get(rank) else { continue };
                for stuck in found.keys() {
                    let (peer, to) = match stuck {
                        Stuck::WaitsFor(peer) => match comm.members.get(peer) {
                            Some(m) => (*peer, Node::Rank(m.into())),
                            None => (*peer, Node::Unseen { comm: *id }),
                        },
                        Stuck::WaitsUnseen(peer) => (*peer, Node::Unseen { comm: *id }),
                        _ => continue,
                    };
                    self.edge(Node::Rank(member.into()), Why::Data { comm: *id, rank: *rank, peer }, to);
                }
            }
        }
    }

    /// Ranks that keep others waiting, and so far wait for nobody.
    fn missing(&self, state: &State) -> BTreeSet<(CommId, u32)> {
        let late = self.frontiers.values().filter(|f| f.age(state.now) >= SETTLED);
        let ranks = late.flat_map(|f| f.missing.iter().map(|m| (f.comm, m.rank)));
        ranks
            .filter(|(id, rank)| {
                state.comms.get(id).and_then(|c| c.members.get(rank)).is_some_and(|m| self.is_root(m.into()))
            })
            .collect()
    }

    fn edge(&mut self, from: Node, why: Why, to: Node) {
        if from == to {
            return;
        }
        let (from, to) = (self.node(from), self.node(to));
        self.graph.update_edge(from, to, why);
    }

    fn node(&mut self, node: Node) -> NodeIndex {
        let graph = &mut self.graph;
        *self.nodes.entry(node).or_insert_with(|| graph.add_node(node))
    }

    /// Whether others wait for this rank while it waits for nobody.
    #[must_use]
    pub fn is_root(&self, key: RankKey) -> bool {
        self.nodes.get(&Node::Rank(key)).is_some_and(|ix| {
            self.graph.neighbors_directed(*ix, Direction::Incoming).next().is_some() && !self.waits_at(*ix)
        })
    }

    /// Whether this rank waits for anybody.
    #[must_use]
    pub fn waits(&self, key: RankKey) -> bool {
        self.nodes.get(&Node::Rank(key)).is_some_and(|ix| self.waits_at(*ix))
    }

    fn waits_at(&self, ix: NodeIndex) -> bool {
        self.graph.neighbors_directed(ix, Direction::Outgoing).next().is_some()
    }

    /// What a rank waits in or for, with why.
    pub fn waits_of(&self, key: RankKey) -> impl Iterator<Item = Step> {
        let edges = self.nodes.get(&Node::Rank(key)).map(|ix| self.graph.edges(*ix));
        edges.into_iter().flatten().map(|e| Step {
            from: self.graph[e.source()],
            why: *e.weight(),
            to: self.graph[e.target()],
        })
    }

    /// Whether a root can be reached from this rank: its wait has a cause outside any circle.
    #[must_use]
    pub fn has_root_behind(&self, key: RankKey) -> bool {
        self.reaches(key, |node| matches!(node, Node::Rank(k) if self.is_root(k)))
    }

    /// Whether its wait leads out of sight.
    #[must_use]
    pub fn has_unseen_behind(&self, key: RankKey) -> bool {
        self.reaches(key, |node| matches!(node, Node::Unseen { .. }))
    }

    fn reaches(&self, key: RankKey, wanted: impl Fn(Node) -> bool) -> bool {
        let Some(start) = self.nodes.get(&Node::Rank(key)) else {
            return false;
        };
        let mut walk = Dfs::new(&self.graph, *start);
        while let Some(ix) = walk.next(&self.graph) {
            if wanted(self.graph[ix]) {
                return true;
            }
        }
        false
    }

    /// All waits, in a fixed order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let step = |e: petgraph::graph::EdgeReference<'_, Why>| Step {
            from: self.graph[e.source()],
            why: *e.weight(),
            to: self.graph[e.target()],
        };
        let mut steps: Vec<Step> = self.graph.edge_references().map(step).collect();
        steps.sort_unstable_by_key(|s| (s.from, s.to));
        steps
    }

    /// The rank whose wait leads to this one by the longest of the shortest ways: the symptom furthest from the cause.
    #[must_use]
    pub fn farthest(&self, cause: RankKey) -> Option<RankKey> {
        let start = *self.nodes.get(&Node::Rank(cause))?;
        let mut seen = BTreeSet::from([start]);
        let mut layer = vec![start];
        let mut farthest = None;
        while !layer.is_empty() {
            let ranks = layer.iter().filter_map(|ix| match self.graph[*ix] {
                Node::Rank(key) if key != cause => Some(key),
                _ => None,
            });
            farthest = ranks.min().or(farthest);
            let before = |ix: &NodeIndex| self.graph.neighbors_directed(*ix, Direction::Incoming);
            layer = layer.iter().flat_map(before).filter(|ix| seen.insert(*ix)).collect();
        }
        farthest
    }

    /// The shortest chain of waits from one rank to another.
    #[must_use]
    pub fn chain(&self, from: RankKey, to: RankKey) -> Vec<Step> {
        match (self.nodes.get(&Node::Rank(from)), self.nodes.get(&Node::Rank(to))) {
            (Some(from), Some(to)) => self.shortest(*from, *to, &|_| true),
            _ => Vec::new(),
        }
    }

    /// Breadth first, through nodes that `through` lets pass; empty if there is no way. From a node to itself: a circle.
    pub(super) fn shortest(&self, from: NodeIndex, to: NodeIndex, through: &dyn Fn(NodeIndex) -> bool) -> Vec<Step> {
        let mut came: BTreeMap<NodeIndex, (NodeIndex, Why)> = BTreeMap::new();
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            // petgraph lists the newest edge first: sorted, so that equal graphs give equal chains.
            let mut next: Vec<_> = self.graph.edges(at).map(|e| (e.target(), *e.weight())).collect();
            next.sort_unstable_by_key(|(ix, _)| self.graph[*ix]);
            for (ix, why) in next.into_iter().filter(|(ix, _)| through(*ix)) {
                if came.contains_key(&ix) {
                    continue;
                }
                came.insert(ix, (at, why));
                if ix == to {
                    return self.trace(&came, from, to);
                }
                queue.push_back(ix);
            }
        }
        Vec::new()
    }

    fn trace(&self, came: &BTreeMap<NodeIndex, (NodeIndex, Why)>, from: NodeIndex, to: NodeIndex) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut at = to;
        while let Some((before, why)) = came.get(&at) {
            steps.push(Step { from: self.graph[*before], why: *why, to: self.graph[at] });
            at = *before;
            if at == from {
                break;
            }
        }
        steps.reverse();
        steps
    }
}

/// Every communicator's frontier.
#[must_use]
pub fn frontiers(state: &State) -> BTreeMap<CommId, Frontier> {
    let of = |c: &Comm| Frontier::of(state, c).map(|f| (c.id, f));
    state.comms.values().filter_map(of).collect()
}
