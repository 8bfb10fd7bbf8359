//! MYC020: something is stuck, and what we have does not say who is the cause.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched, words};
use crate::{graph::Frontier, model::Comm};

pub const RULE: Rule = Rule {
    id: "MYC020",
    name: "insufficient-evidence",
    summary: "Ranks wait, but the evidence does not name a cause.",
    doc: "\
## Meaning
A communicator stands still beyond its patience, and every rank that is missing there waits for somebody else
in another communicator, with no rank at the end of the chain: a circle. Mycroft does not guess.

## Impact
As for any hang: the job stands still until a watchdog ends it.

## Diagnosis
The evidence lists who waits where. Two communicators launched in a different order on two ranks make such a
circle. Ranks on other hosts that this agent can't see can hide the true cause.

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
    if missing.is_empty() || missing.iter().any(|m| !view.alive(m) || view.graph.has_root_behind((*m).into())) {
        return None;
    }
    let since = frontier.missing.iter().map(|m| m.since).min()?;
    let ranks: Vec<u32> = missing.iter().map(|m| m.rank).collect();
    let mut evidence = vec![myc001_not_launched::waiting(comm, frontier)];
    for m in &missing {
        evidence.extend(elsewhere(view, comm, m));
    }
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Warning,
        confidence: Confidence {
            level: Level::Low,
            reason: "every rank that is missing waits for another one in turn".to_owned(),
        },
        headline: format!(
            "insufficient evidence: {} of {} wait in {} for {}, which wait in other communicators themselves (a circle)",
            words::ranks_noun(&frontier.waiting),
            words::comm(comm),
            myc001_not_launched::expected(comm, frontier.seq),
            words::ranks_noun(&ranks),
        ),
        comm: comm.id,
        seq: Some(frontier.seq),
        culprits: Vec::new(),
        victims: comm.active().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence,
        refuted_by: "any of these ranks launching again".to_owned(),
        next_steps: vec!["compare the order in which these ranks launch their communicators".to_owned()],
    })
}

/// Where else the rank waits.
fn elsewhere(view: &View<'_>, here: &Comm, member: &crate::model::Member) -> Vec<Evidence> {
    view.state
        .memberships(member.proc)
        .filter(|(c, m)| c.id != here.id && m.cuda_dev == member.cuda_dev)
        .filter_map(|(c, m)| {
            let f = view.graph.frontiers.get(&c.id)?;
            f.waiting.contains(&m.rank).then(|| Evidence {
                at: f.first_launch.unwrap_or(view.now()),
                source: Source::NcclProbe,
                text: format!(
                    "rank {} here (pid {}) waits as rank {} of {} in {}",
                    member.rank,
                    member.proc.pid,
                    m.rank,
                    words::comm(c),
                    myc001_not_launched::expected(c, f.seq)
                ),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn a_circle_is_told_and_nobody_blamed() {
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
        let verdicts = s.verdicts();
        assert_eq!(verdicts.len(), 2);
        for v in verdicts {
            assert_eq!(v.rule, "MYC020", "{}", v.headline);
            assert!(v.culprits.is_empty());
            assert!(v.headline.starts_with("insufficient evidence"));
        }
    }
}
