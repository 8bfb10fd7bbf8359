//! Hosts and processes that several files mention: each is told once, however many name it.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Body, Event, HostId, Nanos, Origin, ProcId, Process};

/// Hosts and processes kept at most.
const LIMIT: usize = 1 << 20;

/// Who is known so far, and what was told of them.
#[derive(Debug, Default)]
pub(super) struct Roster {
    hosts: BTreeMap<String, HostId>,
    procs: BTreeSet<ProcId>,
    pub(super) events: Vec<Event>,
}

impl Roster {
    pub(super) fn tell(&mut self, ts: Nanos, body: Body) {
        self.events.push(Event { ts, body });
    }

    /// A process by its host's name and its pid there. `None` past the bound.
    pub(super) fn process(
        &mut self,
        ts: Nanos,
        host: &str,
        pid: u32,
        origin: Origin,
        job_rank: Option<u32>,
    ) -> Option<ProcId> {
        let host = self.host(ts, host)?;
        let id = ProcId { host, pid };
        if self.procs.len() >= LIMIT && !self.procs.contains(&id) {
            return None;
        }
        if self.procs.insert(id) {
            let process = Process { job_rank, ..Process::unknown(id, origin) };
            self.tell(ts, Body::ProcessSeen(Box::new(process)));
        }
        Some(id)
    }

    fn host(&mut self, ts: Nanos, name: &str) -> Option<HostId> {
        if let Some(id) = self.hosts.get(name) {
            return Some(*id);
        }
        if self.hosts.len() >= LIMIT {
            return None;
        }
        // 0 is the host of which Flight Recorder dumps say nothing.
        let id = HostId(self.hosts.len() as u32 + 1);
        self.hosts.insert(name.to_owned(), id);
        self.tell(ts, Body::Host { host: id, name: name.to_owned() });
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_and_process_is_told_once() {
        let mut r = Roster::default();
        let a = r.process(1, "node1", 10, Origin::Ras, None).unwrap();
        let b = r.process(2, "node2", 10, Origin::Log, Some(3)).unwrap();
        assert_eq!(r.process(3, "node1", 10, Origin::Log, None), Some(a));
        assert_ne!(a, b);
        assert_eq!(r.events.len(), 4);
    }
}
