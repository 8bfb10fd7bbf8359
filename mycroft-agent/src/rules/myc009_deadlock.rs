//! MYC009: ranks wait for each other in a circle.

use super::{
    Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched, steps, words,
};
use crate::{
    graph::{Circle, Frontier, Node, RankKey, Why},
    model::{
        Comm, CommId, Member,
        ids::{Nanos, SECOND},
    },
};

/// Longer than this it is no longer a hiccup.
const CRITICAL: Nanos = 10 * SECOND;

pub const RULE: Rule = Rule {
    id: "MYC009",
    name: "deadlock",
    summary: "Ranks wait for each other in a circle, across communicators or in sends and receives.",
    doc: "\
## Meaning
Each of these ranks waits for the next, and the last for the first, while none of them waits for a rank outside. Mostly
two communicators are launched in one order on some ranks and in the other order on others; or two ranks both receive
(or both send more than fits the buffer) before either does the opposite.

## Impact
It never resolves by itself. A longer timeout does not help.

## Diagnosis
The evidence gives the shortest circle, and for each rank the order of its last calls. Where one side is smaller, its
ranks are named as those that differ; else all of the circle are.

## Mitigation
Launch communicators in the same order on all ranks (from one thread, or serialised by events between streams), and put
sends and receives that belong together into one group (`ncclGroupStart`/`ncclGroupEnd`, `batch_isend_irecv`).
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.circles.iter().filter_map(|c| judge(view, c)).collect()
}

fn judge(view: &View<'_>, circle: &Circle) -> Option<Verdict> {
    let ranks: Vec<RankKey> = circle.ranks().collect();
    let ids = comms(circle);
    let comm = ids.iter().find_map(|id| view.state.comms.get(id))?;
    if ids.iter().filter_map(|id| view.state.comms.get(id)).any(|c| view.disagrees(c)) {
        return None;
    }
    let members: Vec<(&Comm, &Member)> = ranks.iter().filter_map(|k| membership(view, *k, &ids)).collect();
    if members.iter().any(|(_, m)| !view.alive(m) || myc001_not_launched::is_stopped(view, m)) {
        return None;
    }
    let since = since(view, circle)?;
    let waited = view.now().saturating_sub(since);
    let patience =
        ids.iter().filter_map(|id| view.state.comms.get(id)).map(|c| c.rhythm.patience(view.patience)).max()?;
    if waited < patience {
        return None;
    }
    let odd = odd_side(view, circle);
    let culprits: Vec<&Member> = if odd.is_empty() { members.iter().map(|(_, m)| *m).collect() } else { odd.clone() };
    let seq = circle.steps.iter().find_map(|s| match s.to {
        Node::Operation { seq, comm: id } if id == comm.id => Some(seq),
        _ => None,
    });
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if waited >= CRITICAL { Severity::Critical } else { Severity::Warning },
        confidence: confidence(circle),
        headline: format!(
            "deadlock of {} ranks for {}: {}",
            ranks.len(),
            words::seconds(waited),
            steps::lines(view, &circle.steps).join("; ")
        ),
        comm: comm.id,
        seq,
        culprits: culprits.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: comm.active().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence: evidence(view, circle, &members, &odd),
        refuted_by: "any of these ranks launching what it owes".to_owned(),
        next_steps: vec![
            "compare the order in which these ranks launch their communicators (evidence above)".to_owned(),
        ],
        chain: Vec::new(),
    })
}

/// Communicators on the circle, in its order.
fn comms(circle: &Circle) -> Vec<CommId> {
    let mut ids = Vec::new();
    for step in &circle.steps {
        let id = match step.why {
            Why::Launched { comm, .. }
            | Why::NotLaunched { comm, .. }
            | Why::Receives { comm, .. }
            | Why::Sends { comm, .. }
            | Why::Data { comm, .. }
            | Why::MayWait { comm, .. }
            | Why::Lost { comm, .. } => comm,
        };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn membership<'v>(view: &View<'v>, key: RankKey, ids: &[CommId]) -> Option<(&'v Comm, &'v Member)> {
    view.state.memberships(key.proc).find(|(c, m)| m.cuda_dev == key.cuda_dev && ids.contains(&c.id))
}

/// Since when all of the circle has stood.
fn since(view: &View<'_>, circle: &Circle) -> Option<Nanos> {
    let last = |k: RankKey| {
        let programs = view.state.programs.get(&(k.proc, k.cuda_dev));
        programs.and_then(|p| p.newest()).map(|l| l.ts)
    };
    circle.ranks().filter_map(last).max()
}

/// Of a circle of two operations: the ranks that launched the one first, if they are fewer than those that launched the
/// other first.
fn odd_side<'v>(view: &View<'v>, circle: &Circle) -> Vec<&'v Member> {
    let operations: Vec<CommId> = circle
        .steps
        .iter()
        .filter_map(|s| if let Node::Operation { comm, .. } = s.to { Some(comm) } else { None })
        .collect();
    let [a, b] = operations[..] else { return Vec::new() };
    let (Some(fa), Some(fb)) = (view.graph.frontiers.get(&a), view.graph.frontiers.get(&b)) else { return Vec::new() };
    let first_a = in_one_not_other(view, fa, fb);
    let first_b = in_one_not_other(view, fb, fa);
    match first_a.len().cmp(&first_b.len()) {
        std::cmp::Ordering::Less => first_a,
        std::cmp::Ordering::Greater => first_b,
        std::cmp::Ordering::Equal => Vec::new(),
    }
}

/// Ranks that wait in the one operation and are missing in the other.
fn in_one_not_other<'v>(view: &View<'v>, one: &Frontier, other: &Frontier) -> Vec<&'v Member> {
    let state = view.state;
    let (Some(here), Some(there)) = (state.comms.get(&one.comm), state.comms.get(&other.comm)) else {
        return Vec::new();
    };
    let missing: Vec<RankKey> =
        other.missing.iter().filter_map(|m| Some(RankKey::from(there.members.get(&m.rank)?))).collect();
    let waiting = one.waiting.iter().filter_map(|r| here.members.get(r));
    waiting.filter(|m| missing.contains(&RankKey::from(*m))).collect()
}

fn confidence(circle: &Circle) -> Confidence {
    let receives = circle.steps.iter().all(|s| matches!(s.why, Why::Receives { .. } | Why::Sends { .. }));
    if receives {
        return Confidence {
            level: Level::Medium,
            reason: "receives may be called ahead of need: a rank of these may be busy with something else".to_owned(),
        };
    }
    Confidence { level: Level::High, reason: "each wait of the circle was seen, and none leads out of it".to_owned() }
}

fn evidence(view: &View<'_>, circle: &Circle, members: &[(&Comm, &Member)], odd: &[&Member]) -> Vec<Evidence> {
    let mut list: Vec<Evidence> = steps::lines(view, &circle.steps)
        .into_iter()
        .map(|text| Evidence { at: view.now(), source: Source::Derived, text })
        .collect();
    for (_, m) in members {
        list.extend(order(view, m));
        list.extend(words::doing(view.state, m));
    }
    if !odd.is_empty() {
        let ranks: Vec<u32> = odd.iter().map(|m| m.rank).collect();
        list.push(Evidence {
            at: view.now(),
            source: Source::Derived,
            text: format!("{} differ in their order from the larger part", words::ranks_noun(&ranks)),
        });
    }
    list
}

/// The last calls of a rank, in order.
fn order(view: &View<'_>, member: &Member) -> Option<Evidence> {
    const SHOWN: usize = 4;
    let program = view.state.programs.get(&(member.proc, member.cuda_dev))?;
    let mut calls: Vec<String> = program
        .iter()
        .rev()
        .take(SHOWN)
        .map(|l| format!("{} of {}", words::op_number(&l.signature, l.seq), l.comm))
        .collect();
    calls.reverse();
    Some(Evidence {
        at: program.newest()?.ts,
        source: Source::of_calls(view.state, member),
        text: format!("{} called, in this order: {}", words::rank_and_pid(view, member), calls.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::{Level, testing::Scene};

    #[test]
    fn two_communicators_in_different_order() {
        let mut s = Scene::ranks(2);
        let other = s.communicator(&[0, 1]);
        s.rounds(20, 100);
        for _ in 0..20 {
            s.launch_on(other, &[0, 1]);
        }
        // Rank 0 launches on the one first, rank 1 on the other.
        s.round_without(&[1], 0);
        s.launch_on(other, &[1]);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.confidence.level), ("MYC009", Level::High), "{v:#?}");
        assert_eq!(v.culprits.len(), 2, "nobody is the odd one");
        assert!(v.evidence.iter().any(|e| e.text.contains("in this order")), "{v:#?}");
    }

    #[test]
    fn the_fewer_are_the_odd_ones() {
        let mut s = Scene::ranks(4);
        let other = s.communicator(&[0, 1, 2, 3]);
        s.rounds(20, 100);
        for _ in 0..20 {
            s.launch_on(other, &[0, 1, 2, 3]);
        }
        s.round_without(&[2], 0);
        s.launch_on(other, &[2]);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!(v.rule, "MYC009");
        assert_eq!(v.culprits.iter().map(|c| c.rank).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn two_ranks_that_both_receive_first() {
        let mut s = Scene::ranks(2);
        s.create();
        s.rounds(10, 100);
        for _ in 0..10 {
            s.message(0, 1, 1000);
            s.message(1, 0, 1000);
        }
        s.recv(0, 1, 1000);
        s.recv(1, 0, 1000);
        s.pass(1500);
        assert!(s.verdicts().is_empty());
        s.pass(2000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.confidence.level), ("MYC009", Level::Medium), "{v:#?}");
    }

    #[test]
    fn a_wait_that_leads_out_of_the_circle_is_no_deadlock() {
        let mut s = Scene::ranks(3);
        let other = s.communicator(&[0, 1, 2]);
        s.rounds(20, 100);
        for _ in 0..20 {
            s.launch_on(other, &[0, 1, 2]);
        }
        // Rank 2 comes to neither.
        s.round_without(&[1, 2], 0);
        s.launch_on(other, &[1]);
        s.pass(3000);
        for v in s.verdicts() {
            assert_eq!((v.rule, v.culprits[0].rank), ("MYC001", 2), "{}", v.headline);
        }
    }
}
