//! Who comes last to a collective, and whether it is that rank's own doing.

use super::ids::Nanos;

/// The last to come that are kept of one collective: as many as a host has GPUs, and as many to hold them against.
const KEPT: usize = 16;

/// A rank's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub ts: Nanos,
    pub rank: u32,
    /// Time since the end of what the rank waited for before: its own, not another's.
    pub own: Nanos,
}

/// The last arrivals at one collective, in the order of their times.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    last: Vec<Arrival>,
    /// All that came, kept or not.
    count: usize,
}

impl Arrivals {
    pub fn note(&mut self, arrival: Arrival) {
        self.count += 1;
        if self.last.len() == KEPT && self.last.first().is_some_and(|a| a.ts >= arrival.ts) {
            return;
        }
        let at = self.last.partition_point(|a| a.ts <= arrival.ts);
        self.last.insert(at, arrival);
        if self.last.len() > KEPT {
            self.last.remove(0);
        }
    }

    /// The ranks that came last together, by their own doing, and how far behind the others they were.
    ///
    /// They are those behind the widest gap, at most half of all. Own doing: the rank needed that much more time of its
    /// own than those before the gap; one that came late because it waited elsewhere did not.
    #[must_use]
    pub fn late(&self) -> (Vec<u32>, Nanos) {
        let gaps = self.last.windows(2).enumerate().filter(|(i, _)| 2 * (self.last.len() - i - 1) <= self.count);
        let widest = gaps.map(|(i, w)| (w[1].ts - w[0].ts, i + 1)).max();
        let Some((margin, at)) = widest.filter(|(margin, _)| *margin > 0) else { return (Vec::new(), 0) };
        let (before, after) = self.last.split_at(at);
        let mut usual: Vec<Nanos> = before.iter().map(|a| a.own).collect();
        usual.sort_unstable();
        let usual = usual.get(usual.len() / 2).copied().unwrap_or(0);
        let own_doing = |a: &&Arrival| a.own.saturating_sub(usual) >= margin / 2;
        (after.iter().filter(own_doing).map(|a| a.rank).collect(), margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(Nanos, u32, Nanos)]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for (ts, rank, own) in list {
            arrivals.note(Arrival { ts: *ts, rank: *rank, own: *own });
        }
        arrivals
    }

    #[test]
    fn the_last_behind_the_widest_gap_is_late() {
        assert_eq!(of(&[(10, 0, 10), (90, 2, 90), (12, 1, 12), (11, 3, 11)]).late(), (vec![2], 78));
        assert_eq!(of(&[(10, 0, 10), (90, 2, 90), (12, 1, 12), (91, 3, 91)]).late(), (vec![2, 3], 78));
        assert_eq!(of(&[(10, 0, 1)]).late(), (vec![], 0));
        assert_eq!(of(&[(10, 0, 1), (10, 1, 1)]).late(), (vec![], 0));
    }

    #[test]
    fn one_that_waited_elsewhere_is_not_to_blame() {
        assert_eq!(of(&[(10, 0, 10), (90, 2, 11), (12, 1, 12), (11, 3, 11)]).late(), (vec![], 78));
    }

    #[test]
    fn of_many_the_last_are_kept() {
        let mut list: Vec<_> = (0..1000).map(|i| (i, i as u32, i)).collect();
        list.push((5000, 7777, 5000));
        let arrivals = of(&list);
        assert_eq!(arrivals.late(), (vec![7777], 4001));
        assert_eq!(arrivals.last.len(), KEPT);
    }
}
