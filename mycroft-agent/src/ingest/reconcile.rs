//! After a loss: the newest operation of every communicator, from the kernel's own copy.
//!
//! The ring buffer loses the newest events when it is full, but the map that the programs keep is written
//! before the event is sent. So history has a gap, the present has none.

use mycroft_common::abi::{CommKey, CommState, KIND_OP};

use super::Decoder;
use crate::event::{Body, Event, HostId, Nanos};

/// Events that bring the model up to date, oldest first, after the loss of `lost` events.
#[must_use]
pub fn events(host: HostId, lost: u64, now: Nanos, states: &[(CommKey, CommState)]) -> Vec<Event> {
    let decoder = Decoder { host };
    let mut ops: Vec<Event> =
        states.iter().filter(|(_, s)| s.last.header.kind == KIND_OP).map(|(_, s)| decoder.op(&s.last)).collect();
    ops.sort_by_key(|e| e.ts);
    ops.insert(0, Event { ts: now, body: Body::Loss { host, lost } });
    ops.push(Event { ts: now, body: Body::Reconciled { host } });
    ops
}

#[cfg(test)]
mod tests {
    use mycroft_common::abi::{Header, OpEvent};

    use super::*;

    #[test]
    fn newest_operations_in_order_and_nothing_of_untouched_communicators() {
        let state = |kind, ts_ns| CommState {
            last: OpEvent { header: Header { kind, ts_ns, ..Header::default() }, ..OpEvent::default() },
            ..CommState::default()
        };
        let key = CommKey::default();
        let e = events(HostId(0), 3, 100, &[(key, state(KIND_OP, 20)), (key, state(0, 5)), (key, state(KIND_OP, 10))]);
        assert_eq!(e.iter().map(|e| e.ts).collect::<Vec<_>>(), [100, 10, 20, 100]);
        assert_eq!(e[0].body, Body::Loss { host: HostId(0), lost: 3 });
    }
}
