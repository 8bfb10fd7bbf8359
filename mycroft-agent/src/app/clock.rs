//! The clock of the events.

use nix::time::{ClockId, clock_gettime};

use crate::model::Nanos;

/// CLOCK_MONOTONIC now, as `bpf_ktime_get_ns` gives it.
pub(super) fn now() -> Nanos {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// CPU time of the calling thread.
pub(super) fn thread_cpu() -> Nanos {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}
