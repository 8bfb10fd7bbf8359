use std::collections::BTreeMap;

use super::*;
use crate::event::{Body, Op};

fn ops(config: Config) -> Vec<(Nanos, Op)> {
    let of = |e: Event| if let Body::Op(op) = e.body { Some((e.ts, op)) } else { None };
    Simulation::new(config).filter_map(of).collect()
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let events = |seed| Simulation::new(Config::healthy(seed, 8, 20 * SECOND)).collect::<Vec<_>>();
    assert_eq!(events(1), events(1));
    assert_ne!(events(1), events(2));
}

#[test]
fn a_healthy_job_goes_on_on_all_ranks_of_any_size() {
    for ranks in [8, 16, 64, 256, 1024] {
        let length = 40 * SECOND;
        let mut newest: BTreeMap<ProcId, Nanos> = BTreeMap::new();
        for (ts, op) in ops(Config::healthy(3, ranks, length)) {
            newest.insert(op.comm.proc, ts);
        }
        assert_eq!(newest.len(), ranks as usize);
        let least = newest.values().min().copied().unwrap_or(0);
        assert!(least > BEGIN + length - 4 * SECOND, "{ranks} ranks: one ends at {}", (least - BEGIN) / MILLISECOND);
    }
}

#[test]
fn ranks_of_a_communicator_agree_on_every_collective() {
    let mut called: BTreeMap<(u64, u64), crate::event::Signature> = BTreeMap::new();
    for (_, op) in ops(Config::healthy(4, 64, 20 * SECOND)).into_iter().filter(|(_, op)| op.collective) {
        let hash = op.comm.ident.map_or(0, |i| i.hash);
        assert_eq!(*called.entry((hash, op.seq)).or_insert(op.signature), op.signature);
    }
    assert!(called.len() > 100);
}
