//! `mycroft diagnose`: one answer about now.

#![expect(clippy::print_stdout, reason = "the command's output")]

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{
    FINDING, HEALTHY, UNKNOWN,
    args::Diagnose,
    outcome::{Health, health},
    trace::Stop,
};
use crate::{
    app::{Notice, Tracer},
    model::Nanos,
    report::{
        dot,
        json::{self, Line, Record, SummaryRecord, VerdictRecord},
        text,
    },
    rules::{Severity, Verdict, View},
    serve::http::ApiState,
};

/// After the first finding, the time for others to show up.
const SETTLE: Duration = Duration::from_millis(600);
/// An agent on this host answers at once or not at all.
const AGENT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Answer {
    pub(super) code: u8,
    pub(super) outcome: &'static str,
    pub(super) reason: String,
    pub(super) verdicts: Vec<VerdictRecord>,
    /// The verdicts as text.
    pub(super) text: String,
    pub(super) events_lost: u64,
    /// Who waits for whom, as DOT; empty if nobody does.
    pub(super) dot: String,
}

pub(super) async fn run(args: Diagnose) -> Result<u8> {
    let answer = ask(&args).await?;
    Ok(print(&answer, args.json))
}

/// The agent's answer, or our own.
pub(super) async fn ask(args: &Diagnose) -> Result<Answer> {
    if !args.no_agent
        && args.trace.pid.is_empty()
        && let Some(answer) = ask_agent(args)
    {
        return Ok(answer);
    }
    watch(args).await
}

/// The agent's answer; `None` if there is none or it can't tell, so that we look for ourselves.
fn ask_agent(args: &Diagnose) -> Option<Answer> {
    let url = format!("http://{}/api/v1/state", args.agent);
    let client = ureq::Agent::config_builder().timeout_global(Some(AGENT_TIMEOUT)).build().new_agent();
    let body = match client.get(&url).call() {
        Ok(mut response) => response.body_mut().read_to_string().ok()?,
        Err(e) => {
            tracing::info!(%url, error = %e, "no agent answers");
            return None;
        }
    };
    let state: ApiState = match serde_json::from_str(&body) {
        Ok(state) => state,
        Err(e) => {
            tracing::warn!(%url, error = %e, "what answers there is no agent of this version");
            return None;
        }
    };
    agent_answer(&state, args.agent)
}

fn agent_answer(state: &ApiState, at: std::net::SocketAddr) -> Option<Answer> {
    let events_lost = state.events_lost;
    let source = format!("from the agent at {at}, which has watched for {:.0} s", state.uptime_seconds);
    if !state.verdicts.is_empty() {
        let text = state.verdicts.iter().map(record_text).collect();
        return Some(Answer {
            code: FINDING,
            outcome: "finding",
            reason: source,
            verdicts: state.verdicts.clone(),
            text,
            events_lost,
            dot: state.waits_dot.clone(),
        });
    }
    let moving = !state.communicators.is_empty()
        && state
            .communicators
            .iter()
            .filter(|c| c.ranks.iter().any(|r| !r.ended))
            .all(|c| c.idle_seconds < 3.0 && c.longest_wait_seconds < 1.0 && c.completed >= 3);
    moving.then(|| Answer {
        code: HEALTHY,
        outcome: "healthy",
        reason: format!("{} communicators move, no rank holds up another ({source})", state.communicators.len()),
        verdicts: Vec::new(),
        text: String::new(),
        events_lost,
        dot: String::new(),
    })
}

/// A verdict that came over the wire.
fn record_text(v: &VerdictRecord) -> String {
    let mut out = format!("{} {} [{}] {}\n", v.rule, v.name, v.severity, v.headline);
    out.push_str(&format!("  confidence: {}, {}\n  evidence:\n", v.confidence, v.confidence_reason));
    for e in &v.evidence {
        out.push_str(&format!("    - {} ({}, {:.1} s ago)\n", e.text, e.source, e.age_seconds));
    }
    if v.chain.len() > 1 {
        out.push_str(&text::chain(&v.chain));
    }
    out.push_str(&format!("  refuted by: {}\n  next:\n", v.refuted_by));
    for step in &v.next_steps {
        out.push_str(&format!("    $ {step}\n"));
    }
    out
}

async fn watch(args: &Diagnose) -> Result<Answer> {
    let mut stop = Stop::new()?;
    let mut tracer = Tracer::start(args.trace.options())?;
    let started = Instant::now();
    let mut limits = Vec::new();
    let mut finding_since: Option<Instant> = None;
    loop {
        let notices = tokio::select! {
            () = stop.asked() => break,
            notices = tracer.next() => notices?,
        };
        for notice in notices {
            if let Notice::Limited { path, why } = notice {
                limits.push(format!("{path}: {why}"));
            }
        }
        if has_finding(&tracer) {
            if finding_since.get_or_insert_with(Instant::now).elapsed() >= SETTLE {
                break;
            }
            continue;
        }
        finding_since = None;
        let nothing_there = tracer.searched() && tracer.state().processes.is_empty();
        let late = started.elapsed() >= args.within;
        if late || nothing_there || matches!(health(tracer.state(), watched(&tracer)), Health::Healthy(_)) {
            break;
        }
    }
    Ok(answer(&tracer, &limits))
}

fn watched(tracer: &Tracer) -> Nanos {
    tracer.state().now.saturating_sub(tracer.attached_at)
}

fn has_finding(tracer: &Tracer) -> bool {
    tracer.engine().active().iter().any(|v| v.severity > Severity::Info)
}

fn answer(tracer: &Tracer, limits: &[String]) -> Answer {
    let state = tracer.state();
    let verdicts = tracer.engine().active();
    let health = health(state, watched(tracer));
    let unsure = verdicts.iter().all(|v| v.rule == "MYC020");
    let (code, outcome, mut reason) = match (verdicts.is_empty(), unsure, health) {
        (false, false, _) => (FINDING, "finding", format!("{} findings", verdicts.len())),
        (false, true, _) => (UNKNOWN, "unknown", "insufficient evidence, see the verdict".to_owned()),
        (true, _, Health::Healthy(why)) if tracer.blind() == 0 => (HEALTHY, "healthy", why),
        (true, _, Health::Healthy(why)) => {
            (UNKNOWN, "unknown", format!("{} processes can't be traced; of the others: {why}", tracer.blind()))
        }
        (true, _, Health::Open(why)) => (UNKNOWN, "unknown", why),
    };
    for limit in limits {
        reason.push_str("\n  limited: ");
        reason.push_str(limit);
    }
    Answer {
        code,
        outcome,
        reason,
        verdicts: verdicts.iter().map(|v| json::verdict("active", v, state.now)).collect(),
        text: verdicts.iter().map(|v| text::verdict(v, state.now)).collect(),
        events_lost: state.loss.events,
        dot: waits_dot(&tracer.state_view(), &verdicts),
    }
}

/// The drawing of who waits for whom, if anything was found.
pub(super) fn waits_dot(view: &View<'_>, verdicts: &[&Verdict]) -> String {
    if verdicts.is_empty() { String::new() } else { dot::waits(view, verdicts) }
}

pub(super) fn print(answer: &Answer, json: bool) -> u8 {
    if json {
        for v in &answer.verdicts {
            println!("{}", Line::text(Record::Verdict(Box::new(v.clone()))));
        }
        println!(
            "{}",
            Line::text(Record::Summary(SummaryRecord {
                outcome: answer.outcome.to_owned(),
                reason: answer.reason.clone(),
                verdicts: answer.verdicts.len(),
                events_lost: answer.events_lost,
            }))
        );
    } else {
        anstream::print!("{}", answer.text);
        anstream::println!("{}: {}", answer.outcome, answer.reason);
    }
    answer.code
}
