//! MYC001: a living rank has not launched a collective for which the others wait.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, words};
use crate::{
    graph::Frontier,
    model::{
        Comm, Member,
        ids::{Nanos, SECOND},
    },
};

/// Later than this it is no longer a hiccup.
const CRITICAL: Nanos = 10 * SECOND;

pub const RULE: Rule = Rule {
    id: "MYC001",
    name: "rank-not-launched",
    summary: "A living rank has not launched a collective for which the other ranks wait.",
    doc: "\
## Meaning
Every other known rank of the communicator has called collective #n; this one has not, for longer than the
communicator's own habits allow (three times the largest recent lateness, at least 2 s and at most 60 s; 10 s
while fewer than eight collectives have been seen). It waits for nobody in another communicator, so it is the
cause and not a victim.

## Impact
A collective ends only when all ranks have joined it. The whole job stands still, and in 10 to 30 minutes the
watchdogs of the *waiting* ranks will kill it and blame the network.

## Diagnosis
The verdict says what the process does: asleep in a system call (data loader, file system, lock), running in
user space (preprocessing, compilation, a Python loop), or in uninterruptible sleep (storage). Take its stack:
`py-spy dump --pid PID` or `gdb -p PID -batch -ex 'thread apply all bt'`.

## Mitigation
Mend what holds the rank: data path, checkpoint, a branch that only some ranks take. If it is known to be long
(checkpoint on one rank), raise the timeout of the process group. To save the run, abort and restart it now.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.stalled().filter(|(comm, _)| !view.disagrees(comm)).filter_map(|(comm, f)| judge(view, comm, f)).collect()
}

fn judge(view: &View<'_>, comm: &Comm, frontier: &Frontier) -> Option<Verdict> {
    let missing = frontier.missing.iter().filter_map(|m| Some((m, comm.members.get(&m.rank)?)));
    // A dead or stopped rank explains the living ones that are late beside it.
    if missing.clone().any(|(_, m)| !view.alive(m) || is_stopped(view, m)) {
        return None;
    }
    let held_up = |m: &Member| in_earlier_operation(view, m) || view.held_up.contains(&m.into());
    let roots: Vec<_> = missing.filter(|(_, m)| view.graph.is_root((*m).into()) && !held_up(m)).collect();
    let since = roots.iter().map(|(f, _)| f.since).min()?;
    let culprits: Vec<&Member> = roots.iter().map(|(_, m)| *m).collect();
    let waited = view.now().saturating_sub(since);
    let ranks: Vec<u32> = culprits.iter().map(|m| m.rank).collect();
    let op = words::expected(comm, frontier.seq);
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if waited >= CRITICAL { Severity::Critical } else { Severity::Warning },
        confidence: confidence(view, comm),
        headline: format!(
            "{} {} not launched {op} of {}; {} {} waited {}",
            who(view, &culprits),
            if ranks.len() == 1 { "has" } else { "have" },
            words::comm(comm),
            words::ranks_noun(&frontier.waiting),
            if frontier.waiting.len() == 1 { "has" } else { "have" },
            words::seconds(waited),
        ),
        comm: comm.id,
        seq: Some(frontier.seq),
        culprits: culprits.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: victims(view, comm, frontier),
        since,
        evidence: evidence(view, comm, frontier, &culprits),
        refuted_by: format!(
            "{} launching {op}, or a rank of this communicator on another host that has not launched it either",
            words::ranks_noun(&ranks)
        ),
        next_steps: next_steps(&culprits),
        chain: Vec::new(),
    })
}

/// Its data of an earlier operation is still under way: it can't launch the next, and the transfers tell why.
fn in_earlier_operation(view: &View<'_>, member: &Member) -> bool {
    const FRESH: Nanos = 3 * SECOND;
    let fresh = member.flows.as_ref().filter(|f| view.now().saturating_sub(f.at) < FRESH);
    fresh.is_some_and(|f| f.untaken_since.is_some() || f.flows.iter().any(|t| t.flow.op.is_some()))
}

pub(super) fn is_stopped(view: &View<'_>, member: &Member) -> bool {
    view.process(member).is_some_and(|p| p.stopped_since.is_some())
}

pub(super) fn who(view: &View<'_>, members: &[&Member]) -> String {
    match members {
        [one] => Subject::of(view.state, one).to_string(),
        many => {
            let ranks = words::ranks_noun(&many.iter().map(|m| m.rank).collect::<Vec<_>>());
            let in_job = many.iter().map(|m| view.process(m)?.job_rank).collect::<Option<Vec<u32>>>();
            let differ = |job: &Vec<u32>| job.iter().zip(many).any(|(job, m)| *job != m.rank);
            match in_job.filter(differ) {
                Some(job) => format!("{ranks} ({} of the job)", words::ranks_noun(&job)),
                None => ranks,
            }
        }
    }
}

pub(super) fn victims(view: &View<'_>, comm: &Comm, frontier: &Frontier) -> Vec<Subject> {
    frontier.waiting.iter().filter_map(|r| comm.members.get(r)).map(|m| Subject::of(view.state, m)).collect()
}

/// High when all ranks are in sight and nothing was lost; else says what is missing.
pub(super) fn confidence(view: &View<'_>, comm: &Comm) -> Confidence {
    let unseen = comm.unseen();
    let recent_loss = view.state.loss.events > 0 && view.now().saturating_sub(view.state.loss.last) < 60 * SECOND;
    if recent_loss {
        return Confidence {
            level: Level::Medium,
            reason: format!(
                "{} events were lost; the newest state of each rank was read from the kernel's own copy",
                view.state.loss.events
            ),
        };
    }
    if !unseen.is_empty() {
        return Confidence {
            level: Level::Medium,
            reason: format!(
                "{} of {} ranks are in sight; {} are on other hosts or have not called NCCL since Mycroft attached",
                comm.members.len(),
                comm.id.nranks,
                words::ranks_noun(&unseen)
            ),
        };
    }
    Confidence {
        level: Level::High,
        reason: format!("all {} ranks are in sight and no event was lost", comm.id.nranks),
    }
}

fn evidence(view: &View<'_>, comm: &Comm, frontier: &Frontier, culprits: &[&Member]) -> Vec<Evidence> {
    let mut list = vec![waiting(view, comm, frontier)];
    for m in culprits {
        list.push(words::last_launch(view.state, m));
        list.extend(words::doing(view.state, m));
        list.extend(words::collected(view.state, m));
        list.extend(queued(m));
        list.extend(kernels(m));
    }
    list.push(words::patience(view, comm));
    list
}

pub(super) fn waiting(view: &View<'_>, comm: &Comm, frontier: &Frontier) -> Evidence {
    let told = frontier.waiting.first().and_then(|r| comm.members.get(r));
    let source = told.map_or(Source::NcclProbe, |m| Source::of_calls(view.state, m));
    let Some(at) = frontier.first_launch else {
        return counted(comm, frontier, source);
    };
    Evidence {
        at,
        source,
        text: format!(
            "{} launched {}",
            words::ranks_noun(&frontier.waiting),
            comm.window.get(frontier.seq).and_then(|s| s.majority()).map_or_else(
                || format!("collective #{}", frontier.seq),
                |v| format!("#{} ({})", frontier.seq, words::signature(&v.signature))
            )
        ),
    }
}

/// Nobody's call was seen: what is known is NCCL's own count.
fn counted(comm: &Comm, frontier: &Frontier, source: Source) -> Evidence {
    let marks = frontier.waiting.iter().filter_map(|r| comm.members.get(r)?.launched);
    Evidence {
        at: marks.map(|m| m.ts).min().unwrap_or(0),
        source: if source == Source::NcclProbe { Source::NcclMemory } else { source },
        text: format!(
            "NCCL counts {} launched as collective #{} by {}",
            words::expected(comm, frontier.seq),
            frontier.seq,
            words::ranks_noun(&frontier.waiting)
        ),
    }
}

/// A rank that has called but not ended its group has launched nothing.
fn queued(member: &Member) -> Option<Evidence> {
    let first = member.pending.first()?;
    Some(Evidence {
        at: first.ts,
        source: Source::NcclProbe,
        text: format!(
            "rank {} has queued {} operations from #{} on in a group that it has not ended (ncclGroupEnd)",
            member.rank,
            member.pending.len(),
            first.seq
        ),
    })
}

/// Where `ncclLaunchKernel` is probed: whether the rank's last call got as far as the GPU's queue.
fn kernels(member: &Member) -> Option<Evidence> {
    let k = member.kernels?;
    Some(Evidence {
        at: k.last,
        source: Source::NcclProbe,
        text: format!("rank {} handed {} kernels to CUDA since Mycroft attached, the last then", member.rank, k.count),
    })
}

fn next_steps(culprits: &[&Member]) -> Vec<String> {
    let mut pids: Vec<u32> = culprits.iter().map(|m| m.proc.pid).collect();
    pids.dedup();
    pids.iter()
        .take(4)
        .map(|pid| match pid {
            0 => "py-spy dump --pid PID   # of that rank's process, which these files do not name".to_owned(),
            pid => format!("py-spy dump --pid {pid}   # or: gdb -p {pid} -batch -ex 'thread apply all bt'"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::{
        model::event::{
            Fact,
            fact::{Blocked, PythonThread},
        },
        rules::{Level, Severity, testing::Scene},
    };

    #[test]
    fn what_collectors_read_is_told_while_it_is_fresh() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_without(&[2], 100);
        s.pass(2000);
        let thread = |tid: u32, function: &str, holds_gil| PythonThread {
            tid: Some(tid),
            name: Some("MainThread".to_owned()),
            holds_gil,
            frames: vec![format!("{function} (train.py:88)"), "main (train.py:120)".to_owned()],
        };
        s.fact(2, Fact::Python(vec![thread(102, "load_batch", true), thread(999, "idle", false)]));
        s.fact(2, Fact::Blocked(Blocked { tid: 102, target: "/data/shard-17".to_owned() }));
        s.pass(500);
        let told = |s: &Scene, text: &str| s.only_verdict().evidence.iter().any(|e| e.text.contains(text));
        assert!(told(&s, "is in load_batch (train.py:88) <- main (train.py:120); holds the GIL"));
        assert!(told(&s, "thread 102 is in a system call on /data/shard-17"));
        assert!(!told(&s, "idle"), "neither the caller of NCCL nor the holder of the GIL");
        s.pass(10_000);
        assert!(!told(&s, "load_batch") && !told(&s, "shard-17"), "too old to say what it does now");
    }

    #[test]
    fn names_the_rank_that_does_not_come() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.round_without(&[2], 100);
        assert!(s.verdicts().is_empty(), "not yet");
        s.pass(1500);
        assert!(s.verdicts().is_empty(), "1.5 s: within patience");
        s.pass(700);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.seq), ("MYC001", Some(20)));
        assert_eq!(v.culprits.iter().map(|c| c.rank).collect::<Vec<_>>(), [2]);
        assert_eq!(v.victims.iter().map(|c| c.rank).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!((v.severity, v.confidence.level), (Severity::Warning, Level::High));
        assert!(v.headline.contains("AllReduce #20"), "{}", v.headline);
        s.pass(10_000);
        assert_eq!(s.only_verdict().severity, Severity::Critical);
    }

    #[test]
    fn a_slow_rank_that_keeps_coming_is_not_a_hang() {
        let mut s = Scene::ranks(4);
        for _ in 0..30 {
            s.round_without(&[1], 0);
            s.pass(1500);
            s.catch_up(1);
            assert!(s.verdicts().iter().all(|v| v.rule == "MYC013"), "slow at most");
        }
        s.round_without(&[1], 0);
        s.pass(4000);
        assert!(s.verdicts().iter().all(|v| v.rule == "MYC013"), "used to 1.5 s, waits up to 4.5 s");
        s.pass(2000);
        assert_eq!(s.only_verdict().rule, "MYC001");
    }

    #[test]
    fn follows_the_wait_into_another_communicator() {
        let mut s = Scene::ranks(4);
        let pair = s.communicator(&[2, 3]);
        s.rounds(20, 100);
        for _ in 0..10 {
            s.launch_on(pair, &[2, 3]);
        }
        // Rank 3 is stuck; rank 2 waits for it in the pair, and so comes late to all the rest.
        s.launch_on(pair, &[2]);
        s.round_without(&[2, 3], 100);
        s.pass(3000);
        for v in s.verdicts() {
            assert_eq!(v.culprits.iter().map(|c| c.rank_in_job()).collect::<Vec<_>>(), [3], "{}", v.headline);
        }
        assert_eq!(s.verdicts().len(), 2, "both communicators wait for the same rank");
    }

    /// It waits for each collective before it launches the next, and the others were done sooner.
    #[test]
    fn a_rank_whose_data_is_still_under_way_is_not_late() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.flow(3, [20, 20, 20], [24, 20, 20]);
        s.flow(2, [24, 24, 22], [24, 24, 24]);
        s.round_without(&[2, 3], 100);
        s.pass(3000);
        assert!(s.verdicts().iter().all(|v| v.rule != "MYC001"), "{:#?}", s.verdicts());
        assert_eq!(s.only_verdict().rule, "MYC007");
    }

    #[test]
    fn a_group_left_open_is_told() {
        let mut s = Scene::ranks(2);
        s.rounds(20, 100);
        s.queue_in_group(1, 3);
        s.round_without(&[1], 100);
        s.pass(3000);
        let v = s.only_verdict();
        assert!(v.evidence.iter().any(|e| e.text.contains("queued 3 operations")), "{:?}", v.evidence);
    }

    #[test]
    fn ranks_on_other_hosts_lower_the_confidence() {
        let mut s = Scene::part_of(4, 8);
        s.rounds(20, 100);
        s.round_without(&[1], 100);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!(v.confidence.level, Level::Medium);
        assert!(v.confidence.reason.contains("ranks 4-7"), "{}", v.confidence.reason);
    }
}
