//! MYC020: something is stuck, and what we have does not say who is the cause.

use super::{
    Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched, steps, words,
};
use crate::{
    graph::{Frontier, Step, Why},
    model::{Comm, Member},
};

pub const RULE: Rule = Rule {
    id: "MYC020",
    name: "insufficient-evidence",
    summary: "Ranks wait, but the evidence does not name a cause.",
    doc: "\
## Meaning
A communicator stands still beyond its patience, and the ranks that are missing there may themselves wait for what is not
in sight: ranks on hosts without an agent, or calls whose events were lost. Mycroft does not guess.

## Impact
As for any hang: the job stands still until a watchdog ends it.

## Diagnosis
The evidence lists who waits where, and what is missing.

## Mitigation
Take the stacks of the ranks named, and run Mycroft on the other hosts of the job.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.stalled().filter(|(comm, _)| !view.disagrees(comm)).filter_map(|(comm, f)| judge(view, comm, f)).collect()
}

fn judge(view: &View<'_>, comm: &Comm, frontier: &Frontier) -> Option<Verdict> {
    let missing: Vec<_> = frontier.missing.iter().filter_map(|m| comm.members.get(&m.rank)).collect();
    let told = |m: &&Member| {
        !view.alive(m) || view.graph.has_root_behind((*m).into()) || !view.graph.has_unseen_behind((*m).into())
    };
    if missing.is_empty() || missing.iter().any(told) {
        return None;
    }
    let since = frontier.missing.iter().map(|m| m.since).min()?;
    let ranks: Vec<u32> = missing.iter().map(|m| m.rank).collect();
    let mut evidence = vec![myc001_not_launched::waiting(view, comm, frontier)];
    for m in &missing {
        let waits: Vec<Step> = view.graph.waits_of((*m).into()).collect();
        evidence.extend(steps::lines(view, &waits).into_iter().map(|text| Evidence {
            at: view.now(),
            source: Source::Derived,
            text,
        }));
    }
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Warning,
        confidence: Confidence {
            level: Level::Low,
            reason: "what the missing ranks wait for is not in sight".to_owned(),
        },
        headline: format!(
            "insufficient evidence: {} of {} wait in {} for {}, which may wait for what is not in sight: {}",
            words::ranks_noun(&frontier.waiting),
            words::comm(comm),
            words::expected(comm, frontier.seq),
            words::ranks_noun(&ranks),
            reason(view, &missing),
        ),
        comm: comm.id,
        seq: Some(frontier.seq),
        culprits: Vec::new(),
        victims: comm.active().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence,
        refuted_by: "any of these ranks launching again".to_owned(),
        next_steps: vec!["run Mycroft on the other hosts of the job; take the stacks of the ranks named".to_owned()],
        chain: Vec::new(),
    })
}

fn reason(view: &View<'_>, missing: &[&Member]) -> &'static str {
    let lost = |m: &&Member| view.graph.waits_of((*m).into()).any(|s| matches!(s.why, Why::Lost { .. }));
    if missing.iter().any(lost) {
        "events of their host were lost and not made good"
    } else {
        "ranks on hosts without an agent"
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::{Level, testing::Scene};

    #[test]
    fn a_rank_that_may_wait_for_ranks_out_of_sight_is_not_blamed() {
        let mut s = Scene::ranks(2);
        let wide = s.communicator_of(&[0, 1], 4);
        s.rounds(20, 100);
        s.launch_on(wide, &[0, 1]);
        s.round_without(&[1], 100);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.confidence.level), ("MYC020", Level::Low), "{v:#?}");
        assert!(v.culprits.is_empty() && v.headline.contains("hosts without an agent"), "{}", v.headline);
    }

    #[test]
    fn lost_events_are_no_reason_to_blame_unless_made_good() {
        for made_good in [false, true] {
            let mut s = Scene::ranks(2);
            s.rounds(20, 100);
            s.round_without(&[1], 100);
            s.lose(made_good);
            s.pass(3000);
            let v = s.only_verdict();
            assert_eq!(v.rule, if made_good { "MYC001" } else { "MYC020" }, "{v:#?}");
        }
    }
}
