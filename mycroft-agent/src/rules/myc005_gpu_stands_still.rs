//! MYC005: a rank's GPU neither takes the data that is there nor makes any ready.

use super::{Rule, View, transfers::Teller};
use crate::{
    graph::flow::Stuck,
    model::{Member, ids::bus_id_text},
};

pub const RULE: Rule = Rule {
    id: "MYC005",
    name: "gpu-stands-still",
    summary: "A rank has launched, its data is there, and its GPU does not go on.",
    doc: "\
## Meaning
All ranks have launched the collective. On this rank data has been delivered that the GPU does not take, or nothing is
missing and the GPU makes nothing ready to send, although its send slots have room. So neither the network nor another
rank is what it waits for: the kernel of the collective has not started, or stands still. A rank whose GPU waits in
another communicator at the same time is not named.

## Impact
All ranks of the communicator wait for this GPU.

## Diagnosis
An earlier kernel on the same stream that does not end (a compute kernel, or another communicator's), a GPU that has
fallen off the bus or thrown an Xid, a clock far below the others', a debugger or a sanitizer on the GPU. `nvidia-smi -q
-i BUS`, `dmesg | grep -i xid`, and for a living GPU a look at what it runs.

## Mitigation
Take the node out if the GPU has an Xid or ECC error. A kernel that does not end is the program's: take the Python stack
of the rank, it waits in or behind that kernel.
",
    check,
};

const TELLER: Teller = Teller {
    rule: &RULE,
    is_mine: |s| s == Stuck::Gpu,
    verb: |who| {
        if who.len() == 1 {
            "has all it needs and its GPU does not go on"
        } else {
            "have all they need and their GPUs do not go on"
        }
        .to_owned()
    },
    refuted_by: "any of the rank's counters moving, or a network counter that shows its receives incomplete",
    next_steps,
};

fn check(view: &View<'_>) -> Vec<super::Verdict> {
    TELLER.check(view)
}

fn next_steps(_: &View<'_>, member: &Member, _: Stuck) -> Vec<String> {
    let bus = bus_id_text(member.bus_id);
    vec![
        format!("nvidia-smi -q -i {bus}   # and: dmesg | grep -i xid"),
        format!("py-spy dump --pid {}", member.proc.pid),
    ]
}

#[cfg(test)]
mod tests {
    use crate::rules::{Level, testing::Scene};

    /// What rank 2 of a ring of 4 shows when its GPU stops in the middle.
    fn stalled() -> Scene {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.rounds(1, 0);
        s.flow(0, [18, 18, 18], [22, 14, 14]);
        s.flow(1, [24, 24, 16], [24, 24, 24]);
        s.flow(2, [6, 6, 6], [10, 10, 2]);
        s.flow(3, [10, 10, 10], [14, 6, 6]);
        s
    }

    #[test]
    fn the_gpu_that_takes_nothing_is_named_and_nobody_else() {
        let mut s = stalled();
        s.pass(1500);
        assert!(s.verdicts().is_empty(), "within patience");
        s.pass(1500);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank, v.culprits.len(), v.seq), ("MYC005", 2, 1, Some(20)));
        assert_eq!(v.confidence.level, Level::High);
        assert!(v.evidence.iter().any(|e| e.text.contains("10 delivered, 2 taken")), "{:#?}", v.evidence);
        s.flow(2, [8, 8, 8], [12, 12, 4]);
        s.pass(1100);
        assert!(s.verdicts().is_empty(), "it moves again");
    }

    #[test]
    fn a_gpu_that_waits_in_another_communicator_is_a_victim() {
        let mut s = Scene::ranks(4);
        let pair = s.communicator(&[2, 3]);
        s.rounds(20, 100);
        for _ in 0..20 {
            s.launch_on(pair, &[2, 3]);
        }
        s.launch_on(pair, &[2]);
        s.rounds(1, 0);
        s.flow(0, [18, 18, 18], [22, 14, 14]);
        s.flow(1, [24, 24, 16], [24, 24, 24]);
        s.flow(2, [6, 6, 6], [10, 10, 2]);
        s.flow(3, [10, 10, 10], [14, 6, 6]);
        s.pass(6000);
        assert!(s.verdicts().iter().all(|v| v.rule != "MYC005"), "{:#?}", s.verdicts());
    }
}
