//! MYC017: the whole job is slower than it was, and no rank stands out.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Verdict, View, slow, words};
use crate::model::{Comm, ids::Nanos};

/// Slower than usual by this much, in percent.
const SLOWER: Nanos = 200;

pub const RULE: Rule = Rule {
    id: "MYC017",
    name: "job-slow",
    summary: "Collectives come half as often as they used to, or less, and no rank or link stands out.",
    doc: "\
## Meaning
The mean time between collectives, over the last 64, is at least twice the best that the communicator has kept up before.
Most of the job's communicators show it, and no rank, host or link was found to be the reason.

## Impact
The job runs, at half its pace or less.

## Diagnosis
What all ranks share: storage, a parameter server or tokeniser, a fabric under load by another job, power capping of a
whole row; or the job itself: longer sequences, another phase of training, evaluation.

## Mitigation
Nothing, if the job has entered another phase. Else compare with the metrics of storage and fabric at the time given.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    let (single, hosts) = slow::by_host(view);
    let explained =
        !single.is_empty() || !hosts.is_empty() || !view.flows.is_empty() || view.stalled().next().is_some();
    if explained {
        return Vec::new();
    }
    let paces: Vec<(&Comm, Nanos, Nanos)> =
        view.state.comms.values().filter_map(|c| c.rhythm.pace().map(|(now, usual)| (c, now, usual))).collect();
    let is_slow = |(_, now, usual): &&(&Comm, Nanos, Nanos)| 100 * now >= SLOWER * usual;
    let slower = paces.iter().filter(is_slow).count();
    if slower == 0 || 2 * slower < paces.len() {
        return Vec::new();
    }
    let widest = paces.iter().filter(is_slow).max_by_key(|(c, ..)| (c.id.nranks, std::cmp::Reverse(c.id)));
    widest.map(|(c, now, usual)| judge(view, c, (*now, *usual), (slower, paces.len()))).into_iter().collect()
}

fn judge(view: &View<'_>, comm: &Comm, (now, usual): (Nanos, Nanos), (slower, of): (usize, usize)) -> Verdict {
    Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Info,
        confidence: Confidence {
            level: Level::Medium,
            reason: "the pace was measured; whether it should be so is not known".to_owned(),
        },
        headline: format!(
            "{} is {:.1} times slower than it was: {} between collectives instead of {}, and no rank stands out",
            words::comm(comm),
            now as f64 / usual.max(1) as f64,
            words::milliseconds(now),
            words::milliseconds(usual),
        ),
        comm: comm.id,
        seq: None,
        culprits: Vec::new(),
        victims: Vec::new(),
        since: comm.rhythm.rounds().next().map_or(view.now(), |r| r.at),
        evidence: vec![Evidence {
            at: view.now(),
            source: Source::Derived,
            text: format!("{slower} of {of} communicators run at half their usual pace or less"),
        }],
        refuted_by: "the job having entered another phase, such as evaluation".to_owned(),
        next_steps: vec!["compare with storage and fabric metrics since then".to_owned()],
        chain: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn half_the_pace_on_all_ranks_is_told_without_a_culprit() {
        let mut s = Scene::ranks(4);
        s.rounds(100, 100);
        assert!(s.verdicts().is_empty());
        s.rounds(70, 300);
        let v = s.only_verdict();
        assert_eq!(v.rule, "MYC017", "{v:#?}");
        assert!(v.culprits.is_empty());
    }

    #[test]
    fn one_long_pause_is_a_checkpoint() {
        let mut s = Scene::ranks(4);
        s.rounds(100, 100);
        s.pass(5000);
        s.rounds(20, 100);
        assert!(s.verdicts().is_empty(), "{:#?}", s.verdicts());
    }
}
