//! The collectors, each on a thread of its own: one that hangs holds up neither the loop nor the others.

use std::{
    collections::BTreeSet,
    sync::mpsc::{SyncSender, sync_channel},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::clock;
use crate::{
    evidence::{COLLECTORS, Collector, Suspect},
    model::{Body, Event, ids::ProcId},
};

/// A collector that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(5);
/// Between two looks of one collector at the suspects.
const EVERY: Duration = Duration::from_secs(1);
/// Suspects looked at in one go.
const MOST: usize = 16;
const QUEUE: usize = 256;

type Order = Vec<(ProcId, u32)>;

/// What a thread sends: a fact, or that it is done with its order.
#[derive(Debug)]
pub(super) enum Collected {
    Fact(Box<Event>),
    Done(&'static str),
}

#[derive(Debug)]
struct Worker {
    name: &'static str,
    orders: SyncSender<Order>,
    /// When it took the order that it has not finished.
    busy: Option<Instant>,
    last: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Collecting {
    workers: Vec<Worker>,
}

impl Collecting {
    /// All collectors but those in `off`.
    pub(super) fn start(off: &BTreeSet<String>) -> std::io::Result<(Self, mpsc::Receiver<Collected>)> {
        let wanted: Vec<Collector> = COLLECTORS.iter().copied().filter(|c| !off.contains(c.name)).collect();
        Self::with(&wanted)
    }

    fn with(collectors: &[Collector]) -> std::io::Result<(Self, mpsc::Receiver<Collected>)> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut workers = Vec::new();
        for collector in collectors.iter().copied() {
            let (orders, received) = sync_channel::<Order>(1);
            let sender = sender.clone();
            std::thread::Builder::new().name(format!("mycroft-{}", collector.name)).spawn(move || {
                for order in received {
                    for (proc, tid) in order {
                        let Some(fact) = (collector.collect)(Suspect { pid: proc.pid, tid }) else { continue };
                        let event = Event { ts: clock::now(), body: Body::Evidence { proc, fact } };
                        if sender.blocking_send(Collected::Fact(Box::new(event))).is_err() {
                            return;
                        }
                    }
                    if sender.blocking_send(Collected::Done(collector.name)).is_err() {
                        return;
                    }
                }
            })?;
            workers.push(Worker { name: collector.name, orders, busy: None, last: None });
        }
        Ok((Self { workers }, receiver))
    }

    /// Has the suspects looked at. Returns the collectors that have hung; they are not asked again.
    pub(super) fn ask(&mut self, suspects: &BTreeSet<(ProcId, u32)>, now: Instant) -> Vec<&'static str> {
        let mut hung = Vec::new();
        self.workers.retain(|w| {
            let late = w.busy.is_some_and(|since| now.duration_since(since) >= DEADLINE);
            if late {
                hung.push(w.name);
            }
            !late
        });
        if suspects.is_empty() {
            return hung;
        }
        for w in self.workers.iter_mut().filter(|w| w.busy.is_none()) {
            let due = w.last.is_none_or(|last| now.duration_since(last) >= EVERY);
            if due && w.orders.try_send(suspects.iter().copied().take(MOST).collect()).is_ok() {
                (w.busy, w.last) = (Some(now), Some(now));
            }
        }
        hung
    }

    pub(super) fn done(&mut self, name: &'static str) {
        if let Some(w) = self.workers.iter_mut().find(|w| w.name == name) {
            w.busy = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HostId;

    fn hang(_: Suspect) -> Option<crate::model::event::Fact> {
        std::thread::sleep(Duration::from_secs(600));
        None
    }

    fn nothing(_: Suspect) -> Option<crate::model::event::Fact> {
        None
    }

    #[test]
    fn one_that_hangs_is_given_up_and_the_others_go_on() {
        let collectors = [Collector { name: "hangs", collect: hang }, Collector { name: "works", collect: nothing }];
        let (mut collecting, mut receiver) = Collecting::with(&collectors).unwrap();
        let suspects = BTreeSet::from([(ProcId { host: HostId(0), pid: 1 }, 1)]);
        let begin = Instant::now();
        assert!(collecting.ask(&suspects, begin).is_empty());
        let Some(Collected::Done(name)) = receiver.blocking_recv() else { panic!("it had nothing to tell") };
        assert_eq!(name, "works");
        collecting.done(name);
        assert_eq!(collecting.ask(&suspects, begin + DEADLINE), ["hangs"]);
        assert!(matches!(receiver.blocking_recv(), Some(Collected::Done("works"))));
        collecting.done(name);
        assert!(collecting.ask(&suspects, begin + 2 * DEADLINE).is_empty(), "told once");
    }
}
