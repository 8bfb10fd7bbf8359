//! MYC008: a rank's data is ready, the receiver has room, and the network does not take it.

use super::{Rule, View, transfers::Teller};
use crate::{graph::flow::Stuck, model::Member};

pub const RULE: Rule = Rule {
    id: "MYC008",
    name: "data-not-sent",
    summary: "A rank's data is ready and its peer has room, but its network does not take it.",
    doc: "\
## Meaning
The GPU has made data ready, the receiver has posted room for it, the proxy thread runs, and the network (a plugin, or
NCCL's own sockets and InfiniBand) accepts nothing. The receiver's credit is not what is missing: its counters say so.

## Impact
All ranks of the communicator wait.

## Diagnosis
The NIC named: a full send queue, a queue pair in error, a plugin that waits (its own log), a socket whose buffer is full
because the other side's kernel does not read.

## Mitigation
As for a broken NIC: restart the job without it. Report a plugin that refuses for ever to its vendor.
",
    check,
};

const TELLER: Teller = Teller {
    rule: &RULE,
    is_mine: |s| matches!(s, Stuck::NotSentTo(_)),
    verb: |who| {
        let to: Vec<String> = who
            .iter()
            .filter_map(|(_, s)| if let Stuck::NotSentTo(to) = s { Some(format!("rank {to}")) } else { None })
            .collect();
        format!("{} data ready that is not sent to {}", if who.len() == 1 { "has" } else { "have" }, to.join(", "))
    },
    refuted_by: "the sender's count of sent steps growing, or the receiver having no receive posted",
    next_steps,
};

fn check(view: &View<'_>) -> Vec<super::Verdict> {
    TELLER.check(view)
}

fn next_steps(_: &View<'_>, member: &Member, _: Stuck) -> Vec<String> {
    vec![
        "ibstat 2>/dev/null; rdma resource show qp 2>/dev/null   # queue pairs and their states".to_owned(),
        format!("nsenter -t {} -n ss -tinp   # full send buffers of the rank's sockets", member.proc.pid),
    ]
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn a_network_that_takes_nothing_is_told_with_the_rank() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.rounds(1, 0);
        for rank in [0, 2, 3] {
            s.flow(rank, [16, 16, 16], [24, 16, 16]);
        }
        s.flow(1, [24, 16, 16], [24, 16, 16]);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank), ("MYC008", 1));
        assert!(v.headline.contains("not sent to rank 2"), "{}", v.headline);
    }
}
