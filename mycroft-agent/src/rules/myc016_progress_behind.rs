//! MYC016: a rank's GPU has not ended what the other ranks of its communicator have.

use std::collections::BTreeSet;

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, words};
use crate::{
    graph::{
        RankKey,
        progress::{Behind, Lag},
    },
    model::{Comm, Member},
};

pub const RULE: Rule = Rule {
    id: "MYC016",
    name: "progress-behind",
    summary: "A rank has launched collectives that others have ended, and its own GPU has not.",
    doc: "\
## Meaning
In a communicator, other ranks have ended collective #n; this rank launched it too, and it has not ended there. A
collective in which all ranks need each other's data can't end anywhere before all have begun it, so nobody in this
communicator holds the rank up any more. Where data goes one way (broadcast, reduce), the rank is named only if nothing
that it launched in another communicator is open. Waits of other ranks and communicators lead here.

The rule needs to know what has *ended* on each GPU: Flight Recorder dumps tell it, and logs of PyTorch's watchdog.

## Impact
The others go on until they need this rank the next time, and then stand still, in every communicator that they share
with it; from there it spreads to the whole job.

## Diagnosis
A GPU that stopped working (Xid in `dmesg`, `nvidia-smi -q`), a CUDA error that the process has not noticed, a kernel of
another stream that never ends, or the last hop of the network to this rank. If the process has been stopped or can't
run its watchdog, PyTorch's count stands still as well: look at the process first.

## Mitigation
Restart without that GPU or host if the driver reports an error; otherwise take the stacks of the rank named, not of
those whose watchdog complains.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    let due = |lag: &Lag, comm: &Comm| -> Vec<Behind> {
        let patience = comm.rhythm.patience(view.patience);
        lag.behind.iter().filter(|b| view.now().saturating_sub(b.since) >= patience).copied().collect()
    };
    let mut found: Vec<(&Comm, &Lag, Vec<Behind>)> = view
        .lags
        .values()
        .filter_map(|lag| {
            let comm = view.state.comms.get(&lag.comm)?;
            let behind = due(lag, comm);
            (!behind.is_empty()).then_some((comm, lag, behind))
        })
        .collect();
    // One rank is behind in many communicators: it is told once, where most is seen of it and of others like it.
    found.sort_by_key(|(comm, lag, behind)| (std::cmp::Reverse(behind.len()), lag.first().map(|b| b.since), comm.id));
    let mut named: BTreeSet<RankKey> = BTreeSet::new();
    let mut verdicts = Vec::new();
    for (comm, lag, behind) in found {
        let new = behind.iter().filter(|b| named.insert(b.key)).count();
        if new > 0 {
            verdicts.push(judge(view, comm, lag, &behind));
        }
    }
    verdicts
}

fn judge(view: &View<'_>, comm: &Comm, lag: &Lag, behind: &[Behind]) -> Verdict {
    let members: Vec<&Member> = behind.iter().filter_map(|b| comm.members.get(&b.rank)).collect();
    let others: Vec<&Member> = comm.active().filter(|m| !behind.iter().any(|b| b.rank == m.rank)).collect();
    let ahead: Vec<&Member> = lag.ahead.iter().filter_map(|r| comm.members.get(r)).collect();
    let seq = behind.iter().map(|b| b.seq).min().unwrap_or(lag.foremost);
    let since = behind.iter().map(|b| b.since).min().unwrap_or(view.now());
    let op = operation(comm, seq);
    let who = ranks(view, &members);
    Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Critical,
        confidence: confidence(comm, lag, behind, seq),
        headline: format!(
            "{who} {}{} not ended {op} of {}, while {} ended all up to #{}",
            if behind.iter().all(|b| b.launched) { "launched and " } else { "" },
            if members.len() == 1 { "has" } else { "have" },
            words::comm(comm),
            ranks(view, &ahead),
            lag.foremost,
        ),
        comm: comm.id,
        seq: Some(seq),
        culprits: members.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: others.iter().map(|m| Subject::of(view.state, m)).collect(),
        since,
        evidence: evidence(view, comm, lag, behind),
        refuted_by: format!("{who} ending {op}, or counts that were taken at different moments of a job that moves"),
        next_steps: next_steps(view, &members),
        chain: Vec::new(),
    }
}

fn operation(comm: &Comm, seq: u64) -> String {
    let slot = comm.window.get(seq).and_then(|s| s.majority());
    slot.map_or_else(|| format!("collective #{seq}"), |v| words::op_number(&v.signature, seq))
}

/// Ranks as the job's users number them, where that is known.
fn ranks(view: &View<'_>, members: &[&Member]) -> String {
    let in_job = |m: &&Member| view.process(m).and_then(|p| p.job_rank);
    match members.iter().map(in_job).collect::<Option<Vec<u32>>>() {
        Some(list) => words::ranks_noun(&list),
        None => words::ranks_noun(&members.iter().map(|m| m.rank).collect::<Vec<_>>()),
    }
}

fn confidence(comm: &Comm, lag: &Lag, behind: &[Behind], seq: u64) -> Confidence {
    let all = comm.id.nranks as usize;
    if behind.iter().any(|b| !b.launched) {
        return Confidence {
            level: Level::Low,
            reason: "only what has ended is known: it may not have launched more, or its records are older".to_owned(),
        };
    }
    if lag.known < all {
        return Confidence {
            level: Level::Medium,
            reason: format!("of {} of {all} ranks it is not known what has ended", all - lag.known),
        };
    }
    if comm.window.get(seq).is_none() {
        return Confidence {
            level: Level::Medium,
            reason: "the ranks' counts are known, the operation is not".to_owned(),
        };
    }
    Confidence { level: Level::High, reason: format!("of all {all} ranks it is known what has ended") }
}

fn evidence(view: &View<'_>, comm: &Comm, lag: &Lag, behind: &[Behind]) -> Vec<Evidence> {
    let derived = |at, text| Evidence { at, source: Source::Derived, text };
    let mut list = Vec::new();
    for b in behind {
        let Some(m) = comm.members.get(&b.rank) else { continue };
        let launched = m.launched.map_or_else(String::new, |l| format!(" launched all up to #{} and", l.seq));
        list.push(derived(
            b.since,
            format!(
                "{}{launched} ended all up to #{}; {} is the first open",
                ranks(view, &[m]),
                b.seq - 1,
                operation(comm, b.seq)
            ),
        ));
        list.extend(elsewhere(view, comm, m).map(|text| derived(b.since, text)));
        list.extend(words::doing(view.state, m));
    }
    let ahead: Vec<&Member> = lag.ahead.iter().filter_map(|r| comm.members.get(r)).collect();
    list.push(derived(view.now(), format!("{} ended all up to #{}", ranks(view, &ahead), lag.foremost)));
    list
}

/// The same rank is behind in other communicators too.
fn elsewhere(view: &View<'_>, here: &Comm, member: &Member) -> Option<String> {
    let key = RankKey::from(member);
    let mut places = view.lags.values().filter(|l| l.comm != here.id).filter_map(|lag| {
        let b = lag.behind.iter().find(|b| b.key == key)?;
        let comm = view.state.comms.get(&lag.comm)?;
        Some(format!("at #{} of {}, where others ended all up to #{}", b.seq, words::comm(comm), lag.foremost))
    });
    let first = places.next()?;
    let more = places.count();
    let rest = if more > 0 { format!(", and in {more} more communicators") } else { String::new() };
    Some(format!("{} stands {first}{rest}", ranks(view, &[member])))
}

fn next_steps(view: &View<'_>, members: &[&Member]) -> Vec<String> {
    vec![
        format!("dmesg | grep -i xid   # on the host of {}; then nvidia-smi -q -d ECC", ranks(view, members)),
        "py-spy dump --pid PID   # of that rank's process: is it still alive, and in which call?".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use mycroft_common::nccl::Func;

    use crate::rules::{Level, testing::Scene};

    fn ended(s: &mut Scene, comm: usize, counts: &[(u32, u64)]) {
        for (rank, n) in counts {
            s.ended(comm, *rank, *n);
        }
    }

    #[test]
    fn names_those_whose_gpus_do_not_end_what_others_have() {
        let mut s = Scene::ranks(4);
        s.rounds(1, 100);
        ended(&mut s, 0, &[(0, 1), (1, 1), (2, 1), (3, 1)]);
        s.rounds(19, 100);
        ended(&mut s, 0, &[(0, 18), (1, 15), (2, 18), (3, 13)]);
        s.pass(1000);
        assert!(s.verdicts().is_empty(), "within patience");
        s.pass(2000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.seq, v.confidence.level), ("MYC016", Some(13), Level::High));
        assert_eq!(v.culprits.iter().map(|c| c.rank).collect::<Vec<_>>(), [1, 3]);
        assert!(v.headline.contains("AllReduce #13"), "{}", v.headline);
        assert!(v.headline.contains("ranks 0, 2 ended all up to #17"), "{}", v.headline);
    }

    #[test]
    fn all_equally_far_is_nobodys_lag() {
        let mut s = Scene::ranks(3);
        s.rounds(20, 100);
        ended(&mut s, 0, &[(0, 18), (1, 18), (2, 18)]);
        s.pass(5000);
        assert!(s.verdicts().is_empty());
    }

    #[test]
    fn one_rank_is_told_once_where_most_is_seen() {
        let mut s = Scene::ranks(4);
        let pair = s.communicator(&[2, 3]);
        s.rounds(20, 100);
        for _ in 0..5 {
            s.launch_on(pair, &[2, 3]);
        }
        ended(&mut s, 0, &[(0, 18), (1, 10), (2, 18), (3, 11)]);
        ended(&mut s, pair, &[(2, 4), (3, 2)]);
        s.pass(12_000);
        let v = s.only_verdict();
        assert_eq!(v.culprits.iter().map(|c| c.rank_in_job()).collect::<Vec<_>>(), [1, 3]);
        assert!(v.evidence.iter().any(|e| e.text.contains("rank 3 stands at #2 of")), "{:#?}", v.evidence);
    }

    /// The root of a broadcast is done when it has sent; the rank that has not taken it yet waits for somebody else.
    #[test]
    fn behind_in_a_broadcast_because_of_another_communicator() {
        let mut s = Scene::ranks(3);
        let pair = s.communicator(&[1, 2]);
        s.rounds(20, 100);
        s.launch_on(pair, &[1, 2]);
        s.launch_on(pair, &[1]);
        ended(&mut s, pair, &[(1, 1), (2, 1)]);
        s.round_with(|_, sig| sig.func = Func::Broadcast);
        ended(&mut s, 0, &[(0, 21), (1, 20), (2, 21)]);
        s.pass(12_000);
        assert!(s.verdicts().iter().all(|v| v.rule != "MYC016"), "{:#?}", s.verdicts());
        s.ended(pair, 1, 2);
        s.pass(2000);
        let v = s.verdicts().iter().find(|v| v.rule == "MYC016").unwrap();
        assert_eq!(v.culprits[0].rank, 1, "with nothing else open it is the broadcast itself");
    }

    #[test]
    fn ranks_of_which_little_is_known_lower_the_confidence() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        ended(&mut s, 0, &[(0, 18), (3, 13)]);
        s.pass(4000);
        let v = s.only_verdict();
        assert_eq!((v.culprits[0].rank, v.confidence.level), (3, Level::Medium));
        assert!(v.confidence.reason.starts_with("of 2 of 4 ranks"), "{}", v.confidence.reason);
    }
}
