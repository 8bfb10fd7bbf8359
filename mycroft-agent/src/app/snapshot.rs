//! What the loop leaves for the HTTP server.

use std::collections::BTreeMap;

use mycroft_common::{counters::Counter, nccl};

use super::SamplerCounts;
use crate::{
    graph::frontiers,
    model::{Op, State, flow::Standing, ids::SECOND},
    probe::Prober,
    report::{flows::STILL, metrics::Snapshot},
    rules::Engine,
};

/// Sums over operations, by function.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    operations: BTreeMap<&'static str, u64>,
    bytes: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(super) fn add(&mut self, op: &Op) {
        let name = op.signature.func.name();
        let bytes = op.signature.count.saturating_mul(nccl::datatype_size(op.signature.datatype));
        *self.operations.entry(name).or_default() += 1;
        let sum = self.bytes.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

/// What the tracer counts itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub events: u64,
    pub undecodable: u64,
    pub libraries: u64,
    pub blind: u64,
}

/// The metrics of this moment.
pub(super) fn metrics(
    prober: &Prober,
    state: &State,
    engine: &Engine,
    tally: &Tally,
    counts: Counts,
    sampler: SamplerCounts,
) -> Snapshot {
    let frontiers = frontiers(state);
    let longest = frontiers.values().map(|f| f.age(state.now)).max().unwrap_or(0);
    let mut active = BTreeMap::new();
    for v in engine.active() {
        *active.entry((v.rule, v.severity.label())).or_default() += 1;
    }
    let living = state.processes.values().filter(|p| p.alive()).count() as u64;
    let (cpu_seconds, resident_bytes) = own_usage();
    Snapshot {
        traced_processes: living.saturating_sub(counts.blind),
        blind_processes: counts.blind,
        libraries: counts.libraries,
        communicators: state.comms.len() as u64,
        probes: prober.attached().into_iter().map(|(p, n)| (p.name(), n as u64)).collect(),
        events: counts.events,
        dropped: dropped(prober, state, counts),
        operations: tally.operations.clone(),
        bytes: tally.bytes.clone(),
        standings: standings(state),
        flow_samples: sampler.stats.samples,
        flow_operations: sampler.stats.ops,
        flow_gaps: BTreeMap::from([
            ("read_again", sampler.stats.torn),
            ("given_up", sampler.stats.given_up),
            ("contradictory", sampler.stats.broken),
            ("queue_full", sampler.dropped),
            ("unreadable", sampler.failed),
        ]),
        longest_wait_seconds: longest as f64 / SECOND as f64,
        active,
        raised: engine.raised.clone(),
        cpu_seconds,
        resident_bytes,
    }
}

fn standings(state: &State) -> BTreeMap<&'static str, u64> {
    let mut standings = BTreeMap::new();
    for member in state.comms.values().flat_map(|c| c.active()) {
        let standing = member.flows.as_ref().map_or(Standing::NoData, |f| f.standing(state.now, STILL));
        *standings.entry(standing.metric()).or_default() += 1;
    }
    standings
}

fn dropped(prober: &Prober, state: &State, counts: Counts) -> BTreeMap<&'static str, u64> {
    let mut dropped: BTreeMap<&'static str, u64> = Counter::ALL
        .into_iter()
        .filter(|c| !matches!(c, Counter::Hits | Counter::Ops))
        .map(|c| (c.label(), prober.counter(c)))
        .collect();
    dropped.insert("undecodable", counts.undecodable);
    dropped.insert("unidentified", state.problems.unidentified);
    dropped.insert("implausible", state.problems.implausible);
    dropped.insert("refused", state.problems.refused);
    dropped
}

/// CPU seconds and resident bytes of this very process; 0 where `/proc` does not tell.
fn own_usage() -> (f64, u64) {
    let Ok(me) = procfs::process::Process::myself().and_then(|p| p.stat()) else { return (0.0, 0) };
    let ticks = procfs::ticks_per_second().max(1) as f64;
    ((me.utime + me.stime) as f64 / ticks, me.rss * procfs::page_size())
}
