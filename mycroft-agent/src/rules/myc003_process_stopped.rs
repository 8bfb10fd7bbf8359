//! MYC003: the process of a rank is stopped.

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, myc001_not_launched, words};
use crate::model::{
    Comm, Member, Process,
    ids::{Nanos, SECOND},
};

/// A stop shorter than this is a checkpoint tool, a profiler or a shell's job control.
const GRACE: Nanos = SECOND;

pub const RULE: Rule = Rule {
    id: "MYC003",
    name: "process-stopped",
    summary: "The process of a rank is stopped by a signal or a debugger.",
    doc: "\
## Meaning
The process is in state T (SIGSTOP, SIGTSTP, a frozen job) or t (a debugger holds it), and its communicator has
made no move since. Its NCCL proxy threads stand still as well, so even collectives that it has launched do
not end.

## Impact
All other ranks wait until it is continued.

## Diagnosis
`grep -E 'State|TracerPid' /proc/PID/status`: a TracerPid other than 0 names the debugger. Else look for who sent
SIGSTOP: a scheduler that suspends jobs, a shell (`fg` is missing), a cgroup freezer.

## Mitigation
`kill -CONT PID`, or detach the debugger. The job goes on where it stood.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    view.state.comms.values().filter(|c| !view.disagrees(c)).filter_map(|c| judge(view, c)).collect()
}

fn judge(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let stopped: Vec<(&Member, &Process, Nanos)> = view
        .living(comm)
        .filter_map(|m| {
            let p = view.process(m)?;
            Some((m, p, p.stopped_since?))
        })
        .collect();
    let (_, first, since) = stopped.iter().min_by_key(|(m, _, at)| (*at, m.rank))?;
    let others: Vec<&Member> = view.living(comm).filter(|m| !myc001_not_launched::is_stopped(view, m)).collect();
    let quiet_since = (*since).max(comm.last_launch);
    if others.is_empty() || view.now() < quiet_since.saturating_add(GRACE) {
        return None;
    }
    let debugger = first.activity.as_ref().is_some_and(|a| a.state == 't');
    let culprits: Vec<&Member> = stopped.iter().map(|(m, ..)| *m).collect();
    let frontier = view.graph.frontiers.get(&comm.id);
    let mut evidence: Vec<Evidence> = stopped
        .iter()
        .map(|(m, p, at)| Evidence {
            at: *at,
            source: Source::Proc,
            text: format!(
                "pid {} is {} since {} ago or longer",
                m.proc.pid,
                p.activity.as_ref().map_or("stopped", |a| a.state_text()),
                words::seconds(view.now().saturating_sub(*at))
            ),
        })
        .collect();
    evidence.extend(culprits.iter().map(|m| words::last_launch(view.state, m)));
    evidence.extend(frontier.map(|f| myc001_not_launched::waiting(view, comm, f)));
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: if debugger { Severity::Warning } else { Severity::Critical },
        confidence: Confidence {
            level: Level::High,
            reason: "the process state was read and no rank has launched anything since".to_owned(),
        },
        headline: format!(
            "{} {} {} for {}; {} of {} {}",
            myc001_not_launched::who(view, &culprits),
            if culprits.len() == 1 { "has been" } else { "have been" },
            if debugger { "stopped by a debugger" } else { "stopped by a signal" },
            words::seconds(view.now().saturating_sub(*since)),
            words::ranks_noun(&others.iter().map(|m| m.rank).collect::<Vec<_>>()),
            words::comm(comm),
            match frontier {
                Some(f) => format!("wait in {}", words::expected(comm, f.seq)),
                None => "launch nothing".to_owned(),
            }
        ),
        comm: comm.id,
        seq: frontier.map(|f| f.seq),
        culprits: culprits.iter().map(|m| Subject::of(view.state, m)).collect(),
        victims: others.iter().map(|m| Subject::of(view.state, m)).collect(),
        since: *since,
        evidence,
        refuted_by: "the process being in another state than T or t".to_owned(),
        next_steps: culprits
            .iter()
            .take(4)
            .map(|m| match debugger {
                true => format!("grep TracerPid /proc/{}/status   # then detach that debugger", m.proc.pid),
                false => format!("kill -CONT {}", m.proc.pid),
            })
            .collect(),
        chain: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use crate::rules::{Severity, testing::Scene};

    #[test]
    fn a_stopped_rank_is_named_whether_or_not_it_launched() {
        for launched in [false, true] {
            let mut s = Scene::ranks(4);
            s.rounds(20, 100);
            if launched {
                s.rounds(1, 0);
            } else {
                s.round_without(&[1], 0);
            }
            s.stop(1, 'T');
            s.pass(1300);
            let v = s.only_verdict();
            assert_eq!((v.rule, v.culprits[0].rank), ("MYC003", 1));
            assert_eq!(v.severity, Severity::Critical);
            assert!(v.next_steps[0].starts_with("kill -CONT"));
            s.stop(1, 'S');
            s.pass(1100);
            assert!(s.verdicts().iter().all(|v| v.rule != "MYC003"), "continued");
        }
    }

    #[test]
    fn a_debugger_is_told_apart() {
        let mut s = Scene::ranks(2);
        s.rounds(20, 100);
        s.stop(0, 't');
        s.pass(2000);
        assert_eq!(s.only_verdict().severity, Severity::Warning);
    }

    #[test]
    fn a_short_stop_is_nothing() {
        let mut s = Scene::ranks(2);
        s.rounds(20, 100);
        s.stop(0, 'T');
        s.pass(800);
        assert!(s.verdicts().is_empty());
    }
}
