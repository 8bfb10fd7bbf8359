use std::collections::BTreeMap;

use super::*;
use crate::model::{
    Body, CommRef, Event, HostId, ProcId, State,
    event::{FlowReport, Ident, Progress, Protocol, Transport},
    ids::SECOND,
};

const RANKS: u32 = 4;

/// Counters of the two flows of a rank in a ring: (posted, ready, transmitted, done) and
/// (posted, received, transmitted, consumed, done).
#[derive(Clone, Copy)]
struct Both([u64; 4], [u64; 5]);

const BLANK: FlowOp = FlowOp {
    number: 7,
    func: None,
    protocol: Protocol::Simple,
    algorithm: None,
    tree: false,
    begun: true,
    steps: 48,
    slice: 2,
    slice_bytes: 1,
    base: 96,
    posted: 0,
    ready: 0,
    received: 0,
    transmitted: 0,
    consumed: 0,
    done: 0,
};

fn flows(rank: u32, both: Option<Both>) -> Vec<Flow> {
    let [next, prev] = [(rank + 1) % RANKS, (rank + RANKS - 1) % RANKS];
    let flow = |way, peer, op: Option<FlowOp>| Flow {
        channel: 0,
        peer: Some(peer),
        way,
        parent: false,
        p2p: false,
        transport: Transport::Net,
        net_dev: Some(0),
        steps: Some(if op.is_some() { 144 } else { 96 }),
        op,
        behind: 0,
    };
    let send =
        both.map(|Both([posted, ready, transmitted, done], _)| FlowOp { posted, ready, transmitted, done, ..BLANK });
    let recv = both.map(|Both(_, [posted, received, transmitted, consumed, done])| FlowOp {
        posted,
        received,
        transmitted,
        consumed,
        done,
        ..BLANK
    });
    vec![flow(Way::Send, next, send), flow(Way::Recv, prev, recv)]
}

fn judged(ranks: [Option<Both>; 4], starved: Option<u32>) -> BTreeMap<u32, Vec<Stuck>> {
    let mut state = State::default();
    for second in 1..=4 {
        for (rank, both) in (0..).zip(ranks) {
            let proc = ProcId { host: HostId(0), pid: 10 + rank };
            let ident = Ident { hash: 1, rank, nranks: RANKS, cuda_dev: 0, nvml_dev: 0, bus_id: 0 };
            let comm = CommRef { proc, tid: 1, ptr: 0x1000, ident: Some(ident) };
            let ran = if starved == Some(rank) { 0 } else { second * SECOND };
            let report = FlowReport {
                proc,
                ptr: 0x1000,
                at: second * SECOND,
                flows: flows(rank, both),
                untaken: false,
                net: None,
                progress: Some(Progress { tid: 2, ran, waited: second * SECOND, slices: second, state: 'R' }),
            };
            state.apply(&Event { ts: second * SECOND, body: Body::InitEnd { comm, result: 0 } });
            state.apply(&Event { ts: second * SECOND, body: Body::Flows(Box::new(report)) });
        }
    }
    let comm = state.comms.values().next().unwrap();
    let found = stuck(comm, state.now, SECOND);
    found.into_iter().map(|(rank, stuck)| (rank, stuck.into_keys().collect())).collect()
}

/// A rank that waits for data, all of what came being used up.
const VICTIM: Both = Both([24, 16, 16, 16], [24, 16, 16, 16, 16]);

#[test]
fn an_absent_rank_is_told_by_both_neighbours() {
    // each has sent its own first chunk
    let sender = Both([8, 8, 8, 0], [16, 8, 8, 8, 8]);
    let next = Both([16, 8, 8, 8], [8, 0, 0, 0, 0]);
    let last = Both([16, 8, 8, 8], [16, 8, 8, 8, 8]);
    let found = judged([Some(sender), None, Some(next), Some(last)], None);
    assert_eq!(found[&1], [Stuck::Absent]);
    assert!(found.iter().all(|(rank, s)| *rank == 1 || s.iter().all(|s| !s.is_cause())), "{found:?}");
    assert_eq!(found[&2], [Stuck::WaitsFor(1)]);
}

#[test]
fn a_gpu_that_takes_nothing_is_told_from_one_that_has_no_room() {
    // rank 1's GPU stands still; rank 0 can't complete, rank 2 gets nothing
    let stalled = Both([24, 16, 16, 16], [24, 24, 24, 16, 16]);
    let full = Both([32, 32, 32, 24], [32, 32, 32, 24, 24]);
    let found = judged([Some(full), Some(stalled), Some(VICTIM), Some(VICTIM)], None);
    assert_eq!(found[&1], [Stuck::Gpu]);
    assert_eq!(found[&0], [Stuck::WaitsFor(1)], "it has data and no room: the next one's fault");
    assert_eq!(found[&2], [Stuck::WaitsFor(1)]);
}

#[test]
fn what_left_one_end_and_did_not_reach_the_other_is_the_path() {
    let sender = Both([24, 24, 24, 16], [24, 16, 16, 16, 16]);
    let found = judged([Some(VICTIM), Some(sender), Some(VICTIM), Some(VICTIM)], None);
    assert_eq!(found[&1], [Stuck::PathTo(2), Stuck::WaitsFor(0), Stuck::WaitsFor(2)]);
    assert!(found.iter().all(|(rank, s)| *rank == 1 || s.iter().all(|s| !s.is_cause())), "{found:?}");
}

#[test]
fn a_proxy_without_a_cpu_is_told_before_its_flows() {
    let sender = Both([24, 24, 16, 16], [24, 16, 16, 16, 16]);
    let found = judged([Some(VICTIM), Some(sender), Some(VICTIM), Some(VICTIM)], Some(1));
    assert_eq!(found[&1], [Stuck::Proxy]);
    let found = judged([Some(VICTIM), Some(sender), Some(VICTIM), Some(VICTIM)], None);
    assert_eq!(found[&1], [Stuck::NotSentTo(2), Stuck::WaitsFor(0)]);
}
