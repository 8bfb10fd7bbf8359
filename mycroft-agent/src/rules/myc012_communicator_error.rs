//! MYC012: NCCL holds an error for a communicator, or a rank has aborted it, while others wait.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc019_left_early, words};
use crate::model::{
    Comm, End, Member,
    ids::{Nanos, SECOND},
};

/// A job that is torn down aborts all its ranks within this time.
const GRACE: Nanos = 3 * SECOND;
/// `ncclRemoteError`: the fault is a peer's.
const REMOTE: i32 = 6;
/// Errors nearer to each other than this have no order: they come from different threads, or hosts.
const TOGETHER: Nanos = SECOND / 10;
/// An error of a peer's is told when the peer has had this long to show its own, or its death.
const PEER: Nanos = SECOND;

pub const RULE: Rule = Rule {
    id: "MYC012",
    name: "communicator-error",
    summary: "NCCL reported an error for a rank, or a rank aborted the communicator, while others still wait in it.",
    doc: "\
## Meaning
NCCL keeps an asynchronous error for each communicator (`ncclCommGetAsyncError`), or a rank called `ncclCommAbort` and
others did not follow. Named is the rank that had it first. `remote error` says that a peer failed, so a rank with
that error alone is a victim. From 2.26 to 2.30 the proxy of NCCL drops a transfer that fails and forgets its error: such
a failure isn't seen here, but as a transfer that stands still.

## Impact
The communicator can't be used any more; ranks that do not know of it wait for ever.

## Diagnosis
The error's kind tells where to look: unhandled CUDA error (GPU, Xid), system error (sockets, shared memory, files),
internal error (a defect of NCCL or memory that was written over), invalid usage (arguments).

## Mitigation
Abort on all ranks and restart. Mend what the first rank reports; its own log (`NCCL_DEBUG=WARN`) has the line.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.state.comms.values().filter_map(|c| error(view, c).or_else(|| abort(view, c))).collect()
}

fn error(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    // A dead rank explains the errors of those that were connected to it, and is told by itself.
    let death = comm.members.values().filter_map(|m| view.process(m)?.gone).map(|gone| gone.at).min();
    let explained = |at: Nanos| death.is_some_and(|d| d <= at + TOGETHER + clock_error(view, comm));
    let errors = comm.members.values().filter_map(|m| m.error.map(|(at, code)| (at, code, m)));
    let mut errors: Vec<(Nanos, i32, &Member)> = errors.filter(|(at, ..)| !explained(*at)).collect();
    errors.sort_by_key(|(at, _, m)| (*at, m.rank));
    let own: Vec<&(Nanos, i32, &Member)> = errors.iter().filter(|(_, code, _)| *code != REMOTE).collect();
    let first = own.first().map(|(at, ..)| *at);
    let culprits: Vec<&Member> = own
        .iter()
        .filter(|(at, ..)| first.is_some_and(|f| at.saturating_sub(f) <= TOGETHER + clock_error(view, comm)))
        .map(|(_, _, m)| *m)
        .collect();
    let (since, code, told) = own.first().copied().or_else(|| errors.first())?;
    let early = culprits.is_empty() && view.now().saturating_sub(*since) < PEER;
    // Those that a peer has left fail without being broken.
    let left = culprits.is_empty() && myc019_left_early::explains(view, comm);
    if early || left || view.living(comm).next().is_none() {
        return None;
    }
    let headline = if culprits.is_empty() {
        format!(
            "insufficient evidence: {} reports {} in {}, which says that a peer failed, and no peer that did is seen",
            words::rank_and_pid(view, told),
            words::nccl_result(*code),
            words::comm(comm)
        )
    } else {
        format!(
            "{} had {} in {}, {} ago{}",
            Subject::of(view.state, told),
            words::nccl_result(*code),
            words::comm(comm),
            words::seconds(view.now().saturating_sub(*since)),
            if errors.len() > 1 {
                format!(", the first of {} ranks with an error", errors.len())
            } else {
                String::new()
            }
        )
    };
    let evidence = errors.iter().take(8).map(|(at, code, m)| Evidence {
        at: *at,
        source: Source::NcclMemory,
        text: format!("{} holds {}", words::rank_and_pid(view, m), words::nccl_result(*code)),
    });
    Some(verdict(view, comm, headline, &culprits, *since, evidence.collect()))
}

/// Some have aborted and others not: whoever was first is where it began.
fn abort(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let aborted = comm.members.values().filter_map(|m| match m.end {
        Some(End::Aborted(at)) => Some((at, m)),
        _ => None,
    });
    let mut aborted: Vec<(Nanos, &Member)> = aborted.collect();
    aborted.sort_by_key(|(at, m)| (*at, m.rank));
    let (since, first) = *aborted.first()?;
    let newest = aborted.last()?.0;
    let left: Vec<&Member> = view.living(comm).filter(|m| m.last_launch() <= newest).collect();
    if left.is_empty() || view.now().saturating_sub(newest) < GRACE {
        return None;
    }
    let ranks: Vec<u32> = left.iter().map(|m| m.rank).collect();
    let headline = format!(
        "{} aborted {} {} ago, and {} {} not",
        Subject::of(view.state, first),
        words::comm(comm),
        words::seconds(view.now().saturating_sub(since)),
        words::ranks_noun(&ranks),
        if ranks.len() == 1 { "has" } else { "have" },
    );
    let evidence = aborted.iter().take(8).map(|(at, m)| Evidence {
        at: *at,
        source: Source::of_calls(view.state, m),
        text: format!("{} called ncclCommAbort", words::rank_and_pid(view, m)),
    });
    Some(verdict(view, comm, headline, &[first], since, evidence.collect()))
}

/// Bound of what times of the communicator's hosts are worth against each other.
fn clock_error(view: &View<'_>, comm: &Comm) -> Nanos {
    2 * comm.active().filter_map(|m| view.state.quality.get(&m.proc.host)).map(|q| q.clock_error).max().unwrap_or(0)
}

fn verdict(
    view: &View<'_>,
    comm: &Comm,
    headline: String,
    culprits: &[&Member],
    since: Nanos,
    evidence: Vec<Evidence>,
) -> Verdict {
    let victims = view.living(comm).filter(|m| culprits.iter().all(|c| c.rank != m.rank));
    let (level, reason) = match culprits {
        [] => (Level::Low, "the rank whose failure the others report is not in sight".to_owned()),
        [_] => (Level::High, "its error came first".to_owned()),
        many => (Level::Medium, format!("the errors of {} ranks came too close together to have an order", many.len())),
    };
    Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Critical,
        confidence: Confidence { level, reason },
        headline,
        comm: comm.id,
        seq: None,
        culprits: culprits.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: victims.map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence,
        refuted_by: "an earlier error on another rank".to_owned(),
        next_steps: vec!["abort and restart: a communicator with an error can't be used again".to_owned()],
        chain: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{model::Exit, rules::testing::Scene};

    #[test]
    fn the_first_error_is_the_cause_and_remote_errors_are_not() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.error(0, 6);
        s.pass(500);
        s.error(2, 1);
        s.pass(500);
        s.error(3, 2);
        s.pass(1100);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits.len(), v.culprits[0].rank), ("MYC012", 1, 2), "{v:#?}");
    }

    #[test]
    fn remote_errors_alone_blame_nobody() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.error(0, 6);
        s.pass(900);
        assert!(s.verdicts().is_empty(), "the peer may still show its own");
        s.pass(200);
        let v = s.only_verdict();
        assert!(v.culprits.is_empty() && v.headline.starts_with("insufficient evidence"), "{}", v.headline);
    }

    #[test]
    fn errors_that_a_death_leaves_are_not_its_cause() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_without(&[1], 100);
        s.die(1, Exit::Signal(9));
        s.pass(200);
        s.error(0, 6);
        s.error(2, 2);
        s.pass(3000);
        assert_eq!(s.only_verdict().rule, "MYC002");
    }

    #[test]
    fn an_error_before_a_death_is_its_cause() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.error(1, 1);
        s.pass(500);
        s.die(1, Exit::Code(1));
        s.pass(200);
        s.error(0, 6);
        s.pass(2000);
        let v = s.verdicts().iter().find(|v| v.rule == "MYC012").unwrap();
        assert_eq!(v.culprits.iter().map(|c| c.rank).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn an_abort_that_others_do_not_follow() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.abort(1);
        s.pass(2000);
        assert!(s.verdicts().is_empty(), "they may follow");
        s.pass(1500);
        assert_eq!((s.only_verdict().rule, s.only_verdict().culprits[0].rank), ("MYC012", 1));
        for r in [0, 2, 3] {
            s.abort(r);
        }
        s.pass(1500);
        assert!(s.verdicts().is_empty(), "torn down");
    }
}
