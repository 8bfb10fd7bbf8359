//! The step that all of NCCL's rings and trees are made of: take what arrives, combine it, pass it on.

use super::block::{Aborted, Block};
use super::combine::Reduction;
use super::conn::{Arrived, End};
use super::func::Proto;

/// How a chunk is cut: slices a chunk, steps a slice, and the bytes of a step.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) slices: usize,
    pub(super) steps: u64,
    pub(super) step_bytes: usize,
}

impl Cut {
    /// A chunk in one step.
    pub(super) const NONE: Cut = Cut { slices: 1, steps: 1, step_bytes: 0 };

    /// In two slices, or in one, as far as the protocol slices at all.
    pub(super) fn new(block: &Block<'_>, proto: Proto, in_two: bool) -> Cut {
        match (proto, in_two) {
            (Proto::Simple, true) => Cut { slices: 2, steps: 2, step_bytes: block.slot_bytes(proto) },
            (Proto::Simple, false) => Cut { step_bytes: block.slot_bytes(proto), ..Cut::NONE },
            _ => Cut::NONE,
        }
    }

    pub(super) fn unit(self) -> u64 {
        self.slices as u64 * self.steps
    }

    /// Elements of a slice of a chunk of `n`.
    fn slice(self, n: usize, size: usize) -> usize {
        let even = n.div_ceil(16 * self.slices) * 16;
        even.max(self.step_bytes / size * self.steps as usize / 32)
    }
}

/// What a step takes and gives; `None`, or no end, for what it does without.
#[derive(Default)]
pub(super) struct Step<'e, 'a> {
    pub(super) from: &'e mut [End<'a>],
    pub(super) to: &'e mut [End<'a>],
    pub(super) input: Option<*const u8>,
    pub(super) output: Option<*mut u8>,
    /// The output is final.
    pub(super) finish: bool,
}

impl Step<'_, '_> {
    /// Takes `n` elements that arrive and/or the local input, and gives the result to the output and/or other ranks.
    ///
    /// # Safety
    /// `input` and `output` are valid for `n` elements of the reduction's type.
    pub(super) unsafe fn run(self, block: &Block<'_>, op: &Reduction, cut: Cut, n: usize) -> Result<(), Aborted> {
        let size = op.elem.size();
        let slice = cut.slice(n, size);
        let mut done = 0;
        for _ in 0..cut.slices {
            block.begin_step()?;
            let part = slice.min(n - done);
            let bytes = part * size;
            let arrived: Result<Vec<_>, _> = self.from.iter().map(|e| e.await_data(block, cut.steps, bytes)).collect();
            let arrived = arrived?;
            self.to.iter().try_for_each(|e| e.await_room(block, cut.steps, bytes))?;
            // SAFETY: `done + part <= n`, so the buffers are valid there; a slot holds a slice.
            unsafe {
                if part > 0 && block.moves_data {
                    self.move_data(op, &arrived, done, part);
                } else {
                    self.to.iter().for_each(|e| e.fill(None, bytes));
                }
            }
            self.from.iter_mut().for_each(|e| e.release(cut.steps));
            self.to.iter_mut().for_each(|e| e.post(cut.steps));
            done += part;
        }
        Ok(())
    }

    /// # Safety
    /// Input and output are valid for `n` elements from the `done`th on, everything else for `n`.
    unsafe fn move_data(&self, op: &Reduction, arrived: &[Arrived], done: usize, n: usize) {
        let size = op.elem.size();
        let bytes = n * size;
        let mut own = Vec::new();
        let plain = self.to.first().and_then(End::plain_slot);
        let result = self.output.map(|p| p.wrapping_add(done * size)).or(plain).unwrap_or_else(|| {
            own.resize(bytes, 0u8);
            own.as_mut_ptr()
        });
        let mut scaled = Vec::new();
        // SAFETY: by this function's contract; `scaled` and `own` have room for `n` elements.
        unsafe {
            let input = self.input.map(|input| {
                let input = input.add(done * size);
                if !op.has_pre() {
                    return input;
                }
                scaled.resize(bytes, 0u8);
                op.pre(scaled.as_mut_ptr(), input, n);
                scaled.as_ptr()
            });
            // the input first: the result may overwrite it
            let mut sources = input.into_iter().chain(arrived.iter().map(Arrived::address));
            let Some(first) = sources.next() else { return };
            match sources.next() {
                None => std::ptr::copy(first, result, bytes),
                Some(second) => op.combine(result, first, second, n),
            }
            for another in sources {
                op.combine(result, result.cast_const(), another, n);
            }
            if self.finish && op.has_post() {
                op.post(result, n);
            }
            self.to.iter().for_each(|e| e.fill(Some(result), bytes));
        }
    }
}
