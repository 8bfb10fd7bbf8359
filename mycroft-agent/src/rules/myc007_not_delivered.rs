//! MYC007: what a rank has sent does not arrive at the other.

use super::{Rule, View, transfers::Teller};
use crate::{graph::flow::Stuck, model::Member};

pub const RULE: Rule = Rule {
    id: "MYC007",
    name: "data-not-delivered",
    summary: "Data that a rank has handed to its network does not arrive at the next rank.",
    doc: "\
## Meaning
The sender's proxy has handed more steps to the network than the receiver's has got from it, the receiver has room for
them, and neither number has changed. Both proxies do their part: what is between them does not.

## Impact
All ranks of the communicator wait. TCP tries again for many minutes, InfiniBand for some seconds before it reports an
error; both look like a hang until then.

## Diagnosis
The path between the two NICs named: link state (`ip -br link`, `ibstat`), a switch port, a firewall or an access list, a
wrong route or MTU, lost packets (`ss -tin`: backoff and retransmits; `ethtool -S`). Several pairs that share a NIC or a
switch point to that.

## Mitigation
Bring the link back: a Socket job goes on if TCP has not given up. With InfiniBand restart without the node.
",
    check,
};

const TELLER: Teller = Teller {
    rule: &RULE,
    is_mine: |s| matches!(s, Stuck::PathTo(_)),
    verb: |who| {
        let pairs: Vec<String> = who
            .iter()
            .filter_map(|(m, s)| if let Stuck::PathTo(to) = s { Some(format!("{}→{to}", m.rank)) } else { None })
            .collect();
        format!("{} sent data that does not arrive ({})", if who.len() == 1 { "has" } else { "have" }, pairs.join(", "))
    },
    refuted_by: "the receiver's count of delivered steps growing",
    next_steps,
};

fn check(view: &View<'_>) -> Vec<super::Verdict> {
    TELLER.check(view)
}

fn next_steps(_: &View<'_>, member: &Member, _: Stuck) -> Vec<String> {
    vec![
        "ip -br link; ibstat 2>/dev/null   # state of the NICs on both hosts".to_owned(),
        format!("nsenter -t {} -n ss -tinp   # backoff, retransmits, unacked of the rank's sockets", member.proc.pid),
    ]
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    #[test]
    fn both_ends_of_the_cut_are_told() {
        let mut s = Scene::ranks(4);
        s.rounds(20, 100);
        s.rounds(1, 0);
        s.flow(0, [8, 8, 8], [12, 4, 4]);
        s.flow(1, [12, 12, 10], [16, 8, 8]);
        s.flow(2, [4, 4, 4], [8, 0, 0]);
        s.flow(3, [4, 4, 4], [12, 4, 4]);
        s.pass(3000);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank, v.culprits.len()), ("MYC007", 1, 1));
        assert!(v.headline.contains("1→2"), "{}", v.headline);
        let told = |text: &str| v.evidence.iter().any(|e| e.text.contains(text));
        assert!(told("rank 1 sends to rank 2") && told("rank 2 receives from rank 1"), "{:#?}", v.evidence);
    }
}
