//! MYC014: one connection of a communicator is where the data waits.

use std::collections::BTreeMap;

use super::{Confidence, Evidence, Level, Rule, Severity, Source, Subject, Verdict, View, words};
use crate::model::{Comm, Member, event::Way, flow::Load};

/// Looks at a connection in work before it is judged.
const LEAST_LOOKS: u32 = 24;
/// Share of the looks in which the slow one held data back, in percent, at least.
const HELD: u32 = 60;
/// The next one's share is at most this part of it, in percent.
const APART: u32 = 50;

pub const RULE: Rule = Rule {
    id: "MYC014",
    name: "slow-link",
    summary: "The data of a communicator waits on one connection again and again; the others wait for it.",
    doc: "\
## Meaning
In a ring all connections carry the same data, so all run at the pace of the slowest. Which one that is shows in where the
data waits: in most looks at it, this connection had data that was ready or sent and not yet delivered, and no other
connection of the communicator had half as often. Data moves all the time, so nothing is stuck.

## Impact
Each collective takes as long as this link needs.

## Diagnosis
On the sender's host: rate and errors of the NIC (`ibstat`, `ethtool -S`), its PCIe link (`lspci -vv`), pause frames and
congestion notifications, other traffic on it. On the path: a link that trained at a lower rate, a congested uplink.

## Mitigation
Take the NIC, cable or port out, or move the other traffic.
",
    check,
};

fn check(view: &View<'_>) -> Vec<Verdict> {
    // What stands still is told by other rules.
    let still = |c: &Comm| view.flows.contains_key(&c.id);
    view.state.comms.values().filter(|c| !still(c)).filter_map(|c| judge(view, c)).collect()
}

/// Loads of the network connections between ranks, over all channels.
fn loads(comm: &Comm) -> BTreeMap<(u32, u32), Load> {
    let mut loads: BTreeMap<(u32, u32), Load> = BTreeMap::new();
    for member in comm.active() {
        for tracked in member.flows.iter().flat_map(|f| &f.flows) {
            let flow = &tracked.flow;
            if let (Some(peer), Way::Send, true) = (flow.peer, flow.way, flow.transport.has_flow_data() && !flow.p2p) {
                let load = loads.entry((member.rank, peer)).or_default();
                load.looks += tracked.load.looks;
                load.held += tracked.load.held;
            }
        }
    }
    loads
}

fn judge(view: &View<'_>, comm: &Comm) -> Option<Verdict> {
    let loads = loads(comm);
    let judged = loads.iter().filter(|(_, l)| l.looks >= LEAST_LOOKS);
    let mut shares: Vec<(u32, (u32, u32))> = judged.map(|(who, l)| (l.share(), *who)).collect();
    shares.sort_by_key(|(share, who)| (std::cmp::Reverse(*share), *who));
    let [(share, (from, to)), (next, _), ..] = shares.as_slice() else { return None };
    if *share < HELD || 100 * next > APART * share {
        return None;
    }
    let sender = comm.members.get(from)?;
    let load = loads.get(&(*from, *to))?;
    let nic = sender.flows.iter().flat_map(|f| &f.flows).find(|t| t.flow.peer == Some(*to))?.flow.net_dev;
    let nic = nic.map_or_else(String::new, |d| format!(", network device {d}"));
    Some(Verdict {
        rule: RULE.id,
        name: RULE.name,
        severity: Severity::Warning,
        confidence: confidence(comm),
        headline: format!(
            "the connection from {} to rank {to} is the slow one of {}: data waited on it in {share} % of the looks{nic}",
            Subject::of(view.state, sender),
            words::comm(comm),
        ),
        comm: comm.id,
        seq: None,
        culprits: vec![Subject::of(view.state, sender)],
        victims: comm.active().filter(|m| m.rank != *from).map(|m| Subject::of(view.state, m)).collect(),
        since: sender.flows.as_ref().map_or(view.now(), |f| f.at),
        evidence: evidence(view, sender, (*to, *load), *next),
        refuted_by: "another connection holding data back as often".to_owned(),
        next_steps: vec![
            "ibstat; ethtool -S IFACE   # rate, errors, pause frames on the sender's host".to_owned(),
            "lspci -vv   # LnkSta of the NIC: speed and width".to_owned(),
        ],
        chain: Vec::new(),
    })
}

fn confidence(comm: &Comm) -> Confidence {
    let seen = comm.active().filter(|m| m.flows.is_some()).count();
    if seen == comm.id.nranks as usize {
        return Confidence {
            level: Level::Medium,
            reason: "all connections were compared; whether NIC, path or receiver is slow is not seen".to_owned(),
        };
    }
    Confidence {
        level: Level::Low,
        reason: format!("the connections of {seen} of {} ranks were compared", comm.id.nranks),
    }
}

fn evidence(view: &View<'_>, sender: &Member, (to, load): (u32, Load), next: u32) -> Vec<Evidence> {
    let at = sender.flows.as_ref().map_or(view.now(), |f| f.at);
    vec![
        Evidence {
            at,
            source: Source::NcclMemory,
            text: format!(
                "{}: data for rank {to} was ready or sent, and not delivered, in {} of {} looks",
                words::rank_and_pid(view, sender),
                load.held,
                load.looks
            ),
        },
        Evidence {
            at,
            source: Source::NcclMemory,
            text: format!("of all other connections the worst showed that in {next} % of the looks"),
        },
    ]
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::Scene;

    /// A ring whose connection from rank 1 to rank 2 has data in flight at each look.
    fn moving(s: &mut Scene, looks: u64, held: &[u32]) {
        for i in 0..looks {
            let step = i % 22;
            for rank in 0..4 {
                let flight = if held.contains(&rank) { 2 } else { 0 };
                s.flow(rank, [step + flight, step + flight, step], [step + 2, step, step]);
            }
            s.rounds(1, 100);
        }
    }

    #[test]
    fn the_connection_on_which_data_waits_is_named() {
        let mut s = Scene::ranks(4);
        moving(&mut s, 60, &[1]);
        let v = s.only_verdict();
        assert_eq!((v.rule, v.culprits[0].rank), ("MYC014", 1), "{v:#?}");
        assert!(v.headline.contains("to rank 2"), "{}", v.headline);
    }

    #[test]
    fn connections_that_are_all_busy_are_a_busy_network() {
        let mut s = Scene::ranks(4);
        moving(&mut s, 60, &[0, 1, 2, 3]);
        assert!(s.verdicts().is_empty(), "{:#?}", s.verdicts());
    }
}
