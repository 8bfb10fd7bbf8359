//! One end of a connection, and the step that all of NCCL's rings are made of.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::combine::Reduction;
use super::func::Proto;
use super::layout::{Layout, Records, Slots};
use super::place::{Field, Place, Plain};
use crate::knobs;

/// Slots of a connection's buffer.
const SLOTS: u64 = 8;
/// A slot's record says so when the data lie at an offset of their own.
const MODE_OFFSET: i32 = 1;

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
        self.comm.get(self.layout.comm.buffer_sizes.nth(proto as usize)) as usize / SLOTS as usize
    }

    /// Counts a step; this is where a stall of the GPU takes hold.
    fn begin_step(&self) -> Result<(), Aborted> {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        while knobs::stalls(self.rank as u64, self.collective, step) {
            if self.aborted() {
                return Err(Aborted);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits until `counter` and `ahead` have reached `upto`, as a kernel does: by looking again and again.
    ///
    /// The sum wraps: a head that begins at minus eight gives no room until the proxy says where the slots are.
    fn wait(&self, counter: &AtomicU64, ahead: u64, upto: u64) -> Result<(), Aborted> {
        let mut spins = 0u32;
        while counter.load(Ordering::Acquire).wrapping_add(ahead) < upto {
            if self.aborted() {
                return Err(Aborted);
            }
            spins += 1;
            // Never a yield: see `yielding`.
            std::thread::sleep(Duration::from_micros(if spins < 500 { 20 } else { 200 }));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    Recv,
}

/// One end of a connection while a kernel uses it.
pub(super) struct End<'a> {
    layout: &'a Layout,
    info: Place,
    step: u64,
    /// Of a buffer of its own, where slots follow each other.
    slot_bytes: usize,
}

impl<'a> End<'a> {
    /// `index`: 0 for collectives, 1 for send/recv. `unit`: steps move in multiples of it.
    pub(super) fn open(block: &Block<'a>, peer: i32, way: Way, index: usize, unit: u64) -> End<'a> {
        let conn = &block.layout.conn;
        let peers = block.channel.follow(block.layout.channel.peers);
        let peer = peers.follow(Field::new(0).nth(peer as usize));
        let first = if way == Way::Send { conn.peer_send } else { conn.peer_recv };
        let info = peer.plus(first + index * conn.size);
        let step = info.get(conn.step).next_multiple_of(unit);
        if way == Way::Recv {
            info.follow(conn.head).counter().store(step, Ordering::Release);
        }
        let slot_bytes = match &block.layout.slots {
            Slots::Records(r) => info.get(r.slot_size) as usize,
            Slots::Arrays { .. } => block.slot_bytes(Proto::Simple),
        };
        End { layout: block.layout, info, step, slot_bytes }
    }

    /// Leaves the step for the next kernel.
    pub(super) fn close(self) {
        self.info.set(self.layout.conn.step, self.step);
    }

    fn head(&self) -> &'static AtomicU64 {
        self.info.follow(self.layout.conn.head).counter()
    }

    fn tail(&self) -> &'static AtomicU64 {
        self.info.follow(self.layout.conn.tail).counter()
    }

    /// The number of the current slot.
    fn nth(&self) -> usize {
        (self.step % SLOTS) as usize
    }

    /// The current slot's element of an array that a pointer of the connection leads to.
    fn element<T: Plain>(&self, array: Field<*mut u8>) -> Option<(Place, Field<T>)> {
        let array = self.info.follow(array);
        (!array.is_null()).then(|| (array, Field::new(0).nth(self.nth())))
    }

    /// The record of the current slot, through which kernel and proxy talk.
    fn record(&self, records: &Records) -> Option<Place> {
        let first = self.info.follow(records.first);
        (!first.is_null()).then(|| first.plus(self.nth() * records.size))
    }

    /// Where the current slot lies in a buffer that connections share.
    fn shared_offset(&self) -> Option<usize> {
        match &self.layout.slots {
            Slots::Records(r) => {
                let record = self.record(r).filter(|p| p.load(r.mode) == MODE_OFFSET)?;
                Some(if r.wide_offset {
                    record.get(Field::<u64>::new(r.offset)) as usize
                } else {
                    record.get(Field::<i32>::new(r.offset)) as usize
                })
            }
            Slots::Arrays { offsets, .. } => {
                let (array, field) = self.element::<i32>(*offsets)?;
                Some(array.load(field) as usize)
            }
        }
    }

    /// Where the data of the current slot lie.
    fn slot(&self) -> *mut u8 {
        let buffer = self.info.follow(self.layout.conn.buffers.nth(Proto::Simple as usize)).address();
        buffer.wrapping_add(self.shared_offset().unwrap_or(self.nth() * self.slot_bytes))
    }

    /// Tells the proxy how much the current slot holds.
    fn announce(&self, bytes: usize) {
        match &self.layout.slots {
            Slots::Records(r) => {
                if let Some(record) = self.record(r) {
                    record.set(r.bytes, bytes as u64);
                }
            }
            Slots::Arrays { sizes, .. } => {
                if let Some((array, field)) = self.element::<i32>(*sizes) {
                    array.set(field, bytes as i32);
                }
            }
        }
    }

    fn await_data(&self, block: &Block<'_>, steps: u64) -> Result<*const u8, Aborted> {
        block.wait(self.tail(), 0, self.step + steps)?;
        Ok(self.slot())
    }

    fn await_room(&self, block: &Block<'_>, steps: u64, bytes: usize) -> Result<*mut u8, Aborted> {
        block.wait(self.head(), SLOTS, self.step + steps)?;
        self.announce(bytes);
        Ok(self.slot())
    }

    fn post(&mut self, counter: &AtomicU64, steps: u64) {
        self.step += steps;
        counter.store(self.step, Ordering::Release);
    }
}

/// How a chunk is cut: slices a chunk, steps a slice, and the bytes of a step.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) slices: usize,
    pub(super) steps: u64,
    pub(super) step_bytes: usize,
}

impl Cut {
    pub(super) fn unit(self) -> u64 {
        self.slices as u64 * self.steps
    }

    /// Elements of a slice of a chunk of `n`.
    fn slice(self, n: usize, size: usize) -> usize {
        let even = n.div_ceil(16 * self.slices) * 16;
        even.max(self.step_bytes / size * self.steps as usize / 32)
    }
}

/// What a step takes and gives; `None` for what it does without.
#[derive(Default)]
pub(super) struct Step<'e, 'a> {
    pub(super) from: Option<&'e mut End<'a>>,
    pub(super) to: Option<&'e mut End<'a>>,
    pub(super) input: Option<*const u8>,
    pub(super) output: Option<*mut u8>,
    /// The output is final.
    pub(super) finish: bool,
}

impl Step<'_, '_> {
    /// Takes `n` elements that arrive and/or the local input, and gives the result to the output and/or the next rank.
    ///
    /// # Safety
    /// `input` and `output` are valid for `n` elements of the reduction's type.
    pub(super) unsafe fn run(mut self, block: &Block<'_>, op: &Reduction, cut: Cut, n: usize) -> Result<(), Aborted> {
        let size = op.elem.size();
        let slice = cut.slice(n, size);
        let mut done = 0;
        for _ in 0..cut.slices {
            block.begin_step()?;
            let part = slice.min(n - done);
            let arrived = self.from.as_ref().map(|e| e.await_data(block, cut.steps)).transpose()?;
            let out = self.to.as_ref().map(|e| e.await_room(block, cut.steps, part * size)).transpose()?;
            if part > 0 && block.moves_data {
                // SAFETY: `done + part <= n`, so the buffers are valid there; a slot holds a slice.
                unsafe {
                    let input = self.input.map(|p| p.add(done * size));
                    let output = self.output.map(|p| p.add(done * size));
                    move_data(op, arrived, input, output, out, part, self.finish);
                }
            }
            if let Some(end) = self.from.as_mut() {
                end.post(end.head(), cut.steps);
            }
            if let Some(end) = self.to.as_mut() {
                end.post(end.tail(), cut.steps);
            }
            done += part;
        }
        Ok(())
    }
}

/// # Safety
/// Every address given is valid for `n` elements.
unsafe fn move_data(
    op: &Reduction,
    arrived: Option<*const u8>,
    input: Option<*const u8>,
    output: Option<*mut u8>,
    out: Option<*mut u8>,
    n: usize,
    finish: bool,
) {
    let bytes = n * op.elem.size();
    let Some(to) = output.or(out) else { return };
    let mut scaled = Vec::new();
    // SAFETY: by this function's contract; `scaled` has room for `n` elements.
    unsafe {
        let input = input.map(|input| {
            if !op.has_pre() {
                return input;
            }
            scaled.resize(bytes, 0u8);
            op.pre(scaled.as_mut_ptr(), input, n);
            scaled.as_ptr()
        });
        match (arrived, input) {
            (Some(a), Some(b)) => op.combine(to, a, b, n),
            (Some(one), None) | (None, Some(one)) => std::ptr::copy(one, to, bytes),
            (None, None) => return,
        }
        if finish && op.has_post() {
            op.post(to, n);
        }
        if let (Some(output), Some(out)) = (output, out) {
            std::ptr::copy_nonoverlapping(output, out, bytes);
        }
    }
}
