//! A launch as threads: one for each of its blocks, which is one for each channel.

use std::sync::atomic::AtomicU64;

use super::Model;
use super::conn::Block;
use super::layout::Works;
use super::place::{Field, Place};
use super::{work, work_old};
use crate::knobs;
use crate::launch::Launch;

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
