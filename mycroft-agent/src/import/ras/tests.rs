use serde_json::json;

use super::*;
use crate::{
    event::{Event, HostId},
    import::{repair, samples::RAS_TEXT},
};

fn founds(events: &[Event]) -> Vec<(u32, u32, Option<u64>)> {
    let found = |e: &Event| match &e.body {
        Body::CommFound(f) => Some((f.comm.ident?.rank, f.comm.proc.pid, f.collectives)),
        _ => None,
    };
    events.iter().filter_map(found).collect()
}

#[test]
fn counts_errors_and_the_dead_of_a_report() {
    let rank = |rank: u32, sum: u64, error: i32| {
        json!({"rank": rank, "host": format!("n{}", rank / 2), "pid": 100 + rank, "cuda_dev": rank % 2, "nvml_dev": rank % 2,
            "status": {"init_state": 7, "async_error": error, "abort_flag": false},
            "collective_counts": {"AllGather": 1, "AllReduce": sum}})
    };
    let missing = |rank: u32, dead: bool| {
        json!({"rank": rank, "host": "n1", "pid": 100 + rank, "cuda_dev": 0, "nvml_dev": 0,
            "status": {"unresponsive": true, "considered_dead": dead}})
    };
    let report = json!({"timestamp": "1970-01-01 00:00:05", "communicators": [{"hash": "0xabc", "secondary_hash": "0x1:0x2",
        "size": 4, "ranks": [rank(0, 9, 0), rank(1, 8, 6)], "missing_ranks": [missing(2, true), missing(3, false)]}]});
    // As 2.28 writes it.
    let text = report.to_string().replace("\"nvml_dev\":0,\"pid\":102,", "\"nvml_dev\":0 \"pid\":102,");
    let (value, mended) = repair::parse(&text).unwrap();
    assert!(mended && is_report(&value));
    let mut roster = Roster::default();
    assert_eq!(read_json(&value, &mut roster), Some(5 * SECOND));
    let events = roster.events;
    assert_eq!(founds(&events), [(0, 100, Some(10)), (1, 101, Some(9)), (2, 102, None), (3, 103, None)]);
    let gone: Vec<u32> = events
        .iter()
        .filter_map(|e| if let Body::ProcessGone { proc, .. } = e.body { Some(proc.pid) } else { None })
        .collect();
    assert_eq!(gone, [102], "one that gives no answer is not dead yet");
    assert!(events.iter().any(|e| matches!(e.body, Body::CommError { proc: ProcId { pid: 101, .. }, code: 6, .. })));
}

#[test]
fn a_rank_beyond_the_communicators_size_is_let_go() {
    let report = json!({"communicators": [{"hash": "0x1", "size": 1, "ranks": [{"rank": 1, "host": "h", "pid": 3}]},
        {"hash": "no number", "size": 1}, 7]});
    let mut roster = Roster::default();
    assert_eq!(read_json(&report, &mut roster), None);
    assert!(roster.events.is_empty());
}

#[test]
fn a_text_names_the_few_and_the_rest_follow() {
    assert!(is_text_report(RAS_TEXT) && !is_text_report("Communicators are many\n"));
    let mut roster = Roster::default();
    read_text(RAS_TEXT, &mut roster);
    let found = founds(&roster.events);
    let counts: Vec<(u32, Option<u64>)> = found.iter().map(|(rank, _, n)| (*rank, *n)).collect();
    assert_eq!(counts, [(0, Some(64)), (1, Some(60)), (2, Some(64)), (3, None)]);
    assert!(roster.events.iter().any(|e| matches!(e.body, Body::ProcessGone { proc: ProcId { pid: 72, .. }, .. })));
    let host = |name: &str| {
        roster.events.iter().find_map(|e| match &e.body {
            Body::Host { host, name: n } if n == name => Some(*host),
            _ => None,
        })
    };
    assert_ne!(host("node1"), host("node2"));
    assert_ne!(host("node1"), Some(HostId(0)));
}

#[test]
fn a_rank_that_launched_nothing() {
    let text = RAS_TEXT.replace("Rank 1 has launched up to operation 60", "Rank 1 has not launched any operations");
    let mut roster = Roster::default();
    read_text(&text, &mut roster);
    assert!(founds(&roster.events).contains(&(1, 66, Some(0))));
}
