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
The others wait for ever, or fail: a rank that leaves closes its connections, which NCCL before 2.27 tells them as an error.

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

/// Ranks that left, and those that launched more than they did.
struct Parted<'c> {
    /// The last collective of those that left first.
    last: u64,
    /// When the first of them left.
    left: Nanos,
    leavers: Vec<&'c Member>,
    waiting: Vec<&'c Member>,
    /// Ended by an error: the connections to a rank that has left are closed, which some releases take for a failure.
    failed: Vec<&'c Member>,
}

impl<'c> Parted<'c> {
    fn of(view: &View<'_>, comm: &'c Comm) -> Option<Self> {
        let launched = |m: &Member| m.launched.filter(|_| m.absolute).map(|l| l.seq);
        let gone = || comm.members.values().filter_map(|m| Some((m, left(m)?, launched(m)?)));
        let last = gone().map(|(.., seq)| seq).min()?;
        let leavers: Vec<&Member> = gone().filter(|(.., seq)| *seq == last).map(|(m, ..)| m).collect();
        let left = leavers.iter().filter_map(|m| left(m)).min()?;
        let later = |m: &&Member| launched(m).is_some_and(|seq| seq > last);
        let waiting = view.living(comm).filter(later).collect();
        let failed = comm.members.values().filter(later).filter(|m| failed_at(view, m).is_some_and(|at| at >= left));
        let parted = Self { last, left, leavers, waiting, failed: failed.collect() };
        // What went wrong before a rank left may be why it left.
        let wrong = |m: &Member| m.error.map(|(at, _)| at).or_else(|| failed_at(view, m)).is_some_and(|at| at < left);
        (!comm.members.values().any(wrong)).then_some(parted)
    }

    /// Since when others are in an operation that will not end.
    fn since(&self) -> Option<Nanos> {
        self.waiting.iter().chain(&self.failed).filter_map(|m| m.launched).map(|l| l.ts).min()
    }
}

/// When a rank gave up: it aborted the communicator, or its process ended by an error with the communicator open.
fn failed_at(view: &View<'_>, member: &Member) -> Option<Nanos> {
    match member.end {
        Some(End::Aborted(at)) => Some(at),
        Some(_) => None,
        None => view.process(member)?.gone.filter(|gone| gone.exit.is_failure()).map(|gone| gone.at),
    }
}

/// Whether the errors and ends that follow are those of ranks whose peer has left.
pub(super) fn explains(view: &View<'_>, comm: &Comm) -> bool {
    Parted::of(view, comm).is_some_and(|p| !p.failed.is_empty() || !p.waiting.is_empty())
}

fn judge(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let parted = Parted::of(view, comm)?;
    let (last, leavers) = (parted.last, &parted.leavers);
    let since = parted.since()?;
    let waited = view.now().saturating_sub(since.max(parted.left));
    if parted.failed.is_empty() && waited < comm.rhythm.patience(view.patience) {
        return None;
    }
    let evidence = leavers.iter().filter_map(|m| {
        Some(Evidence {
            at: left(m)?,
            source: Source::of_calls(view.state, m),
            text: format!("{} left the communicator after collective #{last}", words::rank_and_pid(view, m)),
        })
    });
    let victims: Vec<&Member> = parted.waiting.iter().chain(&parted.failed).copied().collect();
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if parted.failed.is_empty() && waited < CRITICAL { Severity::Warning } else { Severity::Critical },
        confidence: Confidence { level: Level::High, reason: "its call to leave was seen".to_owned() },
        headline: format!(
            "{} left {} after #{last}; {}",
            shared::who(view, leavers),
            words::comm(comm),
            fate(comm, &parted, waited)
        ),
        comm: comm.id,
        seq: Some(last + 1),
        culprits: leavers.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: victims.iter().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence: evidence.chain(parted.failed.iter().filter_map(|m| failure(view, m))).collect(),
        refuted_by: "the others leaving as well".to_owned(),
        next_steps: vec!["compare the number of steps or batches of these ranks".to_owned()],
        chain: Vec::new(),
    })
}

/// What became of the others.
fn fate(comm: &Comm, parted: &Parted<'_>, waited: Nanos) -> String {
    let ranks = |of: &[&Member]| of.iter().map(|m| m.rank).collect::<Vec<_>>();
    let op = words::expected(comm, parted.last + 1);
    let (waiting, failed) = (ranks(&parted.waiting), ranks(&parted.failed));
    if failed.is_empty() {
        let have = if waiting.len() == 1 { "has" } else { "have" };
        return format!("{} {have} waited {} in {op}", words::ranks_noun(&waiting), words::seconds(waited));
    }
    let rest = if waiting.is_empty() { String::new() } else { format!(", {} still wait", words::ranks_noun(&waiting)) };
    format!("{} failed in {op}{rest}", words::ranks_noun(&failed))
}

fn failure(view: &View<'_>, member: &Member) -> Option<Evidence> {
    let at = failed_at(view, member)?;
    let gone = view.process(member).and_then(|p| p.gone).filter(|_| member.end.is_none());
    let (source, how) = match gone {
        Some(gone) => (Source::PidFd, words::exit(gone.exit)),
        None => (Source::of_calls(view.state, member), "aborted the communicator".to_owned()),
    };
    Some(Evidence { at, source, text: format!("{} {how}", words::rank_and_pid(view, member)) })
}

#[cfg(test)]
mod tests {
    use crate::{model::Exit, rules::testing::Scene};

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

    #[test]
    fn ranks_that_fail_because_their_peer_left_are_its_victims() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.destroy(3);
        s.round_without(&[3], 10);
        for rank in 0..3 {
            s.die(rank, Exit::Code(3));
        }
        s.pass(10);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank, v.victims.len()), ("MYC019", 3, 3), "{v:#?}");
        assert!(v.headline.contains("ranks 0-2 failed in AllReduce #20"), "{}", v.headline);
    }

    #[test]
    fn a_rank_that_leaves_after_an_error_is_not_the_cause() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_without(&[3], 10);
        s.error(1, 2);
        s.pass(500);
        s.destroy(3);
        s.pass(5000);
        assert!(s.verdicts().iter().all(|v| v.rule != "MYC019"), "{:#?}", s.verdicts());
    }
}
