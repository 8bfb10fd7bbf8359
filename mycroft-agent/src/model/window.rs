//! The newest collectives of a communicator: which rank launched which, and whether they agree.

use std::collections::VecDeque;

use fixedbitset::FixedBitSet;

use super::{
    arrivals::{Arrival, Arrivals},
    event::Signature,
    ids::Nanos,
};

/// Collectives kept while some rank lags. Beyond it the oldest go; how far a rank lags stays known.
const LIMIT: usize = 1024;

/// One collective over all ranks.
#[derive(Clone, Debug)]
pub struct Slot {
    pub seq: u64,
    pub first_ts: Nanos,
    pub last_ts: Nanos,
    /// What the ranks asked for: one entry when they agree.
    pub variants: Vec<Variant>,
    pub arrivals: Arrivals,
    /// Ranks that came.
    pub arrived: usize,
}

/// Ranks that asked for the same.
#[derive(Clone, Debug)]
pub struct Variant {
    pub signature: Signature,
    pub ranks: FixedBitSet,
}

impl Slot {
    #[must_use]
    pub fn has(&self, rank: u32) -> bool {
        self.variants.iter().any(|v| v.ranks.contains(rank as usize))
    }

    /// What most ranks asked for; the first to arrive where two are equally many.
    #[must_use]
    pub fn majority(&self) -> Option<&Variant> {
        let most = self.variants.iter().map(|v| v.ranks.count_ones(..)).max()?;
        self.variants.iter().find(|v| v.ranks.count_ones(..) == most)
    }
}

/// Slots in the order of their numbers, without gaps.
#[derive(Clone, Debug, Default)]
pub struct Window {
    slots: VecDeque<Slot>,
    /// Slots dropped because of [`LIMIT`].
    pub dropped: u64,
}

impl Window {
    /// Notes a rank's launch of number `seq`. Numbers below the window are too old to matter.
    pub fn arrive(&mut self, seq: u64, signature: Signature, arrival: Arrival) {
        let Arrival { ts, rank, .. } = arrival;
        let Some(slot) = self.slot_mut(seq, ts) else { return };
        slot.first_ts = slot.first_ts.min(ts);
        slot.last_ts = slot.last_ts.max(ts);
        let variant = match slot.variants.iter_mut().find(|v| v.signature == signature) {
            Some(v) => v,
            None => {
                slot.variants.push(Variant { signature, ranks: FixedBitSet::new() });
                let Some(v) = slot.variants.last_mut() else { return };
                v
            }
        };
        variant.ranks.grow(rank as usize + 1);
        if !variant.ranks.put(rank as usize) {
            slot.arrived += 1;
            slot.arrivals.note(arrival);
        }
    }

    fn slot_mut(&mut self, seq: u64, ts: Nanos) -> Option<&mut Slot> {
        let blank = |seq| Slot {
            seq,
            first_ts: ts,
            last_ts: ts,
            variants: Vec::new(),
            arrivals: Arrivals::default(),
            arrived: 0,
        };
        let Some(front) = self.slots.front().map(|s| s.seq) else {
            self.slots.push_back(blank(seq));
            return self.slots.back_mut();
        };
        if seq < front {
            return None;
        }
        let back = front + self.slots.len() as u64 - 1;
        if seq > back + LIMIT as u64 {
            // A jump: what lies between was never seen.
            self.dropped += self.slots.len() as u64;
            self.slots.clear();
            self.slots.push_back(blank(seq));
            return self.slots.back_mut();
        }
        for next in back + 1..=seq {
            if self.slots.len() == LIMIT {
                self.slots.pop_front();
                self.dropped += 1;
            }
            self.slots.push_back(blank(next));
        }
        let front = self.slots.front()?.seq;
        self.slots.get_mut(usize::try_from(seq.checked_sub(front)?).ok()?)
    }

    #[must_use]
    pub fn get(&self, seq: u64) -> Option<&Slot> {
        let front = self.slots.front()?.seq;
        self.slots.get(usize::try_from(seq.checked_sub(front)?).ok()?)
    }

    /// Takes the oldest slot if its number is below `seq`.
    pub fn pop_below(&mut self, seq: u64) -> Option<Slot> {
        if self.slots.front()?.seq < seq { self.slots.pop_front() } else { None }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use mycroft_common::nccl::Func;

    use super::*;

    fn sig(count: u64) -> Signature {
        Signature { func: Func::AllReduce, count, datatype: 7, redop: 0, root: 0 }
    }

    fn at(ts: Nanos, rank: u32) -> Arrival {
        Arrival { ts, rank, own: 0 }
    }

    #[test]
    fn ranks_that_agree_share_a_variant() {
        let mut w = Window::default();
        for (rank, ts) in [(0, 10), (2, 5), (1, 30)] {
            w.arrive(7, sig(100), Arrival { ts, rank, own: 0 });
        }
        w.arrive(7, sig(99), at(40, 3));
        let slot = w.get(7).unwrap();
        assert_eq!((slot.first_ts, slot.last_ts), (5, 40));
        assert_eq!(slot.variants.len(), 2);
        assert_eq!(slot.majority().unwrap().signature.count, 100);
        assert!(slot.has(3) && !slot.has(4));
    }

    #[test]
    fn stays_bounded_and_counts_what_it_drops() {
        let mut w = Window::default();
        for seq in 0..5000 {
            w.arrive(seq, sig(1), at(seq, 0));
        }
        assert_eq!(w.len(), LIMIT);
        assert_eq!(w.dropped, 5000 - LIMIT as u64);
        w.arrive(1_000_000_000_000, sig(1), at(9, 0));
        assert_eq!(w.len(), 1, "a jump does not fill memory");
        w.arrive(3, sig(1), at(9, 1));
        assert_eq!(w.len(), 1, "an old number is let go");
    }

    #[test]
    fn pops_only_what_is_done() {
        let mut w = Window::default();
        for seq in 0..4 {
            w.arrive(seq, sig(1), at(seq, 0));
        }
        assert_eq!(w.pop_below(2).map(|s| s.seq), Some(0));
        assert_eq!(w.pop_below(2).map(|s| s.seq), Some(1));
        assert!(w.pop_below(2).is_none());
    }
}
