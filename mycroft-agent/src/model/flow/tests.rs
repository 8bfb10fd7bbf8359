use mycroft_common::nccl::Func;

use super::*;
use crate::model::{
    event::{Protocol, Transport},
    ids::{HostId, ProcId, SECOND},
};

fn op(counters: [u64; 6]) -> FlowOp {
    let [posted, ready, received, transmitted, consumed, done] = counters;
    FlowOp {
        number: 1,
        func: Some(Func::AllReduce),
        protocol: Protocol::Simple,
        algorithm: Some(1),
        tree: false,
        begun: true,
        steps: 64,
        slice: 2,
        slice_bytes: 1 << 20,
        base: 128,
        posted,
        ready,
        received,
        transmitted,
        consumed,
        done,
    }
}

fn flow(way: Way, op: Option<FlowOp>) -> Flow {
    let transport = Transport::Net;
    Flow {
        channel: 0,
        peer: Some(1),
        way,
        parent: false,
        p2p: false,
        transport,
        net_dev: Some(0),
        steps: Some(192),
        op,
        behind: 0,
    }
}

fn report(at: Nanos, flows: Vec<Flow>) -> FlowReport {
    let proc = ProcId { host: HostId(0), pid: 1 };
    FlowReport { proc, ptr: 0x1000, at, flows, untaken: false, net: None, progress: None }
}

#[test]
fn each_counter_that_lags_names_who_owes_the_next_step() {
    use Phase as P;
    let send = |posted, ready, transmitted, done| Phase::of(Way::Send, &op([posted, ready, 0, transmitted, 0, done]));
    assert_eq!(send(8, 0, 0, 0), P::WaitsForGpu);
    assert_eq!(send(8, 4, 0, 0), P::NotSent);
    assert_eq!(send(8, 4, 4, 0), P::InFlight);
    assert_eq!(send(8, 8, 4, 2), P::InFlight, "what is under way comes first");
    assert_eq!(send(64, 64, 64, 64), P::Complete);
    let recv = |posted, received, transmitted, consumed, done| {
        Phase::of(Way::Recv, &op([posted, 0, received, transmitted, consumed, done]))
    };
    assert_eq!(recv(8, 0, 0, 0, 0), P::WaitsForData);
    assert_eq!(recv(8, 4, 2, 2, 2), P::NotFlushed);
    assert_eq!(recv(8, 4, 4, 2, 2), P::NotConsumed);
    assert_eq!(recv(8, 8, 8, 8, 0), P::NotPosted);
    let mut queued = op([0; 6]);
    queued.begun = false;
    assert_eq!(Phase::of(Way::Recv, &queued), P::Queued);
}

#[test]
fn a_flow_moves_when_any_number_changes() {
    let mut flows = Flows::new(&report(SECOND, vec![flow(Way::Send, Some(op([8, 4, 0, 4, 0, 2])))]));
    flows.update(&report(2 * SECOND, vec![flow(Way::Send, Some(op([8, 4, 0, 4, 0, 2])))]));
    assert_eq!((flows.at, flows.moved), (2 * SECOND, SECOND));
    assert_eq!(flows.standing(2 * SECOND, SECOND / 2), Standing::NotDelivered);
    flows.update(&report(3 * SECOND, vec![flow(Way::Send, Some(op([8, 4, 0, 4, 0, 4])))]));
    assert_eq!(flows.moved, 3 * SECOND);
    assert_eq!(flows.standing(3 * SECOND, SECOND), Standing::Moving);
    // an operation that came and went between two looks
    let mut idle = flow(Way::Send, None);
    flows.update(&report(4 * SECOND, vec![idle.clone()]));
    idle.steps = Some(256);
    flows.update(&report(5 * SECOND, vec![idle]));
    assert_eq!(flows.moved, 5 * SECOND);
    assert_eq!(flows.standing(9 * SECOND, SECOND), Standing::Idle);
}

#[test]
fn transports_without_counters_are_never_stuck() {
    let mut quiet = flow(Way::Send, None);
    quiet.transport = Transport::P2p;
    let flows = Flows::new(&report(0, vec![quiet]));
    assert_eq!(flows.standing(100 * SECOND, SECOND), Standing::NoData);
}

#[test]
fn a_thread_that_wants_to_run_and_does_not_is_starved() {
    let mut now = report(0, vec![flow(Way::Send, Some(op([8, 8, 0, 4, 0, 4])))]);
    now.progress = Some(Progress { tid: 7, ran: SECOND, waited: 0, slices: 1, state: 'R' });
    let mut flows = Flows::new(&now);
    for i in 1..=10 {
        now.at = i * 100 * MILLISECOND;
        now.progress = Some(Progress { tid: 7, ran: SECOND + i, waited: now.at, slices: 1, state: 'R' });
        flows.update(&now);
    }
    assert!(flows.proxy_starved() && flows.proxy_owes());
    assert_eq!(flows.standing(now.at, 500 * MILLISECOND), Standing::ProxyNotRunning);
    for i in 11..=20 {
        now.at = i * 100 * MILLISECOND;
        now.progress = Some(Progress { tid: 7, ran: i * 90 * MILLISECOND, waited: now.at, slices: i, state: 'R' });
        flows.update(&now);
    }
    assert!(!flows.proxy_starved());
    assert_eq!(flows.standing(now.at, 500 * MILLISECOND), Standing::NotSent);
}
