//! MYC004: ranks called one collective with different arguments.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched, words};
use crate::model::{
    Comm, Signature,
    comm::Disagreement,
    ids::{MILLISECOND, Nanos},
    window::Variant,
};

/// Time for the remaining ranks to arrive, so that the odd one is told from the many.
const SETTLE: Nanos = 500 * MILLISECOND;
/// A disagreement that this many later collectives survived no longer matters.
const FORGIVEN: u64 = 100;

pub const RULE: Rule = Rule {
    id: "MYC004",
    name: "ranks-differ",
    summary: "Ranks called the same collective with another function, count, type, reduction or root.",
    doc: "\
## Meaning
Collective #n of a communicator was called with different arguments on different ranks. NCCL does not check
this (unless NCCL_CHECK_MODE asks for it): it hangs, mixes up data, or fails in a distant place. Numbers are
NCCL's own, so #n is the same call site on all ranks unless one of them made a call more or fewer before.

## Impact
A hang, or silent corruption of the data of this and all later collectives.

## Diagnosis
The verdict names the odd ranks (the fewer) and the first collective at which they part. Another *function* at
the same number mostly means that one rank skipped or added a call: look for a branch that only some ranks take
(empty batch, last step, rank-0-only code). The same function with another *count* means tensors of different
shape: uneven batches, a parameter that exists on some ranks only.

## Mitigation
Restart after the mend; the run can't be trusted past #n.
",
    check,
};

/// The disagreement that a communicator suffers from, if it still matters.
pub(super) fn current<'c>(_: &View<'_>, comm: &'c Comm) -> Option<&'c Disagreement> {
    comm.disagreement.as_ref().filter(|d| comm.rhythm.completed < d.completed + FORGIVEN)
}

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.state.comms.values().filter_map(|c| judge(view, c, current(view, c)?)).collect()
}

fn judge(view: &View<'_>, comm: &Comm, disagreement: &Disagreement) -> Option<Verdict> {
    let slot = &disagreement.slot;
    let arrived: usize = slot.variants.iter().map(|v| v.ranks.count_ones(..)).sum();
    let all_in = arrived >= comm.comparable().count();
    if !all_in && view.now() < slot.last_ts.saturating_add(SETTLE) {
        return None;
    }
    let majority = slot.majority()?;
    let most = majority.ranks.count_ones(..);
    let clear = slot.variants.iter().filter(|v| v.ranks.count_ones(..) == most).count() == 1;
    let odd: Vec<&Variant> = slot.variants.iter().filter(|v| !clear || v.signature != majority.signature).collect();
    let odd_ranks: Vec<u32> = odd.iter().flat_map(|v| rank_list(v)).collect();
    let what = difference(&slot.variants);
    let headline = if clear {
        format!(
            "{} of {} called #{} as {}, while {} called {}: {what} differ",
            words::ranks_noun(&odd_ranks),
            words::comm(comm),
            slot.seq,
            odd.iter().map(|v| words::signature(&v.signature)).collect::<Vec<_>>().join(" / "),
            words::ranks_noun(&rank_list(majority)),
            words::signature(&majority.signature),
        )
    } else {
        format!(
            "ranks of {} disagree on #{}: {}; no side is the majority",
            words::comm(comm),
            slot.seq,
            sides(&slot.variants)
        )
    };
    let blamed = if clear { odd_ranks.clone() } else { Vec::new() };
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Critical,
        confidence: confidence(view, comm, clear),
        headline,
        comm: comm.id,
        seq: Some(slot.seq),
        culprits: subjects(view, comm, &blamed),
        victims: comm
            .members
            .values()
            .filter(|m| !blamed.contains(&m.rank))
            .map(|m| Subject::of(view.state, m))
            .collect(),
        since: slot.first_ts,
        evidence: evidence(view, comm, disagreement, &blamed),
        refuted_by: "the application meaning these calls for different communicators of equal hash".to_owned(),
        next_steps: vec![format!(
            "compare what {} and the others did before #{}: a branch, a batch or a parameter that not all ranks share",
            words::ranks_noun(&odd_ranks),
            slot.seq
        )],
        chain: Vec::new(),
    })
}

fn rank_list(v: &Variant) -> Vec<u32> {
    v.ranks.ones().map(|r| r as u32).collect()
}

fn sides(variants: &[Variant]) -> String {
    variants
        .iter()
        .map(|v| format!("{} called {}", words::ranks_noun(&rank_list(v)), words::signature(&v.signature)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn difference(variants: &[Variant]) -> String {
    let differs = |f: fn(&Signature) -> i64| variants.windows(2).any(|w| f(&w[0].signature) != f(&w[1].signature));
    let mut list = Vec::new();
    for (name, get) in [
        ("functions", (|s| i64::from(s.func.code())) as fn(&Signature) -> i64),
        ("counts", |s| s.count as i64),
        ("types", |s| i64::from(s.datatype)),
        ("reductions", |s| i64::from(s.redop)),
        ("roots", |s| i64::from(s.root)),
    ] {
        if differs(get) {
            list.push(name);
        }
    }
    list.join(" and ")
}

fn subjects(view: &View<'_>, comm: &Comm, ranks: &[u32]) -> Vec<Subject> {
    ranks.iter().filter_map(|r| comm.members.get(r)).map(|m| Subject::of(view.state, m)).collect()
}

fn confidence(view: &View<'_>, comm: &Comm, clear: bool) -> Confidence {
    if clear {
        return myc001_not_launched::confidence(view, comm);
    }
    Confidence {
        level: Level::Low,
        reason: "that ranks differ is certain; which of them is wrong is not, as no side is the majority".to_owned(),
    }
}

fn evidence(view: &View<'_>, comm: &Comm, disagreement: &Disagreement, odd: &[u32]) -> Vec<Evidence> {
    let slot = &disagreement.slot;
    let mut list: Vec<Evidence> = slot
        .variants
        .iter()
        .map(|v| Evidence {
            at: slot.last_ts,
            source: Source::NcclProbe,
            text: format!(
                "#{}: {} called {}",
                slot.seq,
                words::ranks_noun(&rank_list(v)),
                words::signature(&v.signature)
            ),
        })
        .collect();
    list.push(Evidence {
        at: slot.first_ts,
        source: Source::Derived,
        text: format!(
            "{} collectives before it were seen on all known ranks, without a difference",
            disagreement.completed
        ),
    });
    list.extend(odd.iter().take(2).filter_map(|r| words::doing(view.state, comm.members.get(r)?)));
    list
}

#[cfg(test)]
mod tests {
    use mycroft_common::nccl::Func;

    use crate::rules::{Level, testing::Scene};

    #[test]
    fn another_function_names_the_odd_rank_and_nothing_else() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_with(|rank, sig| {
            if rank == 2 {
                sig.func = Func::AllGather;
            }
        });
        s.pass(5000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.seq), ("MYC004", Some(20)));
        assert_eq!(v.culprits.iter().map(|c| c.rank).collect::<Vec<_>>(), [2]);
        assert!(v.headline.contains("AllGather") && v.headline.contains("functions"), "{}", v.headline);
    }

    #[test]
    fn another_count_too_even_when_the_job_goes_on() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_with(|rank, sig| sig.count += u64::from(rank == 0));
        s.rounds(5, 100);
        let v = s.only_verdict();
        assert_eq!(v.culprits[0].rank, 0);
        assert!(v.headline.contains("counts differ"), "{}", v.headline);
        s.rounds(200, 10);
        assert!(s.verdicts().is_empty(), "forgiven once the job has shown that it goes on");
    }

    #[test]
    fn two_against_two_blames_nobody() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_with(|rank, sig| sig.count += u64::from(rank % 2));
        s.pass(1000);
        let v = s.only_verdict();
        assert!(v.culprits.is_empty());
        assert_eq!(v.confidence.level, Level::Low);
        assert!(v.headline.contains("no side is the majority"));
    }
}
