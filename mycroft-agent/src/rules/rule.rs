//! What a rule is, and the list of all.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Verdict, myc001_not_launched, myc002_process_dead, myc003_process_stopped, myc004_ranks_differ,
    myc005_gpu_stands_still, myc006_proxy_not_running, myc007_not_delivered, myc008_not_sent, myc009_deadlock,
    myc010_send_recv_unmatched, myc011_init_stuck, myc012_communicator_error, myc013_slow_rank, myc014_slow_link,
    myc015_slow_host, myc016_progress_behind, myc017_job_slow, myc018_operations_drift, myc019_left_early,
    myc020_insufficient_evidence,
};
use crate::{
    graph::{
        Circle, Frontier, RankKey, WaitGraph, cycle,
        flow::{self, Findings},
        late::{self, Late},
        progress::{self, Lag},
    },
    model::{Comm, CommId, Member, Process, State, ids::Nanos, rhythm::Patience},
};

/// What a rule looks at.
#[derive(Debug)]
pub struct View<'a> {
    pub state: &'a State,
    pub graph: WaitGraph,
    /// Ranks that wait for each other.
    pub circles: Vec<Circle>,
    /// Ranks that are late as a habit.
    pub late: Vec<Late>,
    pub patience: &'a Patience,
    /// What holds up the transfers of each communicator in which none has moved for its patience.
    pub flows: BTreeMap<CommId, Findings>,
    /// Where ranks are behind in what their GPUs have ended.
    pub lags: BTreeMap<CommId, Lag>,
    /// Ranks whose GPUs are known to be held up: late because of that, and not by their own doing.
    pub held_up: BTreeSet<RankKey>,
}

impl<'a> View<'a> {
    #[must_use]
    pub fn new(state: &'a State, patience: &'a Patience) -> Self {
        let stuck = |c: &Comm| flow::stuck(c, state.now, c.rhythm.patience(patience));
        let flows: BTreeMap<CommId, Findings> =
            state.comms.values().map(|c| (c.id, stuck(c))).filter(|(_, found)| !found.is_empty()).collect();
        let graph = WaitGraph::build(state, &flows);
        let circles = cycle::circles(&graph);
        let lags = progress::lags(state);
        let held_up = progress::held_up(state, &lags, &graph.frontiers);
        Self { state, graph, circles, late: late::late(state), patience, flows, lags, held_up }
    }
}

impl View<'_> {
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.state.now
    }

    /// The frontiers at which some rank is later than its communicator's habits allow.
    pub fn stalled(&self) -> impl Iterator<Item = (&Comm, &Frontier)> {
        self.graph.frontiers.values().filter_map(|f| {
            let comm = self.state.comms.get(&f.comm)?;
            (f.age(self.now()) >= comm.rhythm.patience(self.patience)).then_some((comm, f))
        })
    }

    #[must_use]
    pub fn process(&self, member: &Member) -> Option<&Process> {
        self.state.processes.get(&member.proc)
    }

    #[must_use]
    pub fn alive(&self, member: &Member) -> bool {
        self.process(member).is_none_or(Process::alive)
    }

    /// Ranks of a communicator whose processes live.
    pub fn living<'c>(&self, comm: &'c Comm) -> impl Iterator<Item = &'c Member> {
        comm.active().filter(|m| self.alive(m))
    }

    /// Whether ranks of this communicator disagreed on a collective that still matters.
    #[must_use]
    pub fn disagrees(&self, comm: &Comm) -> bool {
        myc004_ranks_differ::current(self, comm).is_some()
    }
}

/// A rule: its name, its documentation, its judgement.
#[derive(Clone, Copy)]
pub struct Rule {
    /// `MYC001`.
    pub id: &'static str,
    /// `rank-not-launched`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Markdown of its page under docs/rules: meaning, impact, diagnosis, mitigation.
    pub doc: &'static str,
    pub check: fn(&View<'_>) -> Vec<Verdict>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// All rules, in the order in which their verdicts are told.
pub const REGISTRY: &[Rule] = &[
    myc004_ranks_differ::RULE,
    myc002_process_dead::RULE,
    myc003_process_stopped::RULE,
    myc012_communicator_error::RULE,
    myc001_not_launched::RULE,
    myc019_left_early::RULE,
    myc009_deadlock::RULE,
    myc010_send_recv_unmatched::RULE,
    myc011_init_stuck::RULE,
    myc006_proxy_not_running::RULE,
    myc005_gpu_stands_still::RULE,
    myc007_not_delivered::RULE,
    myc008_not_sent::RULE,
    myc016_progress_behind::RULE,
    myc018_operations_drift::RULE,
    myc014_slow_link::RULE,
    myc015_slow_host::RULE,
    myc013_slow_rank::RULE,
    myc017_job_slow::RULE,
    myc020_insufficient_evidence::RULE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_well_formed() {
        for (i, r) in REGISTRY.iter().enumerate() {
            assert!(r.id.starts_with("MYC") && r.id.len() == 6, "{}", r.id);
            assert!(REGISTRY[i + 1..].iter().all(|o| o.id != r.id && o.name != r.name), "{}", r.id);
            for heading in ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"] {
                assert!(r.doc.contains(heading), "{} lacks {heading}", r.id);
            }
        }
    }
}
