//! What the rules on transfers share: MYC005 to MYC008 differ in what they look for, not in how they tell it.

use super::{
    Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View,
    myc001_not_launched::{is_stopped, who},
    words,
};
use crate::{
    graph::flow::{Findings, Stuck},
    model::{
        Comm, Member,
        event::Way,
        flow::Tracked,
        ids::{Nanos, SECOND},
    },
};

/// Longer than this it is no longer a hiccup.
const CRITICAL: Nanos = 10 * SECOND;
/// Transfers told as evidence for one rank at most.
const SHOWN: usize = 4;

/// A rule's own part.
pub(super) struct Teller {
    pub rule: &'static Rule,
    /// Whether a finding is this rule's.
    pub is_mine: fn(Stuck) -> bool,
    /// What the culprits do or do not, as in "rank 2 (…) … in communicator …"; one rank, and more.
    pub verb: fn(&[(&Member, Stuck)]) -> String,
    pub refuted_by: &'static str,
    pub next_steps: fn(&View<'_>, &Member, Stuck) -> Vec<String>,
}

impl Teller {
    pub(super) fn check(&self, view: &View<'_>) -> Vec<Verdict> {
        let judge = |(id, findings)| self.judge(view, view.state.comms.get(id)?, findings);
        view.flows.iter().filter_map(judge).collect()
    }

    fn judge(&self, view: &View<'_>, comm: &Comm, findings: &Findings) -> Option<Verdict> {
        if view.disagrees(comm) || explained(view, comm, findings) {
            return None;
        }
        let culprits: Vec<(&Member, Stuck, &Vec<u32>)> = findings
            .iter()
            .filter_map(|(rank, found)| Some((comm.members.get(rank)?, found)))
            .flat_map(|(m, found)| found.iter().map(move |(what, channels)| (m, *what, channels)))
            .filter(|(m, what, _)| (self.is_mine)(*what) && !waits_elsewhere(view, m))
            .collect();
        let first = culprits.first()?;
        let since = comm.active().filter_map(|m| m.flows.as_ref()).map(|f| f.moved).max()?;
        let still = view.now().saturating_sub(since);
        let mut members: Vec<&Member> = culprits.iter().map(|(m, ..)| *m).collect();
        members.dedup_by_key(|m| m.rank);
        let brief: Vec<(&Member, Stuck)> = culprits.iter().map(|(m, what, _)| (*m, *what)).collect();
        let victims: Vec<&Member> = comm.active().filter(|m| members.iter().all(|c| c.rank != m.rank)).collect();
        Some(Verdict {
            rule: self.rule.id,
            name: self.rule.name,
            severity: if still >= CRITICAL { Severity::Critical } else { Severity::Warning },
            confidence: confidence(view, comm),
            headline: format!(
                "{} {} in {} of {}; no data has moved for {}",
                who(view, &members),
                (self.verb)(&brief),
                words::newest(first.0).unwrap_or_else(|| "an operation".to_owned()),
                words::comm(comm),
                words::seconds(still),
            ),
            comm: comm.id,
            seq: first.0.launched.map(|l| l.seq),
            culprits: members.iter().map(|m| Subject::of(view.state, m)).collect(),
            victims: victims.iter().map(|m| Subject::of(view.state, m)).collect(),
            since,
            evidence: evidence(view, comm, &culprits),
            refuted_by: self.refuted_by.to_owned(),
            next_steps: brief.iter().take(2).flat_map(|(m, what)| (self.next_steps)(view, m, *what)).collect(),
            chain: Vec::new(),
        })
    }
}

/// A rank that is dead, stopped, or has not come explains transfers that stand still; other rules name it.
fn explained(view: &View<'_>, comm: &Comm, findings: &Findings) -> bool {
    let absent = findings.values().any(|found| found.contains_key(&Stuck::Absent));
    absent || comm.active().any(|m| !view.alive(m) || is_stopped(view, m))
}

/// A GPU that waits in another communicator does not get to this one's kernel.
fn waits_elsewhere(view: &View<'_>, member: &Member) -> bool {
    view.graph.waits(member.into())
}

fn confidence(view: &View<'_>, comm: &Comm) -> Confidence {
    let seen = comm.active().filter(|m| m.flows.is_some()).count();
    let (level, reason) = if seen == comm.id.nranks as usize {
        (Level::High, format!("the counters of all {seen} ranks were read and fit together"))
    } else {
        let reason =
            format!("the counters of {seen} of {} ranks were read; the others are not in sight", comm.id.nranks);
        (Level::Medium, reason)
    };
    let lost = view.state.loss.events;
    Confidence { level, reason: if lost > 0 { format!("{reason}; {lost} events were lost") } else { reason } }
}

fn evidence(view: &View<'_>, comm: &Comm, culprits: &[(&Member, Stuck, &Vec<u32>)]) -> Vec<Evidence> {
    let mut list = Vec::new();
    let mut told: Vec<u32> = Vec::new();
    for (member, what, channels) in culprits {
        let channel = channels.first().copied().unwrap_or(0);
        if !told.contains(&member.rank) {
            told.push(member.rank);
            list.extend(transfers(view, member, channel));
            list.extend(proxy(member));
            list.push(words::last_launch(view.state, member));
            list.extend(words::doing(view.state, member));
        }
        if let Stuck::PathTo(peer) | Stuck::NotSentTo(peer) = what
            && let Some(other) = comm.members.get(peer).filter(|_| !told.contains(peer))
        {
            list.extend(transfers(view, other, channel).into_iter().take(2));
        }
    }
    list.push(words::patience(view, comm));
    list
}

/// The counters of a rank on a channel.
fn transfers(view: &View<'_>, member: &Member, channel: u32) -> Vec<Evidence> {
    let Some(flows) = &member.flows else { return Vec::new() };
    let on_channel = flows.flows.iter().filter(|t| t.flow.channel == channel);
    on_channel.filter_map(|t| transfer(view, member.rank, t, flows.at)).take(SHOWN).collect()
}

/// `rank 1 sends to rank 2 (channel 0, NET/0): 6 of 24 steps ready, 6 sent, 6 done; unchanged for 6.3 s`.
fn transfer(view: &View<'_>, rank: u32, tracked: &Tracked, at: Nanos) -> Option<Evidence> {
    let (flow, op) = (&tracked.flow, tracked.flow.op.as_ref()?);
    let peer = flow.peer.map_or_else(|| "a rank not known".to_owned(), |p| format!("rank {p}"));
    let via = flow.net_dev.map_or_else(String::new, |d| format!(", {}/{d}", flow.transport.name()));
    let counters = match flow.way {
        Way::Send => {
            format!(
                "sends to {peer} (channel {}{via}): {} of {} steps ready, {} sent, {} done",
                flow.channel, op.ready, op.steps, op.transmitted, op.done
            )
        }
        Way::Recv => {
            format!(
                "receives from {peer} (channel {}{via}): {} of {} steps posted, {} delivered, {} taken by the GPU",
                flow.channel, op.posted, op.steps, op.received, op.consumed
            )
        }
    };
    let still = words::seconds(view.now().saturating_sub(tracked.moved));
    Some(Evidence { at, source: Source::NcclMemory, text: format!("rank {rank} {counters}; unchanged for {still}") })
}

fn proxy(member: &Member) -> Option<Evidence> {
    let flows = member.flows.as_ref()?;
    let (now, (at, before)) = (flows.progress?, flows.progress_before?);
    let span = flows.at.saturating_sub(at);
    Some(Evidence {
        at: flows.at,
        source: Source::Proc,
        text: format!(
            "rank {}'s progress thread {} is in state {} and ran {:.0} ms of the last {:.0} ms",
            member.rank,
            now.tid,
            now.state,
            now.ran.saturating_sub(before.ran) as f64 / 1e6,
            span as f64 / 1e6
        ),
    })
}
