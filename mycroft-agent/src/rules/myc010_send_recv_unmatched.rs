//! MYC010: a send or receive whose other half does not come, or is of another size.

use std::collections::BTreeMap;

use super::{
    Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched as shared, words,
};
use crate::{
    graph::{Node, Why, message},
    model::{
        Comm, Member,
        ids::{Nanos, SECOND},
        pair::{Call, Pair},
    },
};

/// Longer than this it is no longer a hiccup.
const CRITICAL: Nanos = 10 * SECOND;
/// A wrong size that so many later messages survived no longer matters.
const FORGIVEN: u64 = 100;

pub const RULE: Rule = Rule {
    id: "MYC010",
    name: "send-recv-unmatched",
    summary: "A rank waits in a send or receive whose other half does not come, or comes with another size.",
    doc: "\
## Meaning
NCCL matches the n-th send of a rank to a peer with the n-th receive of that peer from it. Here one half was called and
the other was not, for longer than these two ranks' habits allow, and the rank that owes it waits for nobody; or both
halves came with different sizes. Only communicators are judged whose creation was seen, as the counts must begin at
their beginning. A send of up to 4 MiB can end without its receive, and is not judged.

## Impact
The waiting rank hangs, and with it all that need it: the other stages of a pipeline first. PyTorch's watchdog does not
watch sends that complete.

## Diagnosis
The evidence says what the owing rank called last, and whether it sent to another peer instead: then the wrong peer was
named. A receive larger than its send never ends; a smaller one is an error or corrupts memory.

## Mitigation
Compare the two sides' schedules (pipeline schedule, number of micro-batches, shapes). Put exchanges in one group.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    let mut list = sizes(view);
    list.extend(missing(view));
    list
}

fn missing(view: &View<'_>) -> Vec<Verdict> {
    let mut by_culprit: BTreeMap<(crate::model::CommId, u32), Vec<message::Wait>> = BTreeMap::new();
    for wait in message::waits(view.state) {
        let (Why::Receives { comm, peer, .. } | Why::Sends { comm, peer, .. }) = wait.why else { continue };
        let Node::Rank(whom) = wait.for_whom else { continue };
        if view.graph.is_root(whom) {
            by_culprit.entry((comm, peer)).or_default().push(wait);
        }
    }
    by_culprit.iter().filter_map(|((id, peer), waits)| judge(view, view.state.comms.get(id)?, *peer, waits)).collect()
}

fn judge(view: &View<'_>, comm: &Comm, peer: u32, waits: &[message::Wait]) -> Option<Verdict> {
    let culprit = comm.members.get(&peer)?;
    if !view.alive(culprit) || shared::is_stopped(view, culprit) || named_by_collective(view, culprit) {
        return None;
    }
    let oldest = waits.iter().min_by_key(|w| w.since)?;
    let (Why::Receives { rank, .. } | Why::Sends { rank, .. }) = oldest.why else { return None };
    let receives = matches!(oldest.why, Why::Receives { .. });
    let pair = comm.pairs.get(&if receives { (peer, rank) } else { (rank, peer) })?;
    let since = oldest.since.max(culprit.last_launch());
    let waited = view.now().saturating_sub(since);
    if waited < pair.patience(view.patience) {
        return None;
    }
    let waiting: Vec<&Member> = waits
        .iter()
        .filter_map(|w| match w.why {
            Why::Receives { rank, .. } | Why::Sends { rank, .. } => comm.members.get(&rank),
            _ => None,
        })
        .collect();
    let ranks: Vec<u32> = waiting.iter().map(|m| m.rank).collect();
    let number = if receives { pair.sends.count } else { pair.recvs.count };
    let owed = if receives { "sent" } else { "received" };
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if waited >= CRITICAL { Severity::Critical } else { Severity::Warning },
        confidence: shared::confidence(view, comm),
        headline: format!(
            "{} has not {owed} message #{number} {} rank {rank} of {}; {} {} waited {}",
            Subject::of(view.state, culprit),
            if receives { "to" } else { "from" },
            words::comm(comm),
            words::ranks_noun(&ranks),
            if ranks.len() == 1 { "has" } else { "have" },
            words::seconds(waited),
        ),
        comm: comm.id,
        seq: None,
        culprits: vec![Subject::of(view.state, culprit)],
        victims: waiting.iter().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence: evidence(view, comm, culprit, pair, (rank, receives)),
        refuted_by: format!("rank {peer} calling the other half"),
        next_steps: vec![format!("py-spy dump --pid {}", culprit.proc.pid)],
        chain: Vec::new(),
    })
}

/// A rank that a collective waits for is named there.
fn named_by_collective(view: &View<'_>, culprit: &Member) -> bool {
    let is_it = |(c, f): (&Comm, &crate::graph::Frontier)| {
        let of = |r: &u32| c.members.get(r).is_some_and(|m| m.proc == culprit.proc && m.cuda_dev == culprit.cuda_dev);
        f.missing.iter().any(|m| of(&m.rank))
    };
    view.stalled().any(is_it)
}

fn evidence(view: &View<'_>, comm: &Comm, culprit: &Member, pair: &Pair, of: (u32, bool)) -> Vec<Evidence> {
    let (rank, receives) = of;
    let call = if receives { pair.unmet_recv() } else { pair.unmet_send() };
    let verb = if receives { "receive" } else { "send" };
    let mut list: Vec<Evidence> = call
        .map(|c| Evidence {
            at: c.ts,
            source: Source::of_calls(view.state, culprit),
            text: format!("rank {rank} called a {verb} of {} that has no other half", words::bytes(c.bytes)),
        })
        .into_iter()
        .collect();
    list.push(Evidence {
        at: view.now(),
        source: Source::Derived,
        text: format!(
            "since the creation of the communicator: {} sends, {} receives between the two",
            pair.sends.count, pair.recvs.count
        ),
    });
    list.extend(wrong_peer(view, comm, culprit, rank));
    list.push(words::last_launch(view.state, culprit));
    list.extend(words::doing(view.state, culprit));
    list
}

/// The owing rank sent to somebody who did not ask.
fn wrong_peer(view: &View<'_>, comm: &Comm, culprit: &Member, rank: u32) -> Option<Evidence> {
    let others = comm.pairs.range((culprit.rank, 0)..=(culprit.rank, u32::MAX));
    let (to, call) = others.filter(|((_, to), _)| *to != rank).find_map(|((_, to), p)| Some((to, p.unmet_send()?)))?;
    Some(Evidence {
        at: call.ts,
        source: Source::of_calls(view.state, culprit),
        text: format!(
            "rank {} sent {} to rank {to} instead, which has not asked for it: the wrong peer?",
            culprit.rank,
            words::bytes(call.bytes)
        ),
    })
}

fn sizes(view: &View<'_>) -> Vec<Verdict> {
    let pairs = view.state.comms.values().flat_map(|c| c.pairs.iter().map(move |(who, p)| (c, *who, p)));
    pairs.filter_map(|(comm, who, pair)| size(view, comm, who, pair)).collect()
}

fn size(view: &View<'_>, comm: &Comm, (from, to): (u32, u32), pair: &Pair) -> Option<Verdict> {
    let (number, sent, expected) = pair.mismatch.filter(|(n, ..)| pair.met < n + FORGIVEN)?;
    let (sender, receiver) = (comm.members.get(&from)?, comm.members.get(&to)?);
    if !(sender.from_start && receiver.from_start) {
        return None;
    }
    let told = |m: &Member, call: &Call, verb: &str| Evidence {
        at: call.ts,
        source: Source::of_calls(view.state, m),
        text: format!("{} {verb} {}", words::rank_and_pid(view, m), words::bytes(call.bytes)),
    };
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Critical,
        confidence: Confidence { level: Level::High, reason: "both calls were seen".to_owned() },
        headline: format!(
            "rank {from} sends {} and rank {to} expects {} in message #{number} between them, in {}",
            words::bytes(sent.bytes),
            words::bytes(expected.bytes),
            words::comm(comm)
        ),
        comm: comm.id,
        seq: None,
        culprits: vec![Subject::of(view.state, sender), Subject::of(view.state, receiver)],
        victims: Vec::new(),
        since: sent.ts.max(expected.ts),
        evidence: vec![told(sender, &sent, "sends"), told(receiver, &expected, "expects")],
        refuted_by: "a call before that neither side counts, such as one before the communicator was seen".to_owned(),
        next_steps: vec!["compare the shapes that the two sides use for this exchange".to_owned()],
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    fn pipeline() -> Scene {
        let mut s = Scene::ranks(3);
        s.create();
        for _ in 0..10 {
            s.message(0, 1, 8 << 20);
            s.message(1, 2, 8 << 20);
            s.pass(100);
        }
        s
    }

    #[test]
    fn a_receive_without_a_send() {
        let mut s = pipeline();
        s.recv(2, 1, 8 << 20);
        s.recv(1, 0, 8 << 20);
        s.pass(1500);
        assert!(s.verdicts().is_empty());
        s.pass(1500);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank), ("MYC010", 0), "{v:#?}");
        assert_eq!(v.victims[0].rank, 1);
        s.send(0, 1, 8 << 20);
        s.send(1, 2, 8 << 20);
        s.pass(1500);
        assert!(s.verdicts().is_empty(), "it came");
    }

    #[test]
    fn a_large_send_without_a_receive_and_a_small_one() {
        let mut s = pipeline();
        s.send(0, 1, 1 << 20);
        s.pass(5000);
        assert!(s.verdicts().is_empty(), "it fits the buffer");
        let mut s = pipeline();
        s.send(0, 1, 64 << 20);
        s.pass(3000);
        assert_eq!((s.only_verdict().rule, s.only_verdict().culprits[0].rank), ("MYC010", 1));
    }

    #[test]
    fn the_wrong_peer_is_told() {
        let mut s = pipeline();
        s.recv(1, 0, 8 << 20);
        s.send(0, 2, 1 << 20);
        s.pass(3000);
        let v = s.only_verdict();
        assert!(v.evidence.iter().any(|e| e.text.contains("to rank 2 instead")), "{v:#?}");
    }

    #[test]
    fn different_sizes() {
        let mut s = pipeline();
        s.send(0, 1, 12);
        s.recv(1, 0, 20);
        s.pass(100);
        let v = s.only_verdict();
        assert!(v.headline.contains("sends 12 B and rank 1 expects 20 B"), "{}", v.headline);
    }

    /// Without the creation the counts have no common beginning.
    #[test]
    fn nothing_is_said_of_communicators_that_were_there_before() {
        let mut s = Scene::ranks(2);
        s.recv(0, 1, 8 << 20);
        s.pass(100_000);
        assert!(s.verdicts().is_empty());
    }
}
