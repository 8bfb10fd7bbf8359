//! MYC015: several ranks of one host come late again and again, by their own doing.

use super::{Evidence, Rule, Severity, Subject, Verdict, View, slow, words};
use crate::{graph::late::Late, model::HostId};

pub const RULE: Rule = Rule {
    id: "MYC015",
    name: "slow-host",
    summary: "Several ranks of one host come late to their collectives again and again, by their own doing.",
    doc: "\
## Meaning
As MYC013 (slow-rank), but at least half of the host's ranks, and two or more, are late: what slows them down is the host's.

## Impact
The whole job runs at this host's pace.

## Diagnosis
CPU frequency or a power cap of the machine, another job or a daemon on its CPUs, memory pressure, slow storage, a hot chassis
that throttles all GPUs, one NUMA node used by all.

## Mitigation
Take the host out of the job and test it alone.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    let (_, hosts) = slow::by_host(view);
    hosts.iter().filter_map(|(host, late)| judge(view, *host, late)).collect()
}

fn judge(view: &View<'_>, host: HostId, late: &[Late]) -> Option<Verdict> {
    let worst = late.iter().max_by_key(|l| (l.sum, std::cmp::Reverse(l.key)))?;
    let comm = view.state.comms.get(&worst.comm)?;
    let subject = |l: &Late| {
        let member = view.state.comms.get(&l.comm)?.members.get(&l.rank)?;
        Some(Subject::of(view.state, member))
    };
    let culprits: Vec<Subject> = late.iter().filter_map(subject).collect();
    let victims = comm.active().filter(|m| m.proc.host != host);
    let evidence: Vec<Evidence> = late.iter().take(4).flat_map(|l| slow::evidence(view, l)).collect();
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Warning,
        confidence: slow::confidence(view, worst),
        headline: format!(
            "host {} is slow: {} of its ranks come late to their collectives, typically by {}; it costs {} % of the time",
            view.state.host_name(host),
            late.len(),
            words::milliseconds(worst.typical),
            worst.cost(),
        ),
        comm: comm.id,
        seq: None,
        culprits,
        victims: victims.map(|m| Subject::of(view.state, m)).collect(),
        since: late.iter().map(|l| l.since).min()?,
        evidence,
        refuted_by: "ranks of other hosts coming last as often".to_owned(),
        next_steps: vec![
            "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER   # on that host".to_owned(),
            "cat /proc/pressure/cpu /proc/pressure/memory /proc/pressure/io   # on that host".to_owned(),
        ],
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn half_of_a_hosts_ranks_late_is_the_host() {
        let mut s = Scene::hosts(2, 4);
        for _ in 0..40 {
            s.late_round(&[4, 5, 6, 7], 30, 100);
        }
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits.len()), ("MYC015", 4), "{v:#?}");
        assert!(v.headline.contains("host node2"), "{}", v.headline);
    }

    #[test]
    fn one_of_them_late_is_the_rank() {
        let mut s = Scene::hosts(2, 4);
        for _ in 0..40 {
            s.late_round(&[5], 30, 100);
        }
        assert_eq!(s.only_verdict().rule, "MYC013");
    }
}
