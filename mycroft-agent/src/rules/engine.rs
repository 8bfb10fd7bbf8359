//! Runs the rules and keeps their verdicts over time: a verdict appears once, is updated, and clears.

use std::collections::BTreeMap;

use super::{REGISTRY, Verdict, VerdictKey, View, steps};
use crate::model::{
    State,
    ids::{Nanos, SECOND},
    rhythm::Patience,
};

/// A verdict must be gone this long before it clears, so that one late heartbeat does not make two findings.
const HOLD: Nanos = SECOND;

/// What an evaluation changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new finding.
    Raised(Verdict),
    /// Its headline or severity is another now.
    Updated(Verdict),
    /// It no longer holds.
    Cleared(Verdict),
}

#[derive(Clone, Debug)]
struct Active {
    verdict: Verdict,
    last_true: Nanos,
}

/// The verdicts in force.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    pub patience: Patience,
    active: BTreeMap<VerdictKey, Active>,
    /// Verdicts raised so far, by rule.
    pub raised: BTreeMap<&'static str, u64>,
}

impl Engine {
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Judges the state as it is.
    pub fn evaluate(&mut self, state: &State) -> Vec<Change> {
        let view = View::new(state, &self.patience);
        let mut found: Vec<Verdict> = REGISTRY.iter().flat_map(|r| (r.check)(&view)).collect();
        for verdict in &mut found {
            verdict.chain = steps::chain(&view, verdict);
        }
        self.merge(found, state.now)
    }

    fn merge(&mut self, found: Vec<Verdict>, now: Nanos) -> Vec<Change> {
        let mut changes = Vec::new();
        for verdict in found {
            match self.active.get_mut(&verdict.key()) {
                Some(a) => {
                    let told =
                        a.verdict.severity == verdict.severity && a.verdict.evidence.len() == verdict.evidence.len();
                    a.last_true = now;
                    a.verdict = verdict;
                    if !told {
                        changes.push(Change::Updated(a.verdict.clone()));
                    }
                }
                None => {
                    *self.raised.entry(verdict.rule).or_default() += 1;
                    changes.push(Change::Raised(verdict.clone()));
                    self.active.insert(verdict.key(), Active { verdict, last_true: now });
                }
            }
        }
        self.active.retain(|_, a| {
            let keep = a.last_true.saturating_add(HOLD) > now;
            if !keep {
                changes.push(Change::Cleared(a.verdict.clone()));
            }
            keep
        });
        changes
    }

    /// Verdicts in force, worst first.
    #[must_use]
    pub fn active(&self) -> Vec<&Verdict> {
        let mut list: Vec<&Verdict> = self.active.values().map(|a| &a.verdict).collect();
        list.sort_by_key(|v| (std::cmp::Reverse(v.severity), v.since));
        list
    }
}
