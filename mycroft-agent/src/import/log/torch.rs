//! Lines of PyTorch's watchdog (`ProcessGroupNCCL.cpp`, 1.13 to 2.9): an operation given up, and how far a rank is.
//!
//! The rank that complains waits; who is missing shows when all ranks' lines are held together. A line tells the group
//! by name from 2.5 on; before, by a number that two groups may share, and where they do, nothing is made of it.

use std::collections::{BTreeMap, BTreeSet};

use mycroft_common::nccl::Func;

use crate::{
    event::{Body, CommFound, CommRef, Done, Ident, Nanos, Op, Origin, ProcId, Signature, ids::MILLISECOND},
    import::{flight::names, roster::Roster},
};

/// Lines kept at most; each rank writes a handful.
const LINES: usize = 1_000_000;

/// Group, and rank in it.
type Place = (String, u32);

#[derive(Debug, Default)]
pub(super) struct Watchdogs {
    lines: Vec<Line>,
    file: usize,
}

#[derive(Debug)]
struct Line {
    file: usize,
    /// From the launcher's prefix `[rank3]:`.
    job_rank: Option<u32>,
    /// Rank in the group.
    rank: u32,
    /// `None`: the line does not say.
    group: Option<String>,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// An operation given up, after so many milliseconds.
    Caught { seq: u64, func: Func, count: u64, ran: u64, size: Option<u32> },
    /// At this operation, with what was launched and what has ended.
    Status { at: Option<u64>, enqueued: u64, completed: u64 },
}

/// What all lines say of a rank in a group.
#[derive(Debug, Default)]
struct Rank {
    job_rank: Option<u32>,
    caught: BTreeMap<u64, (Func, u64, u64)>,
    status: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Group {
    ranks: BTreeMap<u32, Rank>,
    size: u32,
    /// Two ranks of the job claim one rank of the group: the name stands for several groups.
    shared: bool,
}

impl Watchdogs {
    /// Whether the line tells something.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let Some(line) = parse(line, self.file).filter(|_| self.lines.len() < LINES) else { return false };
        self.lines.push(line);
        true
    }

    pub(super) fn end_file(&mut self) {
        self.file += 1;
    }

    /// Tells what is known at `ts`; returns ranks of the job that wrote nothing.
    pub(super) fn tell(self, ts: Nanos, roster: &mut Roster) -> BTreeSet<u32> {
        let mut all: BTreeSet<u32> = BTreeSet::new();
        let mut world = 0;
        for (name, group) in groups(self.lines) {
            if group.shared {
                continue;
            }
            if is_default(&name) {
                all.extend(group.ranks.keys());
                world = world.max(group.size);
            }
            group.tell(&name, ts, roster);
        }
        (0..world).filter(|r| !all.contains(r)).collect()
    }
}

fn is_default(name: &str) -> bool {
    name == "0" || name.starts_with("0(")
}

/// A line of an operation given up does not name its group; the line after it, of the same rank and operation, does.
fn groups(lines: Vec<Line>) -> BTreeMap<String, Group> {
    let key = |l: &Line| (l.file, l.job_rank, l.job_rank.map_or(l.rank, |_| 0));
    let mut named = BTreeMap::new();
    for line in &lines {
        if let (Some(group), What::Status { at: Some(at), .. }) = (&line.group, line.what) {
            named.insert((key(line), at), (group.clone(), line.rank));
        }
    }
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for line in lines {
        let place: Place = match (&line.group, line.what) {
            (Some(group), _) => (group.clone(), line.rank),
            (None, What::Caught { seq, .. }) => {
                named.get(&(key(&line), seq)).cloned().unwrap_or_else(|| ("0".to_owned(), line.rank))
            }
            (None, What::Status { .. }) => ("0".to_owned(), line.rank),
        };
        groups.entry(canonical(place.0)).or_default().take(place.1, &line);
    }
    groups
}

/// The default group has several names.
fn canonical(name: String) -> String {
    if is_default(&name) { "0".to_owned() } else { name }
}

impl Group {
    fn take(&mut self, rank: u32, line: &Line) {
        self.size = self.size.max(rank.saturating_add(1));
        let known = self.ranks.entry(rank).or_default();
        self.shared |= known.job_rank.is_some() && line.job_rank.is_some() && known.job_rank != line.job_rank;
        known.job_rank = known.job_rank.or(line.job_rank);
        match line.what {
            What::Caught { seq, func, count, ran, size } => {
                self.size = self.size.max(size.unwrap_or(0));
                let before = known.caught.insert(seq, (func, count, ran));
                if let Some((.., longer)) = before.filter(|(.., before)| *before > ran) {
                    known.caught.insert(seq, (func, count, longer));
                }
            }
            What::Status { enqueued, completed, .. } => {
                let (e, c) = known.status.unwrap_or((0, 0));
                known.status = Some((e.max(enqueued), c.max(completed)));
            }
        }
    }

    fn tell(&self, name: &str, ts: Nanos, roster: &mut Roster) {
        let oldest = self.ranks.values().flat_map(|r| r.caught.values().map(|(.., ran)| *ran)).max().unwrap_or(0);
        let since = ts.saturating_sub(oldest.saturating_mul(MILLISECOND)).saturating_sub(MILLISECOND);
        for (rank, known) in &self.ranks {
            // Without the launcher's prefix a rank of the default group is one of the job.
            let job_rank = known.job_rank.or_else(|| is_default(name).then_some(*rank));
            // Neither host nor pid is in these lines: a host for each rank, and pid 0 for a process that is not known.
            let host = job_rank.map_or_else(|| format!("of rank {rank} in {name}"), |r| format!("of rank {r}"));
            let Some(proc) = roster.process(since, &host, 0, Origin::Log, job_rank) else { continue };
            known.tell(self.handle(name, *rank, proc), name, (since, ts), roster);
        }
    }

    fn handle(&self, name: &str, rank: u32, proc: ProcId) -> CommRef {
        // FNV-1a: a group has a name and no hash.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let ident = Ident { hash, rank, nranks: self.size, cuda_dev: 0, nvml_dev: 0, bus_id: 0 };
        CommRef { proc, tid: proc.pid, ptr: hash, ident: Some(ident) }
    }
}

impl Rank {
    /// `since`: before anything here was given up.
    fn tell(&self, comm: CommRef, name: &str, (since, ts): (Nanos, Nanos), roster: &mut Roster) {
        let done = self.status.map(|(_, completed)| completed);
        let found = |newest: Option<u64>| {
            let name = Some(if is_default(name) { "0 default_pg".to_owned() } else { name.to_owned() });
            let collectives = newest.map(|n| n.saturating_add(1));
            Body::CommFound(Box::new(CommFound { comm, collectives, by_function: Vec::new(), name, init_state: None }))
        };
        roster.tell(since, found(done));
        if let Some(seq) = done {
            roster.tell(since, Body::Done(Done { proc: comm.proc, ptr: comm.ptr, collective: true, seq }));
        }
        for (seq, (func, count, ran)) in &self.caught {
            let signature = Signature {
                func: *func,
                count: *count,
                datatype: -1,
                redop: Signature::UNTOLD,
                root: Signature::UNTOLD,
            };
            let op = Op {
                comm,
                seq: *seq,
                absolute: true,
                collective: true,
                empty: false,
                signature,
                peer: None,
                stream: 0,
                depth: 0,
            };
            roster.tell(ts.saturating_sub(ran.saturating_mul(MILLISECOND)), Body::Op(op));
        }
        let newest = self.caught.keys().last().copied();
        if let Some((enqueued, _)) = self.status.filter(|(e, _)| Some(*e) > newest.max(done)) {
            roster.tell(since, found(Some(enqueued)));
        }
    }
}

fn parse(line: &str, file: usize) -> Option<Line> {
    let what = caught(line).or_else(|| status(line))?;
    let job_rank = between(line, "[rank", "]").and_then(|n| n.parse().ok());
    let (group, rank) = place(line).or_else(|| Some((None, job_rank?)))?;
    Some(Line { file, job_rank, rank, group, what })
}

/// `[Rank 3]`, `[PG 1 Rank 3]`, `[PG ID 5 PG GUID 35(TENSOR_MODEL) Rank 1]`
fn place(line: &str) -> Option<(Option<String>, u32)> {
    let inner = line.split('[').skip(1).filter_map(|s| s.split(']').next());
    let (group, rank) = inner.filter_map(|s| s.rsplit_once("Rank ")).next()?;
    let rank = rank.trim().parse().ok()?;
    let group = group.trim();
    let name = group
        .split_once("PG GUID ")
        .map(|(_, n)| n)
        .or_else(|| group.strip_prefix("PG ID "))
        .or_else(|| group.strip_prefix("PG "));
    Some((name.map(|n| n.trim().to_owned()), rank))
}

fn caught(line: &str) -> Option<What> {
    let (_, rest) = line.split_once("Watchdog caught collective operation timeout: WorkNCCL(")?;
    let number = |key| leading(rest.split_once(key)?.1);
    let name = between(rest, "OpType=", ",")?.to_ascii_lowercase();
    let call = names::call(&name)?;
    let (input, output) = (number("NumelIn="), number("NumelOut="));
    let count = if call.counts_output { output } else { input }.filter(|_| call.comparable).unwrap_or(0);
    // A group's size shows where one side has a rank's share and the other all of it.
    let size = match (call.func, input, output) {
        (Func::AllGather, Some(one), Some(all)) | (Func::ReduceScatter, Some(all), Some(one)) => all
            .checked_div(one)
            .filter(|n| n * one == all)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n <= 1 << 17),
        _ => None,
    };
    // Sends and receives have numbers of their own.
    if matches!(call.func, Func::SendRecv) || name == "send" || name == "recv" {
        return None;
    }
    Some(What::Caught { seq: number("SeqNum=")?, func: call.func, count, ran: number("ran for ")?, size })
}

fn status(line: &str) -> Option<What> {
    let lower = line.to_ascii_lowercase();
    let number = |keys: &[&str]| keys.iter().find_map(|k| leading(lower.split_once(k)?.1));
    let enqueued = number(&["last enqueued nccl work: ", "last enqueued work: "])?;
    let completed = number(&["last completed nccl work: ", "last completed work: "])?;
    let at = number(&["detected by watchdog at work: ", "at work sequence id: ", "timeout at nccl work: "]);
    Some(What::Status { at, enqueued, completed })
}

fn leading(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    Some(text.split_once(from)?.1.split_once(to)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[String]) -> (Vec<Body>, BTreeSet<u32>) {
        let mut w = Watchdogs::default();
        for line in lines {
            assert!(w.take(line), "{line}");
        }
        let mut roster = Roster::default();
        let absent = w.tell(1_000_000_000_000_000, &mut roster);
        (roster.events.into_iter().map(|e| e.body).collect(), absent)
    }

    fn lines(rank: u32, group: &str, at: u64, enqueued: u64) -> [String; 2] {
        [
            format!(
                "[rank{rank}]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective \
                operation timeout: WorkNCCL(SeqNum={at}, OpType=_ALLGATHER_BASE, NumelIn=100, NumelOut=400, \
                Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
            ),
            format!(
                "[rank{rank}]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:1785] [{group} Rank {rank}] Exception (either an \
                error or timeout) detected by watchdog at work: {at}, last enqueued NCCL work: {enqueued}, last completed \
                NCCL work: {}.",
                at - 1
            ),
        ]
    }

    #[test]
    fn an_operation_finds_its_group_in_the_line_after_it() {
        for (group, name) in
            [("PG 1", "1"), ("PG ID 5 PG GUID 35(TP)", "35(TP)"), ("PG ID 0 PG GUID 0(default_pg)", "0 default_pg")]
        {
            let (bodies, absent) = told(&lines(2, group, 808, 811));
            let ops: Vec<&Op> =
                bodies.iter().filter_map(|b| if let Body::Op(op) = b { Some(op) } else { None }).collect();
            assert_eq!((ops.len(), ops[0].seq, ops[0].signature.count), (1, 808, 100));
            assert_eq!(ops[0].comm.ident.unwrap().nranks, 4, "from the gathered size");
            let names: Vec<_> =
                bodies.iter().filter_map(|b| if let Body::CommFound(f) = b { f.name.clone() } else { None }).collect();
            assert_eq!(names, [name, name]);
            assert!(bodies.iter().any(|b| matches!(b, Body::Done(d) if d.seq == 807)));
            assert_eq!(absent.len(), if group.contains("default") { 3 } else { 0 });
        }
    }

    #[test]
    fn older_and_newer_words() {
        let newer = "[rank1]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by watchdog \
            at work sequence id: 9 PG status: last enqueued work: 10, last completed work: 8";
        assert!(matches!(parse(newer, 0).unwrap().what, What::Status { at: Some(9), enqueued: 10, completed: 8 }));
        let signal = "[PG 0 Rank 3] Received a dump signal due to a collective timeout from rank 1 and we will try our best \
            to dump the debug info. Last enqueued NCCL work: 7, last completed NCCL work: 6.";
        let line = parse(signal, 0).unwrap();
        assert_eq!((line.rank, line.group.as_deref()), (3, Some("0")));
        let old = "[E ProcessGroupNCCL.cpp:458] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64088, \
            OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25625251 milliseconds before timing out.";
        assert!(matches!(
            parse(old, 0).unwrap().what,
            What::Caught { seq: 64088, func: Func::AllReduce, count: 0, .. }
        ));
    }

    #[test]
    fn one_number_for_two_groups_says_nothing() {
        let mut all = lines(0, "PG 3", 5, 5).to_vec();
        all.extend(lines(4, "PG 3", 9, 9).map(|l| l.replace("[PG 3 Rank 4]", "[PG 3 Rank 0]")));
        assert!(told(&all).0.is_empty());
    }

    #[test]
    fn other_lines_are_not_taken() {
        for line in
            ["", "Watchdog caught collective operation timeout: WorkNCCL(", "last enqueued work: x", "[rank1] Rank 3"]
        {
            assert!(!Watchdogs::default().take(line), "{line}");
        }
    }
}
