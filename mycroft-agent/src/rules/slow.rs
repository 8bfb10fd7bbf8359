//! What the rules on slow ranks and slow hosts share.

use std::collections::BTreeMap;

use super::{Confidence, Evidence, Level, Source, View, words};
use crate::{graph::late::Late, model::HostId};

/// Ranks that are slow by themselves, and hosts of which at least half of the ranks are, and two or more.
///
/// While something stands still, nobody is called slow: what is stuck is told by other rules.
pub(super) fn by_host(view: &View<'_>) -> (Vec<Late>, BTreeMap<HostId, Vec<Late>>) {
    let mut hosts: BTreeMap<HostId, Vec<Late>> = BTreeMap::new();
    if view.stalled().next().is_none() {
        for late in &view.late {
            hosts.entry(late.key.proc.host).or_default().push(*late);
        }
    }
    let mut ranks: BTreeMap<HostId, usize> = BTreeMap::new();
    for (proc, _) in view.state.programs.keys().filter(|(p, _)| hosts.contains_key(&p.host)) {
        *ranks.entry(proc.host).or_default() += 1;
    }
    let several_hosts = view.state.hosts.len() > 1;
    let of_host = |host: &HostId, list: &Vec<Late>| {
        several_hosts && list.len() >= 2 && 2 * list.len() >= ranks.get(host).copied().unwrap_or(0)
    };
    let (hosts, single): (BTreeMap<_, _>, BTreeMap<_, _>) = hosts.into_iter().partition(|(h, list)| of_host(h, list));
    (single.into_values().flatten().collect(), hosts)
}

pub(super) fn confidence(view: &View<'_>, late: &Late) -> Confidence {
    let lost = view.state.loss.events;
    let (level, reason) = if late.clock_error > 0 {
        (
            Level::Medium,
            format!(
                "times of different hosts are compared; their clocks' error of {} is allowed for",
                words::milliseconds(late.clock_error)
            ),
        )
    } else if lost > 0 {
        (Level::Medium, format!("{lost} events were lost"))
    } else {
        (Level::High, "arrivals were seen on all ranks, by one clock".to_owned())
    };
    Confidence { level, reason }
}

pub(super) fn evidence(view: &View<'_>, late: &Late) -> Vec<Evidence> {
    let Some(comm) = view.state.comms.get(&late.comm) else { return Vec::new() };
    let Some(member) = comm.members.get(&late.rank) else { return Vec::new() };
    let source = Source::of_calls(view.state, member);
    let mut list = vec![
        Evidence {
            at: view.now(),
            source,
            text: format!(
                "{} came last, by its own doing, to {} of the {} collectives of {} at which anybody was late (last {})",
                words::rank_and_pid(view, member),
                late.rounds,
                late.of,
                words::comm(comm),
                words::seconds(late.span),
            ),
        },
        Evidence {
            at: view.now(),
            source: Source::Derived,
            text: format!(
                "the others waited {} for it in that time, typically {} each time",
                words::seconds(late.sum),
                words::milliseconds(late.typical)
            ),
        },
    ];
    list.extend(words::doing(view.state, member));
    list
}
