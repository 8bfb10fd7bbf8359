//! MYC011: the creation of a communicator does not end.

use std::collections::BTreeMap;

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, words};
use crate::model::{
    Comm, InitPhase, Member, Process,
    ids::{Nanos, SECOND},
};

/// Longer than this it is no longer slow, but stuck: NCCL's own retries of a connection end after a minute or so.
const CRITICAL: Nanos = 60 * SECOND;
/// Nobody else joins within this time after the last did.
const GRACE: Nanos = 5 * SECOND;

pub const RULE: Rule = Rule {
    id: "MYC011",
    name: "init-stuck",
    summary: "Ranks wait in the creation of a communicator for a rank that has not joined, or that failed.",
    doc: "\
## Meaning
These ranks are inside `ncclCommInitRank` (or split, shrink). It ends only when all have joined. Named is the rank that
has not called it, or whose call ended with an error; its process is named too if there is only one that it can be, or if
the launcher numbered the processes as the communicator numbers its ranks. NCCL 2.21 and earlier give a communicator its
hash only when all have joined: this rule does not see a creation that never gets that far there.

## Impact
The job does not start. Frameworks give up after 10 to 30 minutes, with an error about the store or a socket.

## Diagnosis
A rank that never calls is busy elsewhere: data preparation before the first collective, another GPU index, an exception.
If all ranks have joined and none comes out, look at the network: a firewall on NCCL's ports, the wrong interface
(`NCCL_SOCKET_IFNAME`), a listener that something else talks to.

## Mitigation
Prepare data before or after, on all ranks alike. Raise the timeout if it is known to be long.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.state.comms.values().filter_map(|c| judge(view, c)).collect()
}

fn began(member: &Member) -> Option<Nanos> {
    if let InitPhase::Running(at) = member.init { Some(at) } else { None }
}

fn judge(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let inside: Vec<&Member> = view.living(comm).filter(|m| began(m).is_some()).collect();
    let since = inside.iter().filter_map(|m| began(m)).min()?;
    let newest = inside.iter().filter_map(|m| began(m)).max()?;
    let waited = view.now().saturating_sub(since);
    let failed: Vec<&Member> =
        comm.members.values().filter(|m| matches!(m.init, InitPhase::Done(code) if code != 0)).collect();
    let patience = if failed.is_empty() { view.patience.unknown } else { view.patience.least };
    if waited < patience || view.now().saturating_sub(newest) < patience.min(GRACE) {
        return None;
    }
    let absent = comm.unseen();
    let (culprits, what) = if failed.is_empty() {
        (absentees(view, comm, &absent), absent_text(view, &absent))
    } else {
        let ranks: Vec<u32> = failed.iter().map(|m| m.rank).collect();
        let subjects = failed.iter().map(|m| Subject::of(view.state, m)).collect();
        (subjects, format!("{} failed in it", words::ranks_noun(&ranks)))
    };
    let ranks: Vec<u32> = inside.iter().map(|m| m.rank).collect();
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if waited >= CRITICAL { Severity::Critical } else { Severity::Warning },
        confidence: confidence(view, &failed, &absent, &culprits),
        headline: format!(
            "{} {} in the creation of {} for {}: {what}",
            words::ranks_noun(&ranks),
            if ranks.len() == 1 { "has been" } else { "have been" },
            words::comm(comm),
            words::seconds(waited),
        ),
        comm: comm.id,
        seq: None,
        culprits,
        victims: inside.iter().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence: evidence(view, &inside, &failed, &absent),
        refuted_by: "the creation ending on these ranks".to_owned(),
        next_steps: vec![
            "py-spy dump --pid PID   # of the rank that has not joined".to_owned(),
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET shows which connection is tried".to_owned(),
        ],
        chain: Vec::new(),
    })
}

fn absent_text(view: &View<'_>, absent: &[u32]) -> String {
    if absent.is_empty() {
        return "insufficient evidence: all ranks have joined, and none comes out".to_owned();
    }
    let others = if view.state.hosts.len() > 1 { "" } else { " on this host" };
    format!("{} {} not joined it{others}", words::ranks_noun(absent), if absent.len() == 1 { "has" } else { "have" })
}

/// Living processes that run the program of this communicator's, with its NCCL, and are not in it and creating none.
fn idle_processes<'v>(view: &View<'v>, comm: &Comm) -> Vec<&'v Process> {
    let here = |p: &Process| comm.members.values().any(|m| m.proc == p.id);
    let kin = |p: &Process| {
        let like = |m: &Member| view.process(m).is_none_or(|o| (&o.name, &o.nccl) == (&p.name, &p.nccl));
        comm.members.values().any(like)
    };
    let joining = |p: &Process| view.state.joining.keys().any(|(proc, _)| *proc == p.id);
    view.state.processes.values().filter(|p| p.alive() && !here(p) && !joining(p) && kin(p)).collect()
}

/// Processes of ranks that have not joined, by the number that the launcher gave them: if that is the rank in this
/// communicator of all that have joined, it is that of the others, too.
fn by_job_rank<'v>(view: &View<'v>, comm: &Comm, idle: &[&'v Process]) -> BTreeMap<u32, &'v Process> {
    let agrees = |m: &Member| view.process(m).and_then(|p| p.job_rank) == Some(m.rank);
    if comm.members.is_empty() || !comm.members.values().all(agrees) {
        return BTreeMap::new();
    }
    let mut numbered: BTreeMap<u32, Option<&Process>> = BTreeMap::new();
    for p in idle {
        let Some(rank) = p.job_rank else { continue };
        // Two with one number are of different jobs; which is of this one is not known.
        numbered.entry(rank).and_modify(|known| *known = None).or_insert(Some(*p));
    }
    numbered.into_iter().filter_map(|(rank, p)| Some((rank, p?))).collect()
}

/// A rank that never called is known by its process if one process is left, or by its number in the job.
fn absentees(view: &View<'_>, comm: &Comm, absent: &[u32]) -> Vec<Subject> {
    const MOST: usize = 64;
    let idle = idle_processes(view, comm);
    let numbered = by_job_rank(view, comm, &idle);
    let subject = |rank: u32| {
        let process = match (absent, idle.as_slice()) {
            ([_], [process]) => Some(*process),
            _ => numbered.get(&rank).copied(),
        };
        Subject {
            host: process.map_or_else(String::new, |p| view.state.host_name(p.id.host).to_owned()),
            pid: process.map_or(0, |p| p.id.pid),
            rank,
            job_rank: process.and_then(|p| p.job_rank),
            cuda_dev: -1,
            bus_id: String::new(),
        }
    };
    absent.iter().take(MOST).map(|rank| subject(*rank)).collect()
}

fn confidence(view: &View<'_>, failed: &[&Member], absent: &[u32], culprits: &[Subject]) -> Confidence {
    let (level, reason) = if !failed.is_empty() {
        (Level::High, "the creation returned an error there")
    } else if absent.is_empty() {
        (Level::Low, "which connection is missing is not seen from outside")
    } else if culprits.iter().any(|c| c.pid != 0) {
        (Level::High, "all other ranks have joined; these processes have NCCL loaded, and have not")
    } else if view.state.hosts.len() > 1 {
        (Level::Medium, "all other ranks were seen to join; the process of the missing one is not known")
    } else {
        (Level::Medium, "the missing ranks may be on other hosts")
    };
    Confidence { level, reason: reason.to_owned() }
}

fn evidence(view: &View<'_>, inside: &[&Member], failed: &[&Member], absent: &[u32]) -> Vec<Evidence> {
    const SHOWN: usize = 4;
    let mut list = Vec::new();
    for m in failed.iter().take(SHOWN) {
        let InitPhase::Done(code) = m.init else { continue };
        list.push(Evidence {
            at: view.now(),
            source: Source::of_calls(view.state, m),
            text: format!("{}: creation returned {}", words::rank_and_pid(view, m), words::nccl_result(code)),
        });
    }
    for m in inside.iter().take(SHOWN) {
        list.extend(began(m).map(|at| Evidence {
            at,
            source: Source::of_calls(view.state, m),
            text: format!("{} began to create it", words::rank_and_pid(view, m)),
        }));
    }
    if let Some(comm) = inside.first().and_then(|m| {
        let mut of = view.state.memberships(m.proc).filter(|(_, o)| o.ptr == m.ptr);
        of.next().map(|(c, _)| c)
    }) {
        for p in idle_processes(view, comm).iter().take(SHOWN).filter(|_| !absent.is_empty()) {
            let doing = words::activity(Some(p)).map_or_else(String::new, |(_, text)| format!(" and is {text}"));
            list.push(Evidence {
                at: view.now(),
                source: Source::Proc,
                text: format!("pid {} ({}) has NCCL loaded, has not joined{doing}", p.id.pid, p.name),
            });
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use crate::rules::{Level, testing::Scene};

    #[test]
    fn the_rank_that_does_not_join_is_named() {
        let mut s = Scene::ranks(4);
        for r in [0, 1, 3] {
            s.join(r);
        }
        s.pass(9000);
        assert!(s.verdicts().is_empty());
        s.pass(2000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.confidence.level), ("MYC011", Level::High), "{v:#?}");
        assert_eq!((v.culprits[0].rank, v.culprits[0].pid), (2, 102));
        s.join(2);
        for r in 0..4 {
            s.joined(r, 0);
        }
        s.pass(1500);
        assert!(s.verdicts().is_empty());
    }

    #[test]
    fn a_process_of_another_program_is_not_taken_for_the_missing_rank() {
        let mut s = Scene::ranks(4);
        for r in [0, 1, 3] {
            s.join(r);
        }
        s.rename(2, "sglang");
        s.pass(11_000);
        let v = s.only_verdict();
        assert_eq!((v.culprits[0].rank, v.culprits[0].pid), (2, 0), "{v:#?}");
    }

    #[test]
    fn one_that_failed_is_named_sooner() {
        let mut s = Scene::ranks(4);
        for r in 0..4 {
            s.join(r);
        }
        s.joined(1, 1);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank), ("MYC011", 1), "{v:#?}");
    }

    #[test]
    fn all_in_and_nobody_out_is_not_blamed_on_anyone() {
        let mut s = Scene::ranks(2);
        s.join(0);
        s.join(1);
        s.pass(11_000);
        let v = s.only_verdict();
        assert!(v.culprits.is_empty() && v.headline.contains("insufficient evidence"), "{}", v.headline);
    }
}
