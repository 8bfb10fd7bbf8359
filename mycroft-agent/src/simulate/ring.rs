//! How far the transfers of a ring are, connection by connection, when one of its ranks holds up the others.
//!
//! Each connection has eight slots. A rank may send one chunk before it has received any, then one for each received.
//! So behind a rank that stands still connections run empty, and before it they fill up, a little further with each hop:
//! the counters that the analyser judges are those of this balance.

use super::{comms::CHUNK, fault::Hold};

/// Slots of a connection.
const SLOTS: u64 = 8;
/// Steps that move at once.
pub(super) const SLICE: u64 = 2;

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// It has not launched the operation.
    Absent,
    /// Its proxy has posted receives, its GPU has not come to it.
    Posted,
    /// Its GPU is in it.
    In,
}

/// One rank's counters: of its connection to the next rank, and from the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub ready: u64,
    pub sent: u64,
    pub done: u64,
    pub posted: u64,
    pub got: u64,
    pub used: u64,
    /// The proxy's own count of what is used up.
    pub noticed: u64,
}

/// The state of a ring.
#[derive(Clone, Debug)]
pub(super) struct Ring<'a> {
    pub steps: u64,
    pub at: &'a [At],
    /// A rank at which it stands still, or is slow, after so many steps.
    pub hold: Option<(usize, Hold, u64)>,
    /// Steps that all have done, if nothing holds them.
    pub done: u64,
}

impl Ring<'_> {
    pub(super) fn counters(&self) -> Vec<Counters> {
        let n = self.at.len();
        let mut ready = self.first();
        // Twice around in each direction: what one rank holds up reaches all others.
        for _ in 0..2 {
            for i in (0..n).rev().chain((0..n).rev()) {
                ready[i] = ready[i].min(self.room(&ready, i) + SLOTS);
            }
            for i in (0..n).chain(0..n) {
                let before = (i + n - 1) % n;
                let got = self.delivered(&ready, before);
                ready[i] = ready[i].min(if got >= self.steps { self.steps } else { got + CHUNK });
            }
        }
        (0..n).map(|i| self.of(&ready, i)).collect()
    }

    /// What each rank's own state allows.
    fn first(&self) -> Vec<u64> {
        let all_in = self.at.iter().all(|a| *a == At::In);
        let usual = match self.hold {
            None if all_in => (self.done + CHUNK).min(self.steps),
            _ => self.steps,
        };
        let mut ready: Vec<u64> = self.at.iter().map(|a| if *a == At::In { usual } else { 0 }).collect();
        match self.hold {
            Some((i, Hold::Gpu, x)) => ready[i] = ready[i].min(x),
            Some((i, Hold::Proxy | Hold::Edge | Hold::Edges, x)) => ready[i] = ready[i].min(x + SLOTS),
            Some((_, Hold::Whole, _)) => ready.iter_mut().for_each(|r| *r = (*r).min(CHUNK)),
            None => {}
        }
        ready
    }

    /// Steps that the connection from rank `i` to the next can have delivered by the next one's doing.
    fn room(&self, ready: &[u64], i: usize) -> u64 {
        let next = (i + 1) % self.at.len();
        let by_next = match self.at[next] {
            At::Absent => 0,
            _ => self.used(ready, next) + SLOTS,
        };
        self.cut(i).map_or(by_next, |x| by_next.min(x))
    }

    /// Where the connection from rank `i` to the next is cut.
    fn cut(&self, i: usize) -> Option<u64> {
        let next = (i + 1) % self.at.len();
        match self.hold {
            Some((at, Hold::Edge, x)) if at == i => Some(x),
            Some((at, Hold::Edges | Hold::Proxy, x)) if at == i || at == next => Some(x),
            _ => None,
        }
    }

    fn delivered(&self, ready: &[u64], i: usize) -> u64 {
        ready[i].min(self.room(ready, i))
    }

    /// Steps that a rank's GPU has used up.
    fn used(&self, ready: &[u64], i: usize) -> u64 {
        match self.at[i] {
            At::In if ready[i] >= self.steps => self.steps,
            At::In => ready[i].saturating_sub(CHUNK),
            _ => 0,
        }
    }

    fn of(&self, ready: &[u64], i: usize) -> Counters {
        let before = (i + self.at.len() - 1) % self.at.len();
        let done = self.delivered(ready, i);
        let got = self.delivered(ready, before);
        let used = self.used(ready, i).min(got);
        let whole = |x: u64| x / SLICE * SLICE;
        // Its own network has taken what then does not arrive.
        let lost = self.cut(i).is_some() && !matches!(self.hold, Some((_, Hold::Proxy, _)));
        let sent = if lost { ready[i].min(done + SLOTS) } else { done };
        let frozen = matches!(self.hold, Some((at, Hold::Proxy, _)) if at == i);
        let posted = if frozen { got } else { self.steps.min(used + SLOTS) };
        let noticed = if frozen { used.saturating_sub(SLICE) } else { used };
        Counters {
            ready: whole(ready[i]),
            sent: whole(sent),
            done: whole(done),
            posted: whole(posted.max(got)),
            got: whole(got),
            used: whole(used),
            noticed: whole(noticed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(at: &[At], hold: Option<(usize, Hold, u64)>) -> Vec<Counters> {
        Ring { steps: 24, at, hold, done: 0 }.counters()
    }

    /// The numbers of docs/flows.md, which are those of real NCCL.
    #[test]
    fn before_a_gpu_that_stands_still_connections_fill_and_behind_it_they_run_empty() {
        let c = ring(&[At::In; 4], Some((1, Hold::Gpu, 6)));
        assert_eq!((c[0].ready, c[1].ready), (18, 6));
        assert_eq!((c[1].posted, c[1].got, c[1].used), (10, 10, 2));
        assert_eq!((c[2].got, c[2].used), (6, 6));
        assert_eq!((c[3].got, c[3].used), (10, 10));
        assert!(c.iter().all(|c| c.used <= c.got && c.got <= c.posted && c.done <= c.sent && c.sent <= c.ready));
    }

    #[test]
    fn a_rank_that_is_not_there_has_nothing_posted() {
        let c = ring(&[At::In, At::In, At::Absent, At::In], None);
        assert_eq!((c[1].ready, c[1].sent), (8, 0), "ready, and no room");
        assert_eq!((c[3].got, c[3].used, c[3].ready), (0, 0, 4));
    }

    #[test]
    fn what_is_sent_over_a_cut_does_not_arrive() {
        let c = ring(&[At::In; 4], Some((1, Hold::Edge, 4)));
        assert!(c[1].sent > c[2].got, "{c:?}");
        assert!(c[2].posted > c[2].got, "{c:?}");
        for i in [0, 2, 3] {
            assert_eq!(c[i].sent, c[(i + 1) % 4].got, "{c:?}");
        }
    }
}
