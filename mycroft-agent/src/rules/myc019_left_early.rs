//! MYC019: a rank has left the communicator, and others wait in an operation that it did not launch.

use super::{
    Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched as shared, words,
};
use crate::model::{
    Comm, End, Member,
    ids::{Nanos, SECOND},
};

/// Longer than this it is no longer a hiccup.
const CRITICAL: Nanos = 10 * SECOND;

pub const RULE: Rule = Rule {
    id: "MYC019",
    name: "left-early",
    summary: "A rank destroyed the communicator before an operation that others launched.",
    doc: "\
## Meaning
The rank called `ncclCommDestroy` (or Finalize) after its last collective, and the others have launched a later one. It
left its loop sooner than they: fewer batches, an early stop, an evaluation on some ranks only.

## Impact
The others wait for ever.

## Diagnosis
Compare the number of steps of the ranks: an uneven split of the data is the usual reason.

## Mitigation
Make all ranks run the same number of steps (`drop_last`, join contexts, padding).
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.state.comms.values().filter(|c| !view.disagrees(c)).filter_map(|c| judge(view, c)).collect()
}

/// When a rank left by its own will.
fn left(member: &Member) -> Option<Nanos> {
    match member.end {
        Some(End::Finalized(at) | End::Destroyed(at)) => Some(at),
        _ => None,
    }
}

fn judge(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let gone: Vec<(&Member, u64)> = comm
        .members
        .values()
        .filter(|m| left(m).is_some() && m.absolute)
        .filter_map(|m| Some((m, m.launched?.seq)))
        .collect();
    let last = gone.iter().map(|(_, seq)| *seq).min()?;
    let waiting: Vec<&Member> =
        view.living(comm).filter(|m| m.absolute && m.launched.is_some_and(|l| l.seq > last)).collect();
    let since = waiting.iter().filter_map(|m| m.launched).map(|l| l.ts).min()?;
    let waited = view.now().saturating_sub(since.max(gone.iter().filter_map(|(m, _)| left(m)).max()?));
    if waited < comm.rhythm.patience(view.patience) {
        return None;
    }
    let culprits: Vec<&Member> = gone.iter().filter(|(_, seq)| *seq == last).map(|(m, _)| *m).collect();
    let ranks: Vec<u32> = waiting.iter().map(|m| m.rank).collect();
    let evidence = culprits.iter().filter_map(|m| {
        Some(Evidence {
            at: left(m)?,
            source: Source::of_calls(view.state, m),
            text: format!("{} left the communicator after collective #{last}", words::rank_and_pid(view, m)),
        })
    });
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if waited >= CRITICAL { Severity::Critical } else { Severity::Warning },
        confidence: Confidence { level: Level::High, reason: "its call to leave was seen".to_owned() },
        headline: format!(
            "{} left {} after #{last}; {} {} waited {} in {}",
            shared::who(view, &culprits),
            words::comm(comm),
            words::ranks_noun(&ranks),
            if ranks.len() == 1 { "has" } else { "have" },
            words::seconds(waited),
            words::expected(comm, last + 1),
        ),
        comm: comm.id,
        seq: Some(last + 1),
        culprits: culprits.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: waiting.iter().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence: evidence.collect(),
        refuted_by: "the others leaving as well".to_owned(),
        next_steps: vec!["compare the number of steps or batches of these ranks".to_owned()],
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn a_rank_that_leaves_before_the_others_last_collective() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.destroy(3);
        s.round_without(&[3], 100);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank, v.seq), ("MYC019", 3, Some(20)), "{v:#?}");
    }

    #[test]
    fn leaving_after_the_last_is_the_end_of_the_job() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.destroy(3);
        s.pass(5000);
        assert!(s.verdicts().is_empty());
    }
}
