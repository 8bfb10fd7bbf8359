//! Test bed: jobs of real `libnccl` processes on a machine with no GPU, and faults to put into them.
//!
//! NCCL's host code, proxy threads and sockets are real; the CUDA runtime and the GPU kernels are stood in for by
//! `libbed_cuda.so`. See `docs/testbed.md`.
//!
//! ```no_run
//! use std::time::Duration;
//! use mycroft_bed::{Fault, Job, Op};
//!
//! # fn main() -> anyhow::Result<()> {
//! let job = Job::builder().nccl("2.27.5").ranks(4).op(Op::AllReduce).count(100_000).iters(0).start()?;
//! job.wait_iteration(20, Duration::from_secs(30))?;
//! job.inject(Fault::NeverEnter { rank: 2, at: mycroft_bed::NOW })?;
//! println!("rank 2 is process {}", job.rank(2).pid());
//! # Ok(())
//! # }
//! ```

mod artifacts;
mod builder;
pub mod control;
mod control_words;
pub mod fault;
mod job;
pub mod layout;
mod nccl;
mod netns;
mod rank;
mod spawn;
mod starve;
mod workload;

pub use builder::Builder;
pub use control::Phase;
pub use fault::{Fault, NOW, Timed};
pub use job::Job;
pub use nccl::{NotSetUp, library};
pub use rank::Rank;
pub use workload::{Algorithm, Dtype, Op, Protocol, RedOp, Step};
