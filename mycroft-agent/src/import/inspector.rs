//! Records of NCCL's Inspector plugin (`ext-profiler/inspector`, 2.28.3 and later): one JSON object a line, one file a
//! process.
//!
//! Only what has ended is recorded, and what is too small to count is not. So a file tells how far a rank is known to
//! have come; what it hangs in is not there.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use mycroft_common::nccl::Func;
use serde_json::Value;

use super::{
    Part,
    roster::Roster,
    value::{number, text},
};
use crate::event::{Body, CommFound, CommRef, Done, Ident, Nanos, Origin};

/// Ranks of communicators kept at most, of all files.
const RANKS: usize = 1 << 20;

/// A communicator's id, and a rank of it.
type Place = (String, u32);

/// How far a rank is known to have come.
#[derive(Debug)]
struct Ended {
    host: String,
    pid: u32,
    nranks: u32,
    name: Option<String>,
    /// Newest by function: NCCL numbers each function's calls for itself.
    newest: BTreeMap<Func, u64>,
    at: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Records {
    ranks: BTreeMap<Place, Ended>,
}

/// Whether the text's first line is a record.
pub(super) fn is_record(text: &str) -> bool {
    let first = text.lines().find(|l| !l.trim().is_empty()).and_then(|l| serde_json::from_str::<Value>(l).ok());
    first.is_some_and(|v| v.get("header").is_some() && v.get("metadata").is_some())
}

impl Records {
    /// Takes the records of one file. The last line may be cut off; another that can't be read is an error.
    pub(super) fn take(&mut self, text: &str) -> Result<(), String> {
        let lines: Vec<(usize, &str)> = (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty()).collect();
        let last = lines.len().saturating_sub(1);
        for (i, (n, line)) in lines.iter().enumerate() {
            match serde_json::from_str::<Value>(line) {
                Ok(record) => drop(self.record(&record)),
                Err(_) if i == last && i > 0 => {}
                Err(e) => return Err(format!("line {n}, column {}: {e}", e.column())),
            }
        }
        Ok(())
    }

    fn record(&mut self, v: &Value) -> Option<()> {
        let (header, meta) = (v.get("header")?, v.get("metadata")?);
        let coll = v.get("coll_perf")?;
        let small = |v: Option<&Value>| number(v).and_then(|n| u32::try_from(n).ok());
        let place = (text(header.get("id"))?.to_owned(), small(header.get("rank"))?);
        let name = text(coll.get("coll"))?;
        let func = (0..16).map(Func::from_code).find(|f| f.name() == name)?;
        let seq = number(coll.get("coll_sn"))?;
        if self.ranks.len() >= RANKS && !self.ranks.contains_key(&place) {
            return None;
        }
        let blank = Ended {
            host: text(meta.get("hostname")).unwrap_or("?").to_owned(),
            pid: small(meta.get("pid"))?,
            nranks: small(header.get("n_ranks"))?,
            name: text(header.get("comm_name")).filter(|n| !n.is_empty()).map(str::to_owned),
            newest: BTreeMap::new(),
            at: 0,
        };
        let ended = self.ranks.entry(place).or_insert(blank);
        ended.at = ended.at.max(number(meta.get("dump_timestamp_us")).unwrap_or(0).saturating_mul(1000));
        let newest = ended.newest.entry(func).or_default();
        *newest = (*newest).max(seq);
        Some(())
    }

    pub(super) fn part(self, roster: &mut Roster) -> Part {
        let newest = self.ranks.values().map(|e| e.at).max();
        let oldest = self.ranks.values().map(|e| e.at).min().unwrap_or(0);
        for ((id, rank), ended) in self.ranks {
            let Some(proc) = roster.process(oldest, &ended.host, ended.pid, Origin::Inspector, None) else { continue };
            let hash = u64::from_str_radix(id.trim_start_matches("0x"), 16).unwrap_or_else(|_| {
                let mut hasher = DefaultHasher::new();
                id.hash(&mut hasher);
                hasher.finish()
            });
            let ident = Ident { hash, rank, nranks: ended.nranks, cuda_dev: -1, nvml_dev: -1, bus_id: 0 };
            let comm = CommRef { proc, tid: proc.pid, ptr: hash ^ u64::from(rank), ident: Some(ident) };
            // Small operations leave no record, but the same ones on all ranks, so the sums can be compared.
            let seq = ended.newest.values().fold(0u64, |sum, n| sum.saturating_add(*n));
            let by_function = ended.newest.into_iter().collect();
            // That it has launched no more is not known: nothing is said of it.
            let found = CommFound { comm, collectives: None, by_function, name: ended.name, init_state: None };
            roster.tell(oldest, Body::CommFound(Box::new(found)));
            roster.tell(ended.at, Body::Done(Done { proc, ptr: comm.ptr, collective: true, seq }));
        }
        Part { newest, ..Part::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u32, coll: &str, sn: u64) -> String {
        format!(
            r#"{{"header":{{"id":"0x7f8c496ae9f661","rank":{rank},"n_ranks":2,"nnodes":1}},"metadata":{{"inspector_output_format_version":"v4.0","dump_timestamp_us":1748030377748202,"hostname":"n{rank}","pid":{}}},"coll_perf":{{"coll":"{coll}","coll_sn":{sn},"coll_msg_size_bytes":65536}}}}"#,
            100 + rank
        )
    }

    #[test]
    fn the_newest_of_each_function_counts() {
        let text =
            [line(1, "AllReduce", 9), line(1, "AllReduce", 7), line(1, "AllGather", 5), "{\"cut".to_owned()].join("\n");
        assert!(is_record(&text));
        let mut r = Records::default();
        r.take(&text).unwrap();
        let mut roster = Roster::default();
        assert_eq!(r.part(&mut roster).newest, Some(1_748_030_377_748_202_000));
        let done = roster.events.iter().find_map(|e| if let Body::Done(d) = e.body { Some(d) } else { None }).unwrap();
        assert_eq!((done.seq, done.proc.pid), (14, 101));
    }

    #[test]
    fn a_line_that_is_broken_is_told() {
        let text = [line(0, "AllReduce", 1), "nonsense".to_owned(), line(0, "AllReduce", 2)].join("\n");
        assert!(Records::default().take(&text).unwrap_err().starts_with("line 2, column 2"));
        assert!(!is_record("{\"a\": 1}\n"));
    }
}
