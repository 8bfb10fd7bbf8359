//! From state and graph to verdicts. One rule, one file, with its documentation and its tests.
//!
//! Owns: judgement. Must not: do I/O, read a clock.

pub mod engine;
pub mod myc001_not_launched;
pub mod myc002_process_dead;
pub mod myc003_process_stopped;
pub mod myc004_ranks_differ;
pub mod myc005_gpu_stands_still;
pub mod myc006_proxy_not_running;
pub mod myc007_not_delivered;
pub mod myc008_not_sent;
pub mod myc009_deadlock;
pub mod myc010_send_recv_unmatched;
pub mod myc011_init_stuck;
pub mod myc012_communicator_error;
pub mod myc013_slow_rank;
pub mod myc014_slow_link;
pub mod myc015_slow_host;
pub mod myc016_progress_behind;
pub mod myc017_job_slow;
pub mod myc018_operations_drift;
pub mod myc019_left_early;
pub mod myc020_insufficient_evidence;
pub mod rule;
mod slow;
mod steps;
pub mod suspect;
mod transfers;
pub mod verdict;
pub mod words;

#[cfg(test)]
pub(crate) mod testing;

pub use engine::{Change, Engine};
pub use rule::{REGISTRY, Rule, View};
pub use verdict::{Confidence, Evidence, Level, Severity, Source, Subject, Verdict, VerdictKey};
