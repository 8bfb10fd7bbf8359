//! What the bed's own tests share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mycroft_bed::{Builder, Job};

/// Longer than anything takes, even when other work slows the machine down.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Releases to test with: `BED_NCCL`, separated by commas.
pub(crate) fn releases() -> Vec<String> {
    std::env::var("BED_NCCL").unwrap_or_else(|_| "2.27.5".into()).split(',').map(|v| v.trim().to_owned()).collect()
}

/// One job at a time: a job of four ranks is enough for the machine.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job of a release.
pub(crate) fn job(release: &str) -> Builder {
    Job::builder().nccl(release).timeout(LONG * 2)
}
