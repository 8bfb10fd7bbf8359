//! `NCCL_DEBUG=INFO`: who made which communicator, with `NCCL_DEBUG_SUBSYS=COLL` every call, and errors of the network.
//!
//! Source: the INFO lines of `src/init.cc`, `src/enqueue.cc` and `src/transport/net_ib*.cc`, 2.18 to 2.30. `opCount` is
//! not taken as an operation's number: it counts launches, of sends too, and the calls of one group share it. Calls are
//! counted from the communicator's creation on instead; one whose creation is not in the log has no rank, either.

use std::collections::{BTreeMap, BTreeSet};

use mycroft_common::nccl::{Func, counts_as_collective};

use crate::{
    event::{Body, CommRef, Ident, Nanos, Op, Origin, ProcId, Signature},
    import::roster::Roster,
};

/// Calls kept at most, of all files: the model looks at the newest ones only.
const CALLS: usize = 4_000_000;
/// `ncclRemoteError`
const REMOTE_ERROR: i32 = 6;

/// A process, as its lines begin: `host:pid:tid [device] NCCL INFO …`.
type Process = (String, u32);

#[derive(Debug, Default)]
pub(super) struct Calls {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    process: Process,
    tid: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    Begin(u64, Ident),
    Made(u64, Ident),
    Call {
        comm: u64,
        signature: Signature,
        stream: u64,
    },
    /// A network operation of this process failed.
    Failed,
}

impl Calls {
    /// Whether the line tells something.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let Some(line) = parse(line).filter(|_| self.lines.len() < CALLS) else { return false };
        self.lines.push(line);
        true
    }

    /// Tells all that happened, as of one moment: a log's lines have an order and no common clock.
    pub(super) fn tell(self, ts: Nanos, roster: &mut Roster) {
        let mut made: BTreeMap<(ProcId, u64), (Ident, u64, u64)> = BTreeMap::new();
        let mut failed: BTreeSet<ProcId> = BTreeSet::new();
        for line in self.lines {
            let (host, pid) = &line.process;
            let Some(proc) = roster.process(ts, host, *pid, Origin::Log, None) else { continue };
            let comm = |ptr, ident| CommRef { proc, tid: line.tid, ptr, ident: Some(ident) };
            match line.what {
                What::Begin(ptr, ident) => roster.tell(ts, Body::InitBegin(comm(ptr, ident))),
                What::Made(ptr, ident) => {
                    made.insert((proc, ptr), (ident, 0, 0));
                    roster.tell(ts, Body::InitEnd { comm: comm(ptr, ident), result: 0 });
                }
                What::Call { comm: ptr, signature, stream } => {
                    let Some((ident, collectives, others)) = made.get_mut(&(proc, ptr)) else { continue };
                    let collective = counts_as_collective(signature.func.code());
                    let next = if collective { collectives } else { others };
                    let op = op(comm(ptr, *ident), *next, collective, signature, stream);
                    *next += 1;
                    roster.tell(ts, Body::Op(op));
                }
                What::Failed => drop(failed.insert(proc)),
            }
        }
        for (proc, ptr) in made.into_keys().filter(|(proc, _)| failed.contains(proc)) {
            roster.tell(ts, Body::CommError { proc, ptr, code: REMOTE_ERROR });
        }
    }
}

/// A line gives the peer of a send or receive as its root.
fn op(comm: CommRef, seq: u64, collective: bool, signature: Signature, stream: u64) -> Op {
    let peer = matches!(signature.func, Func::Send | Func::Recv).then_some(signature.root);
    let root = if signature.func.has_root() { signature.root } else { 0 };
    let redop = if signature.func.reduces() { signature.redop } else { 0 };
    let signature = Signature { root, redop, ..signature };
    Op {
        comm,
        seq,
        absolute: true,
        collective,
        empty: signature.count == 0 && collective,
        signature,
        peer,
        stream,
        depth: 0,
    }
}

fn parse(line: &str) -> Option<Line> {
    let (before, after) = line.split_once(" NCCL ")?;
    let (level, text) = after.split_once(' ')?;
    let (process, tid) = process(before)?;
    let what = match level {
        "INFO" => info(text)?,
        "WARN" if text.contains("Got completion from peer") || text.contains("Got async event") => What::Failed,
        _ => return None,
    };
    Some(Line { process, tid, what })
}

/// The last word before the device in brackets: `host:pid:tid`. Schedulers and NCCL itself may put more before it.
fn process(before: &str) -> Option<(Process, u32)> {
    let place = before.rsplit(' ').find(|w| w.matches(':').count() >= 2 && !w.starts_with('['))?;
    let mut parts = place.rsplitn(3, ':');
    let (tid, pid, host) = (parts.next()?, parts.next()?, parts.next()?);
    Some(((host.to_owned(), pid.parse().ok()?), tid.parse().ok()?))
}

fn info(text: &str) -> Option<What> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if text.contains("Init START") {
        let (ptr, ident) = identity(&words)?;
        return Some(What::Begin(ptr, ident));
    }
    if text.contains("Init COMPLETE") {
        let (ptr, ident) = identity(&words)?;
        return Some(What::Made(ptr, ident));
    }
    let func = function(words.first()?.strip_suffix(':')?)?;
    let number = |key| after(&words, key)?.parse::<i64>().ok();
    let signature = Signature {
        func,
        count: after(&words, "count")?.parse().ok()?,
        datatype: number("datatype").and_then(|n| n.try_into().ok()).unwrap_or(-1),
        redop: number("op").and_then(|n| n.try_into().ok()).unwrap_or(-1),
        root: number("root").and_then(|n| n.try_into().ok()).unwrap_or(0),
    };
    let stream = after(&words, "stream").and_then(hex).unwrap_or(0);
    after(&words, "opCount")?;
    Some(What::Call { comm: hex(after(&words, "comm")?)?, signature, stream })
}

fn function(name: &str) -> Option<Func> {
    (0..16).map(Func::from_code).find(|f| f.name() == name && !matches!(f, Func::Unknown(_)))
}

/// `comm 0x… rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x…`
fn identity(words: &[&str]) -> Option<(u64, Ident)> {
    let number = |key| after(words, key)?.parse::<u32>().ok();
    let device = |key| number(key).and_then(|n| i32::try_from(n).ok()).unwrap_or(-1);
    let ident = Ident {
        hash: hex(after(words, "commId")?)?,
        rank: number("rank")?,
        nranks: number("nranks")?,
        cuda_dev: device("cudaDev"),
        nvml_dev: device("nvmlDev"),
        bus_id: after(words, "busId").and_then(hex).unwrap_or(0) as i64,
    };
    Some((hex(after(words, "comm")?)?, ident))
}

fn after<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().position(|w| *w == key).and_then(|at| words.get(at + 1)).copied()
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MADE: &str = "comm 0x7f10 rank 1 nranks 4 cudaDev 1 nvmlDev 3 busId 5d000 commId 0xabc - Init COMPLETE";
    const CALL: &str = "AllReduce: opCount 139d sendbuff 0x1 recvbuff 0x2 count 7382228 datatype 7 op 0 root 0 comm \
                        0x7f10 [nranks=4] stream 0x71";

    fn events(lines: &[&str]) -> Vec<Body> {
        let mut calls = Calls::default();
        for line in lines {
            assert!(calls.take(line), "{line}");
        }
        let mut roster = Roster::default();
        calls.tell(1, &mut roster);
        roster.events.into_iter().map(|e| e.body).collect()
    }

    #[test]
    fn calls_are_counted_from_the_communicators_creation() {
        let place = "(RayTrainWorker pid=615, ip=10.0.0.6) worker-a:615:18953 [2] NCCL INFO";
        let bodies = events(&[&format!("{place} {MADE}"), &format!("{place} {CALL}"), &format!("{place} {CALL}")]);
        let Body::InitEnd { comm, result: 0 } = bodies[2] else { panic!("{bodies:?}") };
        assert_eq!((comm.proc.pid, comm.tid), (615, 18953));
        let ident = comm.ident.unwrap();
        assert_eq!((ident.hash, ident.rank, ident.nranks, ident.bus_id), (0xabc, 1, 4, 0x5d000));
        let Body::Op(op) = bodies[4] else { panic!("{bodies:?}") };
        assert_eq!((op.seq, op.signature.count, op.stream), (1, 7382228, 0x71));
        assert!(matches!(&bodies[0], Body::Host { name, .. } if name == "worker-a"));
    }

    #[test]
    fn calls_of_a_communicator_of_unknown_rank_are_let_go() {
        let bodies = events(&[&format!("[2026-09-23 11:55:37] h:1:2 [0] NCCL INFO {CALL}")]);
        assert_eq!(bodies.len(), 2, "host and process only: {bodies:?}");
    }

    #[test]
    fn sends_have_peers_and_failed_processes_errors() {
        let send = "h:1:2 [0] NCCL INFO Send: opCount 12 sendbuff 0x1 recvbuff (nil) count 24 datatype 7 op 0 root 3 comm \
                    0x7f10 [nranks=4] stream 0x5";
        let warn = "h:1:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4> with status=12 opcode=0 len=0";
        let bodies = events(&[&format!("h:1:2 [0] NCCL INFO {MADE}"), send, warn]);
        let Body::Op(op) = bodies[3] else { panic!("{bodies:?}") };
        assert_eq!((op.collective, op.peer, op.signature.root), (false, Some(3), 0));
        assert!(matches!(bodies[4], Body::CommError { ptr: 0x7f10, code: 6, .. }));
    }

    #[test]
    fn other_lines_are_not_taken() {
        for line in [
            "",
            "h:1:2 [0] NCCL INFO Channel 00/02 : 0 1 2 3",
            "NCCL",
            "a NCCL INFO AllReduce: opCount",
            "h:x:2 [0] NCCL INFO AllReduce: opCount 1 count 3 comm 0x1",
        ] {
            assert!(!Calls::default().take(line), "{line}");
        }
    }
}
