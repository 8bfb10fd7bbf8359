//! MYC006: a rank's proxy thread has work and does not run.

use super::{Rule, View, transfers::Teller};
use crate::{graph::flow::Stuck, model::Member};

pub const RULE: Rule = Rule {
    id: "MYC006",
    name: "proxy-not-running",
    summary: "A rank's NCCL proxy thread has work that only it can do, and gets no CPU.",
    doc: "\
## Meaning
NCCL's progress thread moves all network data of a rank. Here there is work for it (data ready and not sent, slots used
up and not posted again, operations not taken) while the thread is ready to run and gets less than a twentieth of a CPU,
or is stopped.

## Impact
The rank's network traffic crawls or stands still, and with it every rank of the communicator.

## Diagnosis
Who has the CPUs: data loader workers or another job on the same cores, a CPU quota of the cgroup (`cpu.max`,
`nr_throttled` in `cpu.stat`), an affinity mask that puts too many threads on too few cores (`taskset -pc TID`), a priority
(`chrt -p TID`), or a debugger that stopped the thread.

## Mitigation
Give the job its own cores, lift the quota, lower the number of data loader workers. The job goes on by itself.
",
    check,
};

const TELLER: Teller = Teller {
    rule: &RULE,
    is_mine: |s| s == Stuck::Proxy,
    verb: |who| {
        if who.len() == 1 {
            "has work for its proxy thread, which gets no CPU,"
        } else {
            "have work for their proxy threads, which get no CPU,"
        }
        .to_owned()
    },
    refuted_by: "the thread's CPU time growing while its counters stand still",
    next_steps,
};

fn check(view: &View<'_>) -> Vec<super::Verdict> {
    TELLER.check(view)
}

fn next_steps(_: &View<'_>, member: &Member, _: Stuck) -> Vec<String> {
    let pid = member.proc.pid;
    match member.flows.as_ref().and_then(|f| f.progress) {
        Some(p) => vec![
            format!("taskset -pc {0}; chrt -p {0}; cat /proc/{pid}/task/{0}/schedstat", p.tid),
            format!("cat /proc/{pid}/cgroup   # then cpu.max and cpu.stat of that group"),
        ],
        None => vec![format!("top -H -p {pid}")],
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn the_thread_that_gets_no_cpu_is_named() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.rounds(1, 0);
        for rank in [0, 2, 3] {
            s.flow(rank, [16, 16, 16], [24, 16, 16]);
        }
        s.flow(1, [24, 16, 16], [24, 16, 16]);
        s.starve(1);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank), ("MYC006", 1));
        assert!(v.next_steps[0].contains("taskset"), "{:?}", v.next_steps);
    }
}
