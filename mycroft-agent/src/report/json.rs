//! Wire types: one typed record a line, each with `schema_version`.
//!
//! Described in docs/json.md; `tests/json.rs` holds the two together.

use serde::{Deserialize, Serialize};

use super::flows::{STILL, stuck_text};
use crate::{
    graph::{
        flow::{self, Stuck},
        frontiers,
    },
    model::{
        Comm, Member, State,
        event::{FlowOp, Way},
        flow::{Standing, Tracked},
        ids::{Nanos, bus_id_text},
    },
    rules::{Change, Evidence, Subject, Verdict, words},
};

/// Raised with every incompatible change of the records.
pub const SCHEMA_VERSION: u32 = 1;

/// A record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    Verdict(Box<VerdictRecord>),
    Communicator(CommRecord),
    Process(ProcessRecord),
    Flows(Box<FlowsRecord>),
    Check(CheckRecord),
    Summary(SummaryRecord),
}

/// A record with its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub schema_version: u32,
    #[serde(flatten)]
    pub record: Record,
}

impl Line {
    #[must_use]
    pub fn text(record: Record) -> String {
        let line = Self { schema_version: SCHEMA_VERSION, record };
        // Only maps with keys that are not strings can fail, and there are none.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictRecord {
    /// `raised`, `updated`, `cleared` or, in a list of what is in force, `active`.
    pub event: String,
    pub rule: String,
    pub name: String,
    pub severity: String,
    pub confidence: String,
    pub confidence_reason: String,
    pub headline: String,
    /// `0x…` of `commHash`.
    pub communicator: String,
    pub seq: Option<u64>,
    pub culprits: Vec<SubjectRecord>,
    pub victims: Vec<SubjectRecord>,
    /// Seconds for which it has held.
    pub age_seconds: f64,
    pub evidence: Vec<EvidenceRecord>,
    pub refuted_by: String,
    pub next_steps: Vec<String>,
    /// From a symptom to the first cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectRecord {
    pub host: String,
    pub pid: u32,
    /// In the communicator.
    pub rank: u32,
    /// In the whole job, where the launcher tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_rank: Option<u32>,
    pub cuda_dev: i32,
    pub pci_bus_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceRecord {
    /// Seconds before the record was written.
    pub age_seconds: f64,
    pub source: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommRecord {
    pub communicator: String,
    pub nranks: u32,
    pub ranks: Vec<RankRecord>,
    /// Collectives that all known ranks have launched since it was first seen.
    pub completed: u64,
    /// Longest time for which a rank has kept the others waiting now.
    pub longest_wait_seconds: f64,
    /// Seconds since any rank launched anything.
    pub idle_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    pub rank: u32,
    pub pid: u32,
    pub cuda_dev: i32,
    pub pci_bus_id: String,
    /// Newest collective launched, such as `AllReduce #57`.
    pub last: Option<String>,
    pub seq: Option<u64>,
    pub ended: bool,
}

/// The transfers of a communicator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowsRecord {
    pub communicator: String,
    pub nranks: u32,
    pub network: Option<String>,
    pub ranks: Vec<RankFlowsRecord>,
    /// Who holds it up and who waits for whom; empty while anything moves.
    pub findings: Vec<FlowFindingRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFlowsRecord {
    #[serde(flatten)]
    pub rank: RankRecord,
    /// Such as `waits for data`.
    pub standing: String,
    /// Seconds since any of its transfers moved; absent without flow data.
    pub still_seconds: Option<f64>,
    pub flows: Vec<FlowRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRecord {
    pub channel: u32,
    pub peer: Option<u32>,
    /// `send` or `recv`.
    pub way: String,
    pub p2p: bool,
    pub transport: String,
    pub net_dev: Option<i32>,
    /// Steps of all operations so far.
    pub steps: Option<u64>,
    pub still_seconds: f64,
    pub phase: Option<String>,
    pub op: Option<FlowOpRecord>,
    pub behind: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowOpRecord {
    pub number: u64,
    pub func: Option<String>,
    pub protocol: String,
    pub begun: bool,
    pub steps: u64,
    pub slice: u64,
    pub slice_bytes: u64,
    pub base: u64,
    pub posted: u64,
    pub ready: u64,
    pub received: u64,
    pub transmitted: u64,
    pub consumed: u64,
    pub done: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowFindingRecord {
    pub rank: u32,
    pub cause: bool,
    pub text: String,
    pub channels: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    pub pid: u32,
    pub name: String,
    pub command: String,
    pub nccl: String,
    pub alive: bool,
    /// What the last look saw, if one was taken.
    pub doing: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckRecord {
    pub what: String,
    pub grade: String,
    pub found: String,
    pub remedy: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryRecord {
    /// `healthy`, `finding` or `unknown`.
    pub outcome: String,
    pub reason: String,
    pub verdicts: usize,
    pub events_lost: u64,
}

fn seconds(span: Nanos) -> f64 {
    // Milliseconds do; more digits only make two outputs differ.
    (span / 1_000_000) as f64 / 1000.0
}

impl From<&Subject> for SubjectRecord {
    fn from(s: &Subject) -> Self {
        Self {
            host: s.host.clone(),
            pid: s.pid,
            rank: s.rank,
            job_rank: s.job_rank,
            cuda_dev: s.cuda_dev,
            pci_bus_id: s.bus_id.clone(),
        }
    }
}

fn evidence(e: &Evidence, now: Nanos) -> EvidenceRecord {
    EvidenceRecord {
        age_seconds: seconds(now.saturating_sub(e.at)),
        source: e.source.label().to_owned(),
        text: e.text.clone(),
    }
}

/// A verdict as a record.
#[must_use]
pub fn verdict(event: &str, v: &Verdict, now: Nanos) -> VerdictRecord {
    VerdictRecord {
        event: event.to_owned(),
        rule: v.rule.to_owned(),
        name: v.name.to_owned(),
        severity: v.severity.label().to_owned(),
        confidence: v.confidence.level.label().to_owned(),
        confidence_reason: v.confidence.reason.clone(),
        headline: v.headline.clone(),
        communicator: v.comm.to_string(),
        seq: v.seq,
        culprits: v.culprits.iter().map(Into::into).collect(),
        victims: v.victims.iter().map(Into::into).collect(),
        age_seconds: seconds(now.saturating_sub(v.since)),
        evidence: v.evidence.iter().map(|e| evidence(e, now)).collect(),
        refuted_by: v.refuted_by.clone(),
        next_steps: v.next_steps.clone(),
        chain: v.chain.clone(),
    }
}

/// A change as a record.
#[must_use]
pub fn change(c: &Change, now: Nanos) -> VerdictRecord {
    match c {
        Change::Raised(v) => verdict("raised", v, now),
        Change::Updated(v) => verdict("updated", v, now),
        Change::Cleared(v) => verdict("cleared", v, now),
    }
}

/// Every communicator.
#[must_use]
pub fn communicators(state: &State) -> Vec<CommRecord> {
    let frontiers = frontiers(state);
    state
        .comms
        .values()
        .map(|c| CommRecord {
            communicator: c.id.to_string(),
            nranks: c.id.nranks,
            ranks: ranks(c),
            completed: c.rhythm.completed,
            longest_wait_seconds: seconds(frontiers.get(&c.id).map_or(0, |f| f.age(state.now))),
            idle_seconds: seconds(state.now.saturating_sub(c.last_launch)),
        })
        .collect()
}

fn ranks(c: &Comm) -> Vec<RankRecord> {
    c.members.values().map(rank).collect()
}

fn rank(m: &Member) -> RankRecord {
    RankRecord {
        rank: m.rank,
        pid: m.proc.pid,
        cuda_dev: m.cuda_dev,
        pci_bus_id: bus_id_text(m.bus_id),
        last: words::newest(m),
        seq: m.launched.map(|l| l.seq),
        ended: m.end.is_some(),
    }
}

/// The transfers of a communicator.
#[must_use]
pub fn flows(state: &State, comm: &Comm) -> FlowsRecord {
    let findings = flow::stuck(comm, state.now, STILL);
    let finding = |rank: u32, what: Stuck, channels: &[u32]| FlowFindingRecord {
        rank,
        cause: what.is_cause(),
        text: stuck_text(what),
        channels: channels.to_vec(),
    };
    FlowsRecord {
        communicator: comm.id.to_string(),
        nranks: comm.id.nranks,
        network: comm.active().find_map(|m| m.flows.as_ref()?.net.clone()),
        ranks: comm.active().map(|m| rank_flows(state, m)).collect(),
        findings: findings
            .iter()
            .flat_map(|(rank, found)| found.iter().map(|(what, channels)| finding(*rank, *what, channels)))
            .collect(),
    }
}

fn rank_flows(state: &State, member: &Member) -> RankFlowsRecord {
    let flows = member.flows.as_ref();
    let standing = flows.map_or(Standing::NoData, |f| f.standing(state.now, STILL));
    let record = |t: &Tracked| FlowRecord {
        channel: t.flow.channel,
        peer: t.flow.peer,
        way: if t.flow.way == Way::Send { "send" } else { "recv" }.to_owned(),
        p2p: t.flow.p2p,
        transport: t.flow.transport.name().to_owned(),
        net_dev: t.flow.net_dev,
        steps: t.flow.steps,
        still_seconds: seconds(state.now.saturating_sub(t.moved)),
        phase: t.phase().map(|p| p.label().to_owned()),
        op: t.flow.op.as_ref().map(flow_op),
        behind: t.flow.behind,
    };
    RankFlowsRecord {
        rank: rank(member),
        standing: standing.label().to_owned(),
        still_seconds: flows
            .filter(|_| standing != Standing::NoData)
            .map(|f| seconds(state.now.saturating_sub(f.moved))),
        flows: flows.map(|f| f.flows.iter().map(record).collect()).unwrap_or_default(),
    }
}

fn flow_op(op: &FlowOp) -> FlowOpRecord {
    FlowOpRecord {
        number: op.number,
        func: op.func.map(|f| f.name().to_owned()),
        protocol: op.protocol.name().to_owned(),
        begun: op.begun,
        steps: op.steps,
        slice: op.slice,
        slice_bytes: op.slice_bytes,
        base: op.base,
        posted: op.posted,
        ready: op.ready,
        received: op.received,
        transmitted: op.transmitted,
        consumed: op.consumed,
        done: op.done,
    }
}

/// Every traced process.
#[must_use]
pub fn processes(state: &State) -> Vec<ProcessRecord> {
    state
        .processes
        .values()
        .map(|p| ProcessRecord {
            pid: p.id.pid,
            name: p.name.clone(),
            command: p.command.clone(),
            nccl: p.nccl.clone(),
            alive: p.alive(),
            doing: words::activity(Some(p)).map(|(_, text)| text),
        })
        .collect()
}
