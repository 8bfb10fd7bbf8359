//! How a communicator usually behaves, so that "too long" is measured against its own habits.

use std::collections::VecDeque;

use super::ids::{Nanos, SECOND};

/// How many finished collectives are remembered.
const MEMORY: usize = 64;
/// From how many on the habits count.
const KNOWN_FROM: usize = 8;

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

/// Arrival skews (last rank's launch − first rank's) of the newest collectives.
#[derive(Clone, Debug, Default)]
pub struct Rhythm {
    skews: VecDeque<Nanos>,
    /// Collectives that all known ranks have launched.
    pub completed: u64,
}

impl Rhythm {
    pub fn record(&mut self, skew: Nanos) {
        if self.skews.len() == MEMORY {
            self.skews.pop_front();
        }
        self.skews.push_back(skew);
        self.completed += 1;
    }

    /// Largest skew in memory.
    #[must_use]
    pub fn largest_skew(&self) -> Nanos {
        self.skews.iter().copied().max().unwrap_or(0)
    }

    /// How long a rank may be late here: three times the largest recent lateness, within the bounds.
    #[must_use]
    pub fn patience(&self, bounds: &Patience) -> Nanos {
        if self.skews.len() < KNOWN_FROM {
            return bounds.unknown;
        }
        (3 * self.largest_skew()).clamp(bounds.least, bounds.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::MILLISECOND;

    #[test]
    fn patience_follows_the_habit_within_bounds() {
        let bounds = Patience::default();
        let mut r = Rhythm::default();
        assert_eq!(r.patience(&bounds), 10 * SECOND, "nothing known");
        for _ in 0..8 {
            r.record(5 * MILLISECOND);
        }
        assert_eq!(r.patience(&bounds), 2 * SECOND, "quick job: the least");
        r.record(3 * SECOND);
        assert_eq!(r.patience(&bounds), 9 * SECOND, "one rank was 3 s late: three times that");
        r.record(300 * SECOND);
        assert_eq!(r.patience(&bounds), 60 * SECOND, "never more than the most");
        for _ in 0..MEMORY {
            r.record(MILLISECOND);
        }
        assert_eq!(r.patience(&bounds), 2 * SECOND, "old habits are forgotten");
    }
}
