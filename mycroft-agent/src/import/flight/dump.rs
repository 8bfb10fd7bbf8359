//! One rank's dump: its fields as they are, whichever version wrote them.
//!
//! Source: `torch/csrc/distributed/c10d/FlightRecorder*.hpp`. Keys are looked for, not versions: forks and back-ports
//! carry other version strings than their fields suggest.

use std::collections::BTreeMap;

use mycroft_common::nccl::Func;
use serde_json::Value;

use super::names;
use crate::{
    event::Nanos,
    import::value::{flag, items, number, text},
};

/// Operations of one dump that are taken; PyTorch's ring holds 2,000 unless asked for more.
const ENTRIES: usize = 200_000;
const GROUPS: usize = 20_000;
/// Ranks named by one dump's groups, all together.
const RANKS: usize = 4_000_000;

/// What one rank wrote.
#[derive(Debug)]
pub(in crate::import) struct Dump {
    pub(in crate::import) rank: Option<u32>,
    pub(in crate::import) nccl: String,
    /// By name.
    pub(in crate::import) groups: BTreeMap<String, Group>,
    /// By the group's number on this rank.
    pub(in crate::import) status: BTreeMap<u64, Status>,
    pub(in crate::import) entries: Vec<Entry>,
}

/// A process group, as its members name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::import) struct Group {
    pub(in crate::import) desc: String,
    /// Job ranks in the order of their ranks in the group; empty where the dump does not say.
    pub(in crate::import) ranks: Vec<u32>,
}

/// PyTorch's own count of a group's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::import) struct Status {
    pub(in crate::import) enqueued: Option<u64>,
    pub(in crate::import) completed: Option<u64>,
}

/// One operation.
#[derive(Clone, Debug)]
pub(in crate::import) struct Entry {
    pub(in crate::import) group_id: u64,
    pub(in crate::import) group: String,
    pub(in crate::import) desc: String,
    pub(in crate::import) seq: u64,
    pub(in crate::import) p2p: bool,
    /// Sends and receives: the other rank, within the group.
    pub(in crate::import) peer: Option<u32>,
    pub(in crate::import) func: Func,
    /// Elements by which ranks can be compared; 0 where they may rightly differ.
    pub(in crate::import) count: u64,
    pub(in crate::import) datatype: i32,
    pub(in crate::import) created: Nanos,
    pub(in crate::import) completed: bool,
    /// The newest time that the entry tells.
    pub(in crate::import) newest: Nanos,
    pub(in crate::import) timeout: Nanos,
}

impl Dump {
    /// Takes what is there; `Err` says why this is no dump.
    pub(in crate::import) fn of(value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or("the outermost value is no dictionary")?;
        if !["entries", "pg_status", "pg_config"].iter().any(|key| map.contains_key(*key)) {
            return Err("none of the keys entries, pg_status, pg_config".to_owned());
        }
        let entries = items(map.get("entries"));
        if entries.len() > ENTRIES {
            return Err(format!("{} entries, more than {ENTRIES}", entries.len()));
        }
        let nccl = text(map.get("nccl_version")).or_else(|| text(map.get("comm_lib_version")));
        Ok(Self {
            rank: number(map.get("rank")).and_then(|r| u32::try_from(r).ok()),
            nccl: nccl.unwrap_or_default().to_owned(),
            groups: groups(map.get("pg_config"))?,
            status: statuses(map.get("pg_status")),
            entries: entries.iter().filter_map(entry).collect(),
        })
    }
}

fn groups(config: Option<&Value>) -> Result<BTreeMap<String, Group>, String> {
    let Some(config) = config.and_then(Value::as_object) else { return Ok(BTreeMap::new()) };
    if config.len() > GROUPS {
        return Err(format!("{} process groups, more than {GROUPS}", config.len()));
    }
    let mut left = RANKS;
    let mut groups = BTreeMap::new();
    for (name, group) in config {
        let ranks = rank_list(group.get("ranks"));
        left = left.checked_sub(ranks.len()).ok_or_else(|| format!("groups of more than {RANKS} ranks in all"))?;
        let desc = text(group.get("desc")).unwrap_or_default().to_owned();
        groups.insert(name.clone(), Group { desc, ranks });
    }
    Ok(groups)
}

/// `"[0, 1]"`, or a list of numbers. One that names a rank twice, or something else, says nothing.
fn rank_list(v: Option<&Value>) -> Vec<u32> {
    let ranks: Option<Vec<u32>> = match v {
        Some(Value::String(s)) => {
            let inner = s.trim().trim_start_matches('[').trim_end_matches(']');
            inner.split(',').map(|n| n.trim().parse().ok()).collect()
        }
        Some(Value::Array(list)) => list.iter().map(|n| number(Some(n)).and_then(|n| u32::try_from(n).ok())).collect(),
        _ => None,
    };
    let ranks = ranks.unwrap_or_default();
    let distinct: std::collections::BTreeSet<u32> = ranks.iter().copied().collect();
    if distinct.len() == ranks.len() { ranks } else { Vec::new() }
}

fn statuses(v: Option<&Value>) -> BTreeMap<u64, Status> {
    let status = |s: &Value| Status {
        enqueued: number(s.get("last_enqueued_collective")),
        completed: number(s.get("last_completed_collective")),
    };
    let map = v.and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(id, s)| Some((id.parse().ok()?, status(s)))).take(GROUPS).collect()
}

fn entry(v: &Value) -> Option<Entry> {
    let call = names::call(text(v.get("profiling_name"))?)?;
    // Early versions count collectives, sends and receives together, as seq_id.
    let p2p = flag(v.get("is_p2p")) || call.peer.is_some();
    let own = if p2p { "p2p_seq_id" } else { "collective_seq_id" };
    let seq = number(v.get(own)).or_else(|| number(v.get("seq_id")))?;
    let group_id = number(v.get("pg_id")).unwrap_or(0);
    let (group, desc) = group_of(v, group_id);
    let created = number(v.get("time_created_ns"))?;
    let time = |key| number(v.get(key)).filter(|t| *t > 0);
    let started = time("time_discovered_started_ns");
    let completed = time("time_discovered_completed_ns");
    let state = text(v.get("state")).unwrap_or_default();
    let sizes = if call.counts_output { "output_sizes" } else { "input_sizes" };
    let types = if call.counts_output { "output_dtypes" } else { "input_dtypes" };
    Some(Entry {
        group_id,
        group,
        desc,
        seq,
        p2p,
        peer: call.peer,
        func: call.func,
        count: if call.comparable { elements(v.get(sizes)) } else { 0 },
        datatype: items(v.get(types)).first().and_then(Value::as_str).map_or(-1, names::datatype),
        created,
        completed: state == "completed" || completed.is_some(),
        newest: created.max(started.unwrap_or(0)).max(completed.unwrap_or(0)),
        timeout: number(v.get("timeout_ms")).unwrap_or(0).saturating_mul(1_000_000),
    })
}

/// Name and description of the entry's group; before there was a name, its number.
fn group_of(v: &Value, id: u64) -> (String, String) {
    match items(v.get("process_group")) {
        [Value::String(name), rest @ ..] => {
            (name.clone(), rest.first().and_then(Value::as_str).unwrap_or_default().to_owned())
        }
        _ => (id.to_string(), String::new()),
    }
}

/// Of all tensors together.
fn elements(sizes: Option<&Value>) -> u64 {
    let tensor =
        |dims: &Value| items(Some(dims)).iter().fold(1u64, |n, d| n.saturating_mul(number(Some(d)).unwrap_or(0)));
    items(sizes).iter().fold(0u64, |sum, t| sum.saturating_add(tensor(t)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_json_form_and_the_pickled_form_give_the_same() {
        let pickled = json!({"pg_id": 5, "process_group": ["35", "TP"], "collective_seq_id": 7, "p2p_seq_id": 2,
            "profiling_name": "nccl:all_reduce", "time_created_ns": 100, "input_sizes": [[4, 2], [3]],
            "input_dtypes": ["Float", "Float"], "state": "started", "time_discovered_started_ns": 120,
            "time_discovered_completed_ns": null, "timeout_ms": 3, "is_p2p": false});
        let mut json_form = pickled.clone();
        json_form["time_discovered_completed_ns"] = json!(0);
        json_form["collective_seq_id"] = json!("7");
        for v in [pickled, json_form] {
            let e = entry(&v).unwrap();
            assert_eq!((e.group.as_str(), e.seq, e.count, e.datatype), ("35", 7, 11, 7));
            assert_eq!((e.completed, e.newest, e.timeout), (false, 120, 3_000_000));
        }
    }

    #[test]
    fn statuses_are_numbers_or_texts() {
        let v = json!({"0": {"last_enqueued_collective": "8", "last_completed_collective": 7},
            "5": {"last_enqueued_collective": -1}, "x": {}});
        let s = statuses(Some(&v));
        assert_eq!(s[&0], Status { enqueued: Some(8), completed: Some(7) });
        assert_eq!((s[&5].enqueued, s.len()), (None, 2));
    }

    #[test]
    fn ranks_of_a_group() {
        assert_eq!(rank_list(Some(&json!("[0, 4,8]"))), [0, 4, 8]);
        assert_eq!(rank_list(Some(&json!([3, 1]))), [3, 1]);
        assert!(rank_list(Some(&json!("[1, 1]"))).is_empty());
        assert!(rank_list(Some(&json!("all"))).is_empty());
    }

    #[test]
    fn other_json_is_no_dump() {
        assert!(Dump::of(&json!([1])).is_err());
        assert!(Dump::of(&json!({"version": "2.9"})).unwrap_err().contains("pg_status"));
        assert!(Dump::of(&json!({"version": "2.9", "pg_status": {}})).is_ok());
    }
}
