//! How a communicator usually behaves, so that "too long" is measured against its own habits.

use std::collections::VecDeque;

use super::ids::{Nanos, SECOND};

/// How many finished collectives are remembered.
const MEMORY: usize = 64;
/// From how many on the habits count.
const KNOWN_FROM: usize = 8;
/// The newest of them, against which the older ones are held to see whether the pace has changed.
const RECENT: usize = 8;

/// Bounds of the time that a rank may be late before it is a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Never less. Default 2 s.
    pub least: Nanos,
    /// Before the habits are known. Default 10 s: first steps compile and load.
    pub unknown: Nanos,
    /// Never more. Default 60 s.
    pub most: Nanos,
}

impl Default for Patience {
    fn default() -> Self {
        Self { least: 2 * SECOND, unknown: 10 * SECOND, most: 60 * SECOND }
    }
}

/// One finished collective: when its ranks came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    pub seq: u64,
    /// First rank's launch.
    pub at: Nanos,
    /// Last rank's launch − first rank's.
    pub skew: Nanos,
    /// Ranks that came together as the last, well behind the others and by their own doing; empty if none stands out.
    pub late: Vec<u32>,
    /// How far those came behind the others.
    pub margin: Nanos,
}

/// The newest finished collectives.
#[derive(Clone, Debug, Default)]
pub struct Rhythm {
    rounds: VecDeque<Round>,
    /// Collectives that all known ranks have launched.
    pub completed: u64,
    /// Typical time between two collectives while the job ran as it should: the smallest median seen.
    usual: Option<Nanos>,
}

impl Rhythm {
    pub fn record(&mut self, round: Round) {
        if self.rounds.len() == MEMORY {
            self.rounds.pop_front();
        }
        self.rounds.push_back(round);
        self.completed += 1;
        if self.rounds.len() == MEMORY && self.completed.is_multiple_of(MEMORY as u64 / 2) {
            let median = self.interval(MEMORY);
            self.usual = Some(self.usual.map_or(median, |u| u.min(median)));
        }
    }

    pub fn rounds(&self) -> impl DoubleEndedIterator<Item = &Round> + ExactSizeIterator {
        self.rounds.iter()
    }

    /// Largest skew in memory.
    #[must_use]
    pub fn largest_skew(&self) -> Nanos {
        self.rounds.iter().map(|r| r.skew).max().unwrap_or(0)
    }

    /// How long a rank may be late here: three times the largest recent lateness, within the bounds.
    #[must_use]
    pub fn patience(&self, bounds: &Patience) -> Nanos {
        if self.rounds.len() < KNOWN_FROM {
            return bounds.unknown;
        }
        (3 * self.largest_skew()).clamp(bounds.least, bounds.most)
    }

    /// Mean time between two collectives over the newest `n`. A mean, as collectives come in bursts: within a step they
    /// follow each other at once, and the pause is between the steps.
    fn interval(&self, n: usize) -> Nanos {
        let from = self.rounds.len().saturating_sub(n);
        let (Some(first), Some(last)) = (self.rounds.get(from), self.rounds.back()) else { return 0 };
        let steps = (self.rounds.len() - from).saturating_sub(1).max(1) as u64;
        last.at.saturating_sub(first.at) / steps
    }

    /// How much slower the communicator is than it used to be: its pace of now and its usual one.
    #[must_use]
    pub fn pace(&self) -> Option<(Nanos, Nanos)> {
        let usual = self.usual?;
        (self.rounds.len() >= RECENT && usual > 0).then(|| (self.interval(MEMORY), usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::MILLISECOND;

    fn round(seq: u64, at: Nanos, skew: Nanos) -> Round {
        Round { seq, at, skew, late: Vec::new(), margin: 0 }
    }

    #[test]
    fn patience_follows_the_habit_within_bounds() {
        let bounds = Patience::default();
        let mut r = Rhythm::default();
        assert_eq!(r.patience(&bounds), 10 * SECOND, "nothing known");
        for _ in 0..8 {
            r.record(round(0, 0, 5 * MILLISECOND));
        }
        assert_eq!(r.patience(&bounds), 2 * SECOND, "quick job: the least");
        r.record(round(0, 0, 3 * SECOND));
        assert_eq!(r.patience(&bounds), 9 * SECOND, "one rank was 3 s late: three times that");
        r.record(round(0, 0, 300 * SECOND));
        assert_eq!(r.patience(&bounds), 60 * SECOND, "never more than the most");
        for _ in 0..MEMORY {
            r.record(round(0, 0, MILLISECOND));
        }
        assert_eq!(r.patience(&bounds), 2 * SECOND, "old habits are forgotten");
    }

    #[test]
    fn the_usual_pace_is_the_best_one_kept() {
        let mut r = Rhythm::default();
        let mut at = 0;
        for seq in 0..100 {
            at += 10 * MILLISECOND;
            r.record(round(seq, at, 0));
        }
        assert_eq!(r.pace(), Some((10 * MILLISECOND, 10 * MILLISECOND)));
        for seq in 100..200 {
            at += 30 * MILLISECOND;
            r.record(round(seq, at, 0));
        }
        assert_eq!(r.pace(), Some((30 * MILLISECOND, 10 * MILLISECOND)));
    }
}
