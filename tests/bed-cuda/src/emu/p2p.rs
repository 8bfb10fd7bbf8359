//! Send and receive: every transfer of a batch on a thread of its own, as every one has warps of its own on a GPU.

use super::block::Block;
use super::combine::Reduction;
use super::conn::{End, Way};
use super::func::Proto;
use super::step::{Cut, Step};

pub(super) struct Transfer {
    pub(super) way: Way,
    pub(super) proto: Proto,
    pub(super) peer: i32,
    pub(super) buffer: *mut u8,
    pub(super) bytes: usize,
    pub(super) chunk: usize,
}

// SAFETY: the buffer belongs to the transfer until its kernel has ended.
unsafe impl Sync for Transfer {}

pub(super) fn run_all(block: &Block<'_>, transfers: &[Transfer]) {
    std::thread::scope(|scope| {
        for transfer in transfers {
            let thread = std::thread::Builder::new().name("bed-block".into());
            if let Err(e) = thread.spawn_scoped(scope, || transfer.run(block)) {
                super::unsupported(&format!("no thread for a transfer: {e}"));
            }
        }
    });
}

impl Transfer {
    fn run(&self, block: &Block<'_>) {
        trace!("{:?} {:?} on channel {}", self.way, self.proto, block.channel_id);
        let mut end = [End::open(block, self.peer, self.way, 1, self.proto, 1)];
        let mut done = 0;
        // a transfer of nothing still takes a step
        loop {
            let n = self.chunk.min(self.bytes - done);
            let at = self.buffer.wrapping_add(done);
            let step = match self.way {
                Way::Send => Step { to: &mut end, input: Some(at.cast_const()), ..Step::default() },
                Way::Recv => Step { from: &mut end, output: Some(at), ..Step::default() },
            };
            // SAFETY: `done + n <= bytes`, and NCCL's caller vouches for the buffer.
            if unsafe { step.run(block, &Reduction::COPY, Cut::NONE, n) }.is_err() {
                break;
            }
            done += n;
            if done >= self.bytes {
                break;
            }
        }
        end.into_iter().for_each(End::close);
    }
}
