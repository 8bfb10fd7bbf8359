//! MYC018: a rank falls behind the others by one operation after the other, while it goes on launching.

use super::{Evidence, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched as shared, words};
use crate::model::{Comm, Member, comm::Lead};

/// Operations behind, from which on it is told.
const LEAST_LAG: u64 = 4;
/// Steps by which the lag has grown meanwhile.
const LEAST_GROWTH: u64 = 3;

pub const RULE: Rule = Rule {
    id: "MYC018",
    name: "operations-drift",
    summary: "A rank falls behind by one operation after the other, while it goes on launching.",
    doc: "\
## Meaning
The rank still launches, and each time the others are one or more collectives further ahead: its count of operations drifts
away from theirs. That is a collective that is called under a condition which is not the same on all ranks, so each of
its calls is matched with another one's. A rank that is merely slow is caught up with at the next collective that all wait
for.

## Impact
Data of different calls is mixed, and the job hangs once the others can't run ahead any more.

## Diagnosis
Look for a collective inside a branch that depends on local data (an empty batch, a step without tokens, a skipped metric).

## Mitigation
Call it on all ranks, with empty data where there is none.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    let drifting = |c: &Comm| c.active().filter_map(|m| judge(view, c, m, m.lead?)).collect::<Vec<_>>();
    view.state.comms.values().filter(|c| c.span().is_some_and(|(a, b)| b - a >= LEAST_LAG)).flat_map(drifting).collect()
}

fn judge(view: &View<'_>, comm: &Comm, member: &Member, lead: Lead) -> Option<Verdict> {
    let drifts = lead.now >= LEAST_LAG && lead.grown >= LEAST_GROWTH && lead.now <= comm.span()?.1;
    if !drifts || view.disagrees(comm) || !view.alive(member) {
        return None;
    }
    let victims = comm.active().filter(|m| m.rank != member.rank);
    let fact = |at, text| Evidence { at, source: Source::of_calls(view.state, member), text };
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Warning,
        confidence: shared::confidence(view, comm),
        headline: format!(
            "{} falls behind in {}: {} collectives by now, one more at {} of its last launches",
            Subject::of(view.state, member),
            words::comm(comm),
            lead.now,
            lead.grown,
        ),
        comm: comm.id,
        seq: None,
        culprits: vec![Subject::of(view.state, member)],
        victims: victims.map(|m| Subject::of(view.state, m)).collect(),
        since: lead.since,
        evidence: vec![
            fact(lead.since, format!("the lag began to grow; it grew {} times since without shrinking", lead.grown)),
            words::last_launch(view.state, member),
        ],
        refuted_by: "the rank catching up".to_owned(),
        next_steps: vec!["look for a collective under a condition that is not the same on all ranks".to_owned()],
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn a_count_that_drifts_is_told_before_the_hang() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        for _ in 0..8 {
            // Two collectives a step on the others, one on rank 1.
            s.launch_on(0, &[0, 2, 3]);
            s.round_without(&[], 100);
        }
        let found: Vec<_> = s.verdicts().iter().filter(|v| v.rule == "MYC018").collect();
        assert_eq!(found.len(), 1, "{:#?}", s.verdicts());
        assert_eq!(found[0].culprits[0].rank, 1);
    }

    #[test]
    fn a_rank_that_is_caught_up_with_does_not_drift() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        for _ in 0..10 {
            for _ in 0..5 {
                s.round_without(&[1], 10);
            }
            for _ in 0..5 {
                s.catch_up(1);
            }
        }
        assert!(s.verdicts().iter().all(|v| v.rule != "MYC018"), "{:#?}", s.verdicts());
    }
}
