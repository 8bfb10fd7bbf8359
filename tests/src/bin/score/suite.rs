//! All classes × seeds × sizes × what is missing, on all cores.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use mycroft_agent::simulate::scenario::CLASSES;

use crate::{
    note,
    run::{self, Case, Gap, Outcome},
};

/// Runs of each class: ranks, what is missing, seeds.
type Plan = &'static [(u32, Gap, u64)];

const FULL: Plan = &[
    (8, Gap::Nothing, 10),
    (64, Gap::Nothing, 10),
    (256, Gap::Nothing, 4),
    (1024, Gap::Nothing, 3),
    (4096, Gap::Nothing, 1),
    (64, Gap::Lost(10), 5),
    (64, Gap::Lost(100), 5),
    (64, Gap::OtherHost, 5),
    (64, Gap::CulpritsHost, 5),
    (64, Gap::Completions, 3),
    (1024, Gap::Lost(10), 1),
    (1024, Gap::Lost(100), 1),
    (1024, Gap::OtherHost, 1),
];
const QUICK: Plan = &[(8, Gap::Nothing, 2), (64, Gap::Nothing, 1), (64, Gap::Lost(100), 1), (64, Gap::OtherHost, 1)];

pub(crate) fn run(quick: bool) -> Vec<Outcome> {
    let plan = if quick { QUICK } else { FULL };
    let mut cases = Vec::new();
    for (ranks, gap, seeds) in plan {
        for class in CLASSES.iter().filter(|c| c.least <= *ranks) {
            cases.extend((0..*seeds).map(|seed| Case { class, seed, ranks: *ranks, gap: *gap }));
        }
    }
    // The long ones first, so that no core is left with one at the end.
    cases.sort_by_key(|c| std::cmp::Reverse(c.ranks));
    in_parallel(&cases, |case| run::run(*case, &mut |_| ()))
}

/// Results in the order of the inputs, whichever core made them.
pub(crate) fn in_parallel<T: Sync, R: Send>(inputs: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(input) = inputs.get(i) else { return };
                    let result = work(input);
                    if let Ok(mut all) = results.lock() {
                        all.push((i, result));
                        if all.len().is_multiple_of(100) {
                            note(&format!("{} of {} runs", all.len(), inputs.len()));
                        }
                    }
                }
            });
        }
    });
    let mut all = results.into_inner().unwrap_or_default();
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}
