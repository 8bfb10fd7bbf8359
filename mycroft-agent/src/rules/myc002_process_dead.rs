//! MYC002: the process of a rank is gone while its communicator lives.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc019_left_early, words};
use crate::model::{
    Comm, Exit, Member, Origin,
    ids::{MILLISECOND, Nanos, SECOND},
    process::Gone,
};

/// After a death, the time for peers to end too: a job that is torn down ends rank by rank.
const GRACE: Nanos = 500 * MILLISECOND;
/// The same where no one visibly waits for the dead rank.
const GRACE_QUIET: Nanos = SECOND;

pub const RULE: Rule = Rule {
    id: "MYC002",
    name: "process-dead",
    summary: "The process of a rank is gone while other ranks of its communicator live on.",
    doc: "\
## Meaning
A rank's process ended without `ncclCommDestroy` or `ncclCommAbort`: it was killed by a signal, it exited with
an error, or it left while others still wait for a collective that it never launched. Of several deaths in one
communicator the first is named; later ones are mostly its consequence.

## Impact
No collective of this communicator can end again. NCCL tells the survivors nothing on its own; they wait until
their watchdog fires.

## Diagnosis
The verdict gives the exit status where the kernel tells it (Linux 6.15 and later). Signal 9 is often the kernel's OOM
killer or the scheduler: see `dmesg` and the memory events of the cgroup. Signals 6, 7 and 11 are crashes: look
for a core dump and the last lines of that rank's log.

## Mitigation
Abort and restart the job now: it can't recover. Find why that one process ended before the next run.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.state.comms.values().filter(|c| !view.disagrees(c)).filter_map(|c| judge(view, c)).collect()
}

/// The first of the ranks that died with the communicator open.
fn first_dead<'c>(view: &View<'_>, comm: &'c Comm) -> Option<(&'c Member, Gone)> {
    comm.active().filter_map(|m| Some((m, view.process(m)?.gone?))).min_by_key(|(m, gone)| (gone.at, m.rank))
}

/// Whether a job without survivors was ended as a whole: by an operator's or scheduler's signal, or by all ranks in
/// the same way. Else the first end pulled the others along: some releases of NCCL end the survivors with an error.
fn ended_together(view: &View<'_>, comm: &Comm, first: Gone) -> bool {
    let by_operator = matches!(first.exit, Exit::Signal(1 | 2 | 15));
    let alike = comm.active().all(|m| view.process(m).and_then(|p| p.gone).is_some_and(|g| g.exit == first.exit));
    by_operator || alike || !first.exit.is_failure()
}

fn judge(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let (dead, gone) = first_dead(view, comm)?;
    let survivors: Vec<&Member> = view.living(comm).collect();
    if survivors.is_empty() && ended_together(view, comm, gone) || myc019_left_early::explains(view, comm) {
        return None;
    }
    let frontier = view.graph.frontiers.get(&comm.id).filter(|f| f.missing.iter().any(|m| m.rank == dead.rank));
    let quiet_since = gone.at.max(comm.last_launch);
    let due = match frontier {
        Some(f) => gone.at.max(f.first_launch.unwrap_or(0)).saturating_add(GRACE),
        // A rank that ends well before the others leave is ordinary; one that failed is not.
        None if gone.exit.is_failure() || given_up(view, dead) => quiet_since.saturating_add(GRACE_QUIET),
        None => return None,
    };
    if view.now() < due {
        return None;
    }
    let dead_since = view.now().saturating_sub(gone.at);
    let state_of_others = match frontier {
        Some(f) => format!(
            "{} {} in {}",
            words::ranks_noun(&f.waiting),
            if f.waiting.len() == 1 { "waits" } else { "wait" },
            words::expected(comm, f.seq)
        ),
        None if survivors.is_empty() => "all other known ranks ended after it".to_owned(),
        None => format!("{} of its peers live on and launch nothing", survivors.len()),
    };
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Critical,
        confidence: confidence(view, dead),
        headline: format!(
            "{} is dead: {}, {} ago; {state_of_others} of {}",
            Subject::of(view.state, dead),
            words::exit(gone.exit),
            words::seconds(dead_since),
            words::comm(comm)
        ),
        comm: comm.id,
        seq: frontier.map(|f| f.seq),
        culprits: vec![Subject::of(view.state, dead)],
        victims: survivors.iter().map(|m| Subject::of(view.state, m)).collect(),
        since: gone.at,
        evidence: evidence(view, comm, dead, gone),
        refuted_by: format!("pid {} being alive on its host", dead.proc.pid),
        next_steps: vec![
            format!("dmesg -T | grep -iE 'oom|killed process|{}'", dead.proc.pid),
            "abort and restart the job: this communicator can't recover".to_owned(),
        ],
        chain: Vec::new(),
    })
}

/// It is not our kernel that tells, but NCCL's RAS.
fn given_up(view: &View<'_>, member: &Member) -> bool {
    view.process(member).is_some_and(|p| p.origin == Origin::Ras)
}

fn confidence(view: &View<'_>, dead: &Member) -> Confidence {
    if given_up(view, dead) {
        let reason = "NCCL's RAS gave the process up; one that is stopped or cut off looks the same to it".to_owned();
        return Confidence { level: Level::Medium, reason };
    }
    Confidence { level: Level::High, reason: "the kernel reported the end of this very process".to_owned() }
}

fn evidence(view: &View<'_>, comm: &Comm, dead: &Member, gone: Gone) -> Vec<Evidence> {
    if given_up(view, dead) {
        let text = format!("pid {} is considered dead: it has not answered RAS for a minute", dead.proc.pid);
        return vec![Evidence { at: gone.at, source: Source::Ras, text }];
    }
    let mut list = vec![
        Evidence {
            at: gone.at,
            source: Source::PidFd,
            text: format!("pid {} {}", dead.proc.pid, words::exit(gone.exit)),
        },
        words::last_launch(view.state, dead),
        Evidence {
            at: gone.at,
            source: Source::NcclProbe,
            text: format!("rank {} had neither destroyed nor aborted the communicator", dead.rank),
        },
    ];
    let later: Vec<u32> = comm.active().filter(|m| m.rank != dead.rank && !view.alive(m)).map(|m| m.rank).collect();
    if !later.is_empty() {
        list.push(Evidence {
            at: view.now(),
            source: Source::PidFd,
            text: format!("{} ended after it", words::ranks_noun(&later)),
        });
    }
    list
}

#[cfg(test)]
mod tests {
    use crate::{model::Exit, rules::testing::Scene};

    #[test]
    fn a_killed_rank_is_named_whether_or_not_others_wait_ahead() {
        for ahead in [false, true] {
            let mut s = Scene::ranks(4);
            s.rounds(20, 100);
            s.die(3, Exit::Signal(9));
            if ahead {
                s.round_without(&[3], 0);
            }
            s.pass(1200);
            let v = s.only_verdict();
            assert_eq!((v.rule, v.culprits[0].rank), ("MYC002", 3));
            assert!(v.headline.contains("killed by signal 9 (SIGKILL)"), "{}", v.headline);
        }
    }

    #[test]
    fn the_first_death_is_the_cause() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.die(1, Exit::Signal(11));
        s.pass(50);
        s.die(0, Exit::Code(1));
        s.pass(1500);
        let v = s.only_verdict();
        assert_eq!(v.culprits[0].rank, 1);
        assert!(v.evidence.iter().any(|e| e.text.contains("rank 0 ended after it")));
    }

    #[test]
    fn a_death_that_pulls_all_others_along_is_still_the_cause() {
        let mut s = Scene::ranks(3);
        s.rounds(20, 100);
        s.die(1, Exit::Signal(9));
        s.pass(30);
        s.die(0, Exit::Code(3));
        s.die(2, Exit::Code(3));
        s.pass(1500);
        let v = s.only_verdict();
        assert_eq!(v.culprits[0].rank, 1);
        assert!(v.headline.contains("ended after it"), "{}", v.headline);
    }

    #[test]
    fn a_job_that_is_cancelled_draws_nothing() {
        for signal in [9, 15] {
            let mut s = Scene::ranks(3);
            s.rounds(20, 100);
            (0..3).for_each(|r| s.die(r, Exit::Signal(signal)));
            s.pass(3000);
            assert!(s.verdicts().is_empty());
        }
    }

    #[test]
    fn an_orderly_end_draws_nothing() {
        let mut s = Scene::ranks(3);
        s.rounds(20, 100);
        s.destroy(0);
        s.die(0, Exit::Code(0));
        s.pass(5000);
        s.die(1, Exit::Code(0)); // without destroy, as scripts do
        s.pass(5000);
        assert!(s.verdicts().is_empty());
        s.die(2, Exit::Code(0));
        s.pass(5000);
        assert!(s.verdicts().is_empty());
    }

    #[test]
    fn leaving_early_with_code_0_is_a_finding_when_others_wait() {
        let mut s = Scene::ranks(3);
        s.rounds(20, 100);
        s.die(1, Exit::Code(0));
        s.round_without(&[1], 0);
        s.pass(1000);
        assert_eq!(s.only_verdict().rule, "MYC002");
    }
}
