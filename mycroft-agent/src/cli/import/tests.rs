//! From files to verdicts: real dumps with their truth, made-up ones for what those do not show, and broken ones.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::*;
use crate::rules::Verdict;

fn real(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/flight-recorder").join(case)
}

/// `Fault ranks: [12, 14]`
fn truth(case: &str) -> BTreeSet<u32> {
    let log = fs::read_to_string(real(case).join("fault_injection.log")).unwrap();
    let list = log.split('[').nth(1).unwrap().split(']').next().unwrap();
    list.split(',').map(|n| n.trim().parse().unwrap()).collect()
}

fn read(paths: &[PathBuf]) -> (import::Import, State, Vec<Verdict>) {
    let import = import::read(paths);
    let (state, engine) = judge(&import);
    let verdicts = engine.active().into_iter().cloned().collect();
    (import, state, verdicts)
}

/// Ranks of the job that the verdicts name.
fn culprits(verdicts: &[Verdict]) -> BTreeSet<u32> {
    verdicts.iter().flat_map(|v| v.culprits.iter().filter_map(|c| c.job_rank)).collect()
}

fn dumps(case: &str) -> Vec<(String, Value)> {
    (0..16)
        .map(|rank| {
            let name = format!("_dump_{rank}");
            let bytes = fs::read(real(case).join(&name)).unwrap();
            (name, import::pickled(&bytes).unwrap())
        })
        .collect()
}

fn folder(files: &[(String, Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, value) in files {
        fs::write(dir.path().join(name), value.to_string()).unwrap();
    }
    dir
}

fn judged(dir: &Path) -> (BTreeSet<u32>, Vec<Verdict>) {
    let (_, _, verdicts) = read(&[dir.to_owned()]);
    (culprits(&verdicts), verdicts)
}

#[test]
fn the_ranks_at_fault_in_real_dumps() {
    for case in ["gpu_error_1st", "lock_gil_1st"] {
        let (import, state, verdicts) = read(&[real(case)]);
        assert_eq!(import.used, [(Kind::FlightRecorder, 16)]);
        assert_eq!((import.problems.len(), import.other), (0, 1), "the log of the truth is no input");
        assert_eq!(culprits(&verdicts), truth(case), "{case}: {verdicts:#?}");
        assert_eq!(answer(&import, &state, &judge(&import).1).code, FINDING);
    }
}

#[test]
fn the_json_form_gives_the_same_verdicts() {
    for case in ["gpu_error_1st", "lock_gil_1st"] {
        let mut files = dumps(case);
        for (_, dump) in &mut files {
            for status in dump["pg_status"].as_object_mut().unwrap().values_mut() {
                for count in status.as_object_mut().unwrap().values_mut() {
                    *count = json!(count.to_string());
                }
            }
            for e in dump["entries"].as_array_mut().unwrap() {
                e["time_discovered_started_ns"] = json!(0);
                e["time_discovered_completed_ns"] = json!(0);
            }
            if dump["entries"].as_array().unwrap().is_empty() {
                dump.as_object_mut().unwrap().remove("entries");
            }
        }
        let headlines = |v: &[Verdict]| v.iter().map(|v| v.headline.clone()).collect::<BTreeSet<_>>();
        let (found, verdicts) = judged(folder(&files).path());
        assert_eq!(found, truth(case));
        assert_eq!(headlines(&verdicts), headlines(&read(&[real(case)]).2));
    }
}

/// A rank that is stopped can't write its dump; the others say who is waited for as far as they can.
#[test]
fn dumps_that_are_missing_or_broken_are_told_and_lower_the_confidence() {
    let mut files = dumps("gpu_error_1st");
    files.retain(|(name, _)| name != "_dump_15");
    let dir = folder(&files);
    fs::write(dir.path().join("_dump_3"), b"\x80\x02cos\nsystem\n.").unwrap();
    let (import, _, verdicts) = read(&[dir.path().to_owned()]);
    assert_eq!(import.problems.len(), 1);
    assert!(import.problems[0].path.ends_with("_dump_3") && import.problems[0].what.starts_with("byte 2: "));
    assert_eq!(import.absent, BTreeSet::from([3, 15]));
    assert_eq!(culprits(&verdicts), truth("gpu_error_1st"));
    let v = verdicts.iter().find(|v| v.rule == "MYC016").unwrap();
    assert_eq!(v.confidence.level, crate::rules::Level::Medium, "{:?}", v.confidence);
}

/// One entry of a made-up dump.
fn entry(seq: u64, name: &str, state: &str, elements: u64) -> Value {
    json!({"record_id": seq, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": name, "time_created_ns": 1_000_000_000_000u64 + seq * 1_000_000, "state": state,
        "input_sizes": [[elements]], "output_sizes": [[elements]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "time_discovered_started_ns": null, "time_discovered_completed_ns": null, "retired": false, "timeout_ms": 600000,
        "is_p2p": false})
}

fn dump(rank: u32, entries: Vec<Value>) -> (String, Value) {
    let config = json!({"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}});
    (format!("rank_{rank}"), json!({"version": "2.5", "pg_config": config, "entries": entries}))
}

fn history(ended: u64, launched: u64) -> Vec<Value> {
    (1..=launched)
        .map(|seq| entry(seq, "nccl:all_reduce", if seq <= ended { "completed" } else { "scheduled" }, 64))
        .collect()
}

#[test]
fn a_rank_that_launched_one_less() {
    let files: Vec<_> = (0..4).map(|r| dump(r, history(20, if r == 1 { 20 } else { 21 }))).collect();
    let (found, verdicts) = judged(folder(&files).path());
    assert_eq!(found, BTreeSet::from([1]));
    assert_eq!((verdicts[0].rule, verdicts[0].seq), ("MYC001", Some(21)));
}

#[test]
fn ranks_that_disagree_on_a_size() {
    let with = |r: u32| {
        let mut list = history(20, 20);
        list.push(entry(21, "nccl:all_reduce", "started", if r == 3 { 14 } else { 15 }));
        list
    };
    let files: Vec<_> = (0..4).map(|r| dump(r, with(r))).collect();
    let (found, verdicts) = judged(folder(&files).path());
    assert_eq!((verdicts.len(), verdicts[0].rule), (1, "MYC004"));
    assert_eq!(found, BTreeSet::from([3]));
}

#[test]
fn uneven_all_to_all_is_no_disagreement() {
    let with = |r: u32| (1..9).map(|s| entry(s, "nccl:all_to_all", "completed", u64::from(r) + s)).collect();
    let files: Vec<_> = (0..4).map(|r| dump(r, with(r))).collect();
    let (import, state, verdicts) = read(&[folder(&files).path().to_owned()]);
    assert!(verdicts.is_empty(), "{verdicts:#?}");
    let a = answer(&import, &state, &judge(&import).1);
    assert_eq!((a.code, a.outcome), (HEALTHY, "healthy"), "{}", a.reason);
}

#[test]
fn all_launched_and_none_ended_blames_nobody() {
    let files: Vec<_> = (0..4).map(|r| dump(r, history(20, 30))).collect();
    let (import, state, verdicts) = read(&[folder(&files).path().to_owned()]);
    assert!(verdicts.is_empty(), "{verdicts:#?}");
    let a = answer(&import, &state, &judge(&import).1);
    assert_eq!(a.code, UNKNOWN);
    assert!(a.reason.contains("launched by all ranks in sight and have not ended"), "{}", a.reason);
}

/// Calls between startCoalescing and its end stay `scheduled`; the entry of the group tells.
#[test]
fn calls_within_a_coalesced_group_are_not_open() {
    let with = |_| {
        let mut list = history(8, 8);
        list.extend([entry(9, "nccl:all_reduce", "scheduled", 5), entry(9, "nccl:all_reduce", "scheduled", 7)]);
        list.push(entry(9, "nccl:coalesced", "completed", 0));
        list
    };
    let files: Vec<_> = (0..4).map(|r| dump(r, with(r))).collect();
    let (import, state, verdicts) = read(&[folder(&files).path().to_owned()]);
    assert!(verdicts.is_empty(), "{verdicts:#?}");
    assert_eq!(answer(&import, &state, &judge(&import).1).code, HEALTHY);
}

/// Groups 1 of ranks 0, 1 and 2 of ranks 2, 3 besides the default one.
fn dump_with_pair(rank: u32, entries: Vec<Value>) -> (String, Value) {
    let (name, mut value) = dump(rank, entries);
    let (pair, ranks) = if rank < 2 { ("1", "[0, 1]") } else { ("2", "[2, 3]") };
    value["pg_config"][pair] = json!({"name": pair, "desc": "TP", "ranks": ranks});
    (name, value)
}

fn in_pair(rank: u32, seq: u64, state: &str, after: u64) -> Value {
    let mut e = entry(seq, "nccl:all_reduce", state, 8);
    e["process_group"] = json!([if rank < 2 { "1" } else { "2" }, "TP"]);
    e["pg_id"] = json!(1);
    e["time_created_ns"] = json!(1_000_000_000_000u64 + after * 1_000_000);
    e
}

/// Rank 3's GPU stands in its pair; rank 2 is past that. So the default group's #21 does not end, and rank 0, which waits
/// for it before it calls its pair again, comes late there for no reason of its own.
#[test]
fn a_host_that_waits_for_its_gpu_is_not_to_blame() {
    let files: Vec<_> = (0..4)
        .map(|r| {
            let mut entries = history(20, 21);
            entries.extend((1..=5).map(|s| in_pair(r, s, if r == 3 && s > 3 { "scheduled" } else { "completed" }, s)));
            if r == 1 {
                entries.push(in_pair(r, 6, "scheduled", 30));
            }
            dump_with_pair(r, entries)
        })
        .collect();
    let (found, verdicts) = judged(folder(&files).path());
    assert_eq!(found, BTreeSet::from([3]), "{verdicts:#?}");
    assert_eq!((verdicts.len(), verdicts[0].rule, verdicts[0].seq), (1, "MYC016", Some(4)));
}

/// As the first versions wrote: one number for all calls, a group's number instead of its name, ranks as a list.
#[test]
fn dumps_of_early_versions() {
    let files: Vec<_> = (0..4)
        .map(|r| {
            let (name, mut value) = dump(r, history(20, if r == 2 { 20 } else { 21 }));
            value["version"] = json!("2.1");
            value["pg_config"]["0"]["ranks"] = json!([0, 1, 2, 3]);
            for e in value["entries"].as_array_mut().unwrap() {
                let e = e.as_object_mut().unwrap();
                let seq = e.remove("collective_seq_id").unwrap();
                e.insert("seq_id".to_owned(), seq);
                for key in ["process_group", "p2p_seq_id", "op_id", "is_p2p", "timeout_ms"] {
                    e.remove(key);
                }
            }
            (name, value)
        })
        .collect();
    let (found, verdicts) = judged(folder(&files).path());
    assert_eq!(found, BTreeSet::from([2]));
    assert_eq!((verdicts.len(), verdicts[0].rule, verdicts[0].seq), (1, "MYC001", Some(21)));
}

/// What RAS says of a rank that hangs before its call, and of a job that hangs after it.
#[test]
fn a_ras_report_shows_who_launched_less() {
    let report = |late: u64| {
        let ranks: Vec<Value> = (0..4)
            .map(|r| {
                json!({"rank": r, "host": format!("10.0.0.{r}"), "pid": 6000 + r, "cuda_dev": 0, "nvml_dev": 0,
                    "status": {"init_state": 0, "async_error": 0, "abort_flag": false},
                    "collective_counts": {"AllReduce": if r == 1 { late } else { 101 }}})
            })
            .collect();
        json!({"nccl_version": "2.28.9", "timestamp": "2026-09-23 11:55:37", "communicators": [{"hash": "0xf31e5874c3f25459",
            "secondary_hash": "0x1:0x2", "size": 4, "ranks": ranks, "missing_ranks": []}]})
    };
    let (_, _, verdicts) = read(&[folder(&[("ras.json".to_owned(), report(100))]).path().to_owned()]);
    assert_eq!((verdicts.len(), verdicts[0].rule), (1, "MYC001"));
    assert_eq!(verdicts[0].culprits.iter().map(|c| (c.rank, c.pid)).collect::<Vec<_>>(), [(1, 6001)]);
    let (import, state, verdicts) = read(&[folder(&[("ras.json".to_owned(), report(101))]).path().to_owned()]);
    assert!(verdicts.is_empty());
    let a = answer(&import, &state, &judge(&import).1);
    assert_eq!(a.code, UNKNOWN, "equal counts are no health: {}", a.reason);
}

fn watchdog(rank: u32, at: Option<u64>, enqueued: u64, completed: u64) -> String {
    let pre = format!("[rank{rank}]:[E1030 07:11:02.5 ProcessGroupNCCL.cpp:616]");
    let pg = format!("[PG ID 0 PG GUID 0(default_pg) Rank {rank}]");
    let caught = at.map_or_else(String::new, |at| {
        format!(
            "{pre} [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={at}, \
             OpType=_ALLGATHER_BASE, NumelIn=176, NumelOut=704, Timeout(ms)=600000) ran for 600013 milliseconds before \
             timing out.\n{pre} {pg} failure detected by watchdog at work sequence id: {at} PG status: last enqueued work: \
             {enqueued}, last completed work: {completed}\n"
        )
    });
    format!(
        "step 812 loss 2.31\n{caught}{pre} {pg} Received a dump signal due to a collective timeout from rank 0 and we will \
         try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"
    )
}

fn logs(texts: &[String]) -> (import::Import, State, Vec<Verdict>) {
    let dir = tempfile::tempdir().unwrap();
    for (i, text) in texts.iter().enumerate() {
        fs::write(dir.path().join(format!("{i}.log")), text).unwrap();
    }
    read(&[dir.path().to_owned()])
}

/// Rank 1 ran one micro-batch fewer; all others complain, and it does not.
#[test]
fn watchdog_lines_of_all_ranks_show_who_did_not_come() {
    let text = |r| watchdog(r, (r != 1).then_some(21937), if r == 1 { 21936 } else { 21937 }, 21936);
    for texts in [(0..4).map(text).collect::<Vec<_>>(), vec![(0..4).map(text).collect::<String>()]] {
        let (import, _, verdicts) = logs(&texts);
        assert_eq!(import.used, [(Kind::Log, texts.len())]);
        assert_eq!((verdicts.len(), verdicts[0].rule, verdicts[0].seq), (1, "MYC001", Some(21937)), "{verdicts:#?}");
        assert_eq!(culprits(&verdicts), BTreeSet::from([1]));
    }
}

#[test]
fn a_rank_without_a_line_is_told() {
    let texts: Vec<String> = [1, 2, 3].map(|r| watchdog(r, Some(493), 493, 492)).to_vec();
    let (import, state, _) = logs(&texts);
    assert_eq!(import.absent, BTreeSet::from([0]));
    let a = answer(&import, &state, &judge(&import).1);
    assert!(a.reason.contains("rank 0 left no file"), "{}", a.reason);
}

#[test]
fn nccl_calls_in_a_log_are_compared() {
    let line = |r: u32, what: &str| format!("node1:{}:{} [{r}] NCCL INFO {what}\n", 100 + r, 200 + r);
    let text = |r: u32| {
        let comm =
            format!("comm 0x7f{r}0 rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId 1b000 commId 0xabc - Init COMPLETE");
        let call = |n: u32, count: u32| {
            format!(
                "AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 op 0 root 0 comm 0x7f{r}0 \
                     [nranks=2] stream 0x71"
            )
        };
        let calls = (0..9).map(|n| line(r, &call(n, 64))).collect::<String>();
        let last = line(r, &call(9, if r == 1 { 65 } else { 64 }));
        line(r, &comm) + &calls + &last
    };
    let (_, _, verdicts) = logs(&[text(0), text(1)]);
    assert_eq!((verdicts.len(), verdicts[0].rule, verdicts[0].seq), (1, "MYC004", Some(9)), "{verdicts:#?}");
}

/// xorshift64, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn mutate(r: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=r.below(3) {
        let at = r.below(bytes.len());
        match r.next() % 12 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, r.next() as u8),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.splice(at..at, [0xff; 8]).for_each(drop),
            4 => {
                // A piece once more somewhere else: numbers and names where none belong.
                let end = (at + r.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = r.below(bytes.len());
                bytes.splice(to..to, piece).for_each(drop);
            }
            5..8 if at < bytes.len() => bytes[at] = b"0123456789-[]{}\"():.xq"[r.below(22)],
            _ if at < bytes.len() => bytes[at] = r.next() as u8,
            _ => {}
        }
    }
}

/// Whatever stands in a file, it is read or refused, and what was read is judged.
#[test]
fn a_thousand_broken_files() {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for case in ["gpu_error_1st", "lock_gil_1st"] {
        seeds.extend([9, 12, 14].map(|rank| fs::read(real(case).join(format!("_dump_{rank}"))).unwrap()));
    }
    seeds.push(dumps("gpu_error_1st")[12].1.to_string().into_bytes());
    seeds.push((0..4).map(|r| watchdog(r, Some(21937), 21937, 21936)).collect::<String>().into_bytes());
    seeds.push(import::samples::RAS_TEXT.as_bytes().to_vec());
    seeds.push(import::samples::RAS_JSON.as_bytes().to_vec());
    seeds.push(import::samples::INSPECTOR.as_bytes().to_vec());
    seeds.push(import::samples::NCCL_LOG.as_bytes().to_vec());
    let mut r = Random(0x6d79_6372_6f66_7421);
    let dir = tempfile::tempdir().unwrap();
    let other = real("gpu_error_1st").join("_dump_13");
    let (mut refused, mut used) = (0, 0);
    for i in 0..1000 {
        let mut bytes = seeds[i % seeds.len()].clone();
        mutate(&mut r, &mut bytes);
        let path = dir.path().join(format!("_dump_{}", i % 16 + 20));
        fs::write(&path, &bytes).unwrap();
        let import = import::read(&[path.clone(), other.clone()]);
        let (state, engine) = judge(&import);
        let a = answer(&import, &state, &engine);
        assert!(!a.reason.is_empty());
        match import.problems.as_slice() {
            [] => used += 1,
            [problem] => {
                assert!(problem.path == path && !problem.what.is_empty());
                refused += 1;
            }
            more => panic!("{more:?}"),
        }
        fs::remove_file(&path).unwrap();
    }
    assert!(refused > 200 && used > 200, "{refused} refused, {used} used");
}
