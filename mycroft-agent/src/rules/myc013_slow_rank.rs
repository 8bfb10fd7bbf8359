//! MYC013: one rank comes late to its collectives again and again, by its own doing.

use super::{Rule, Severity, Subject, Verdict, View, slow, words};
use crate::graph::late::Late;

pub const RULE: Rule = Rule {
    id: "MYC013",
    name: "slow-rank",
    summary: "One rank comes late to its collectives again and again, by its own doing; the others wait for it.",
    doc: "\
## Meaning
All ranks finish a collective together, so durations do not tell who is slow: arrivals do. In at least four of five of the
last collectives at which anybody was late, this rank came last, behind a gap to the others. It needed that time itself:
since the end of what it had waited for before, it took longer than they. So a rank that comes late because it waited
for another in a different communicator is not named. Told from 5 ms of lateness (more by the error of the hosts' clocks)
and 8 % of the communicator's time on.

## Impact
All ranks run at this one's pace. The verdict says how much of the time it costs.

## Diagnosis
A slow GPU (clocks, power limit, temperature: `nvidia-smi -q -d PERFORMANCE`), another process on the GPU or the CPUs, slow
data loading on that rank, uneven work (more tokens, more experts).

## Mitigation
If the same GPU is slow in other jobs, take it out. If the work is uneven, balance it.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    let (singles, _) = slow::by_host(view);
    singles.iter().filter_map(|l| judge(view, l)).collect()
}

fn judge(view: &View<'_>, late: &Late) -> Option<Verdict> {
    let comm = view.state.comms.get(&late.comm)?;
    let member = comm.members.get(&late.rank)?;
    let victims = comm.active().filter(|m| m.rank != late.rank);
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Warning,
        confidence: slow::confidence(view, late),
        headline: format!(
            "{} comes late to the collectives of {}, typically by {}: it costs {} % of the time",
            Subject::of(view.state, member),
            words::comm(comm),
            words::milliseconds(late.typical),
            late.cost(),
        ),
        comm: comm.id,
        seq: None,
        culprits: vec![Subject::of(view.state, member)],
        victims: victims.map(|m| Subject::of(view.state, m)).collect(),
        since: late.since,
        evidence: slow::evidence(view, late),
        refuted_by: "another rank coming last as often".to_owned(),
        next_steps: vec![
            "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER   # on its host".to_owned(),
            format!("py-spy top --pid {}", member.proc.pid),
        ],
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn the_rank_that_is_late_each_time_is_named() {
        let mut s = Scene::ranks(4);
        for _ in 0..40 {
            s.late_round(&[2], 30, 100);
        }
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank), ("MYC013", 2), "{v:#?}");
        assert!(v.headline.contains("30 ms"), "{}", v.headline);
        for _ in 0..64 {
            s.late_round(&[], 30, 100);
        }
        s.pass(1100);
        assert!(s.verdicts().is_empty(), "it has caught up");
    }

    #[test]
    fn now_one_and_now_another_is_nobody() {
        let mut s = Scene::ranks(4);
        for i in 0..60 {
            s.late_round(&[i % 4], 30, 100);
        }
        assert!(s.verdicts().is_empty(), "{:#?}", s.verdicts());
    }

    #[test]
    fn one_that_waits_for_the_slow_one_elsewhere_is_not_named() {
        let mut s = Scene::ranks(4);
        let pair = s.communicator(&[2, 3]);
        for _ in 0..40 {
            s.launch_on(pair, &[2]);
            s.wait(30);
            s.launch_on(pair, &[3]);
            s.launch_on(0, &[0, 1]);
            s.wait(1);
            s.launch_on(0, &[2, 3]);
            s.pass(100);
        }
        for v in s.verdicts() {
            assert_eq!(v.culprits.iter().map(|c| c.rank_in_job()).collect::<Vec<_>>(), [3], "{}", v.headline);
        }
        assert_eq!(s.verdicts().len(), 1);
    }
}
