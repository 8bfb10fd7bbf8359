//! A launch as threads: one for each of its blocks, which is one for each channel.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::Model;
use super::func::Proto;
use super::layout::{Layout, Works};
use super::place::{Field, Place};
use super::{work, work_old};
use crate::knobs;
use crate::launch::Launch;

/// Slots of a connection's buffer.
pub(super) const SLOTS: usize = 8;

/// The communicator was aborted: the kernel ends where it is.
pub(super) struct Aborted;

/// What the threads of one block share.
pub(super) struct Block<'a> {
    pub(super) layout: &'a Layout,
    pub(super) comm: Place,
    pub(super) channel: Place,
    pub(super) channel_id: u32,
    pub(super) rank: i32,
    pub(super) ranks: i32,
    /// Number of this kernel on its rank.
    pub(super) collective: u64,
    /// Steps that this block has begun.
    pub(super) steps: AtomicU64,
    pub(super) abort: Option<&'static AtomicU32>,
    pub(super) moves_data: bool,
}

impl Block<'_> {
    pub(super) fn aborted(&self) -> bool {
        self.abort.is_some_and(|a| a.load(Ordering::Acquire) != 0)
    }

    /// Bytes of a connection's slot, by protocol.
    pub(super) fn slot_bytes(&self, proto: Proto) -> usize {
        self.comm.get(self.layout.comm.buffer_sizes.nth(proto as usize)) as usize / SLOTS
    }

    /// Counts a step; this is where a stall of the GPU takes hold.
    pub(super) fn begin_step(&self) -> Result<(), Aborted> {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        while knobs::stalls(self.rank as u64, self.collective, step) {
            if self.aborted() {
                return Err(Aborted);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits as a kernel does: by looking again and again. Never by a yield: see `yielding`.
    pub(super) fn wait(&self, mut ready: impl FnMut() -> bool) -> Result<(), Aborted> {
        let mut spins = 0u32;
        while !ready() {
            if self.aborted() {
                return Err(Aborted);
            }
            spins += 1;
            std::thread::sleep(Duration::from_micros(match spins {
                0..500 => 20,
                500..2000 => 200,
                _ => 1000,
            }));
        }
        Ok(())
    }
}

pub(super) fn run_all(model: &Model, launch: &Launch) {
    // SAFETY: the launch keeps its copy of the arguments until the kernel has ended; they are only read.
    let args = unsafe { Place::new(launch.args.as_ptr().cast_mut().cast()) };
    let (comm, channels) = match &model.layout.works {
        Works::Batches(b) => (args.follow(b.comm), args.get(b.channel_mask)),
        Works::Fifo(_) => (args.follow(Field::new(0)), args.get(Field::new(8))),
    };
    let rank = comm.get(model.layout.comm.rank);
    let collective = knobs::count_launch(rank as u64);
    let moves_data = knobs::moves_data(rank as u64);
    std::thread::scope(|scope| {
        for (index, channel_id) in (0..64).filter(|c| channels >> c & 1 == 1).take(launch.blocks as usize).enumerate() {
            let block = open(model, comm, channel_id, collective, moves_data);
            let thread = std::thread::Builder::new().name("bed-block".into());
            let started = thread.spawn_scoped(scope, move || match &model.layout.works {
                Works::Batches(b) => work::run(model, b, args, &block, index),
                Works::Fifo(w) => work_old::run(model, w, args.follow(Field::new(16)), &block, index),
            });
            if let Err(e) = started {
                super::unsupported(&format!("no thread for a block: {e}"));
            }
        }
    });
}

fn open(model: &Model, comm: Place, channel_id: u32, collective: u64, moves_data: bool) -> Block<'_> {
    let layout = &model.layout;
    let abort = comm.follow(layout.comm.abort);
    Block {
        layout,
        comm,
        channel: comm.follow(layout.comm.channels).plus(channel_id as usize * layout.channel.size),
        channel_id,
        rank: comm.get(layout.comm.rank),
        ranks: comm.get(layout.comm.ranks),
        collective,
        steps: AtomicU64::new(0),
        abort: (!abort.is_null()).then(|| abort.flag()),
        moves_data,
    }
}
