//! One end of a connection: waiting for a slot's data or for its room, and handing it on.

use std::sync::atomic::{AtomicU64, Ordering};

use super::block::{Aborted, Block, SLOTS};
use super::func::Proto;
use super::layout::{Layout, Records, Slots};
use super::lines;
use super::place::{Field, Place, Plain};

/// A slot's record says so when the data lie at an offset of their own.
const MODE_OFFSET: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    Recv,
}

/// One end of a connection while a kernel uses it.
pub(super) struct End<'a> {
    layout: &'a Layout,
    info: Place,
    step: u64,
    proto: Proto,
    /// Of a buffer of its own, where slots follow each other.
    slot_bytes: usize,
}

impl<'a> End<'a> {
    /// `index`: 0 for collectives, 1 for send/recv. `unit`: steps move in multiples of it.
    pub(super) fn open(block: &Block<'a>, peer: i32, way: Way, index: usize, proto: Proto, unit: u64) -> End<'a> {
        let conn = &block.layout.conn;
        let peers = block.channel.follow(block.layout.channel.peers);
        let peer = peers.follow(Field::new(0).nth(peer as usize));
        let first = if way == Way::Send { conn.peer_send } else { conn.peer_recv };
        let info = peer.plus(first + index * conn.size);
        let step = info.get(conn.step).next_multiple_of(unit);
        if way == Way::Recv && proto == Proto::Simple {
            info.follow(conn.head).counter().store(step, Ordering::Release);
        }
        let slot_bytes = match &block.layout.slots {
            Slots::Records(r) if proto == Proto::Simple => info.get(r.slot_size) as usize,
            _ => block.slot_bytes(proto),
        };
        End { layout: block.layout, info, step, proto, slot_bytes }
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
        (self.step % SLOTS as u64) as usize
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

    /// Where the current slot lies in a buffer that connections share: not with lines.
    fn shared_offset(&self) -> Option<usize> {
        if self.proto != Proto::Simple {
            return None;
        }
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
        let buffer = self.info.follow(self.layout.conn.buffers.nth(self.proto as usize)).address();
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

    /// Waits for `bytes` of data in the current slot.
    pub(super) fn await_data(&self, block: &Block<'_>, steps: u64, bytes: usize) -> Result<Arrived, Aborted> {
        let in_tail = || self.tail().load(Ordering::Acquire) >= self.step + steps;
        if self.proto == Proto::Simple {
            block.wait(in_tail)?;
            return Ok(Arrived::Slot(self.slot()));
        }
        let (slot, mut seen) = (self.slot(), 0);
        // SAFETY: the slot is the connection's, and a step fits into a slot.
        block.wait(|| unsafe { lines::arrived(self.proto, slot, self.step, bytes, &mut seen) })?;
        if self.proto == Proto::Ll128 {
            // a GPU sees a line at once or not at all; the kernel's copy out of a socket promises less
            block.wait(in_tail)?;
        }
        // SAFETY: as above, and all of it has arrived.
        Ok(Arrived::Unpacked(unsafe { lines::unpack(self.proto, slot, bytes) }))
    }

    /// Waits until the current slot is free, and tells the proxy how much it will hold.
    pub(super) fn await_room(&self, block: &Block<'_>, steps: u64, bytes: usize) -> Result<(), Aborted> {
        // the sum wraps: a head that begins at minus eight gives no room until the proxy says where the slots are
        let room = || self.head().load(Ordering::Acquire).wrapping_add(SLOTS as u64) >= self.step + steps;
        block.wait(room)?;
        self.announce(lines::wire_bytes(self.proto, bytes));
        Ok(())
    }

    /// Where data can be written that need no packing.
    pub(super) fn plain_slot(&self) -> Option<*mut u8> {
        (self.proto == Proto::Simple).then(|| self.slot())
    }

    /// Puts `bytes` of data into the current slot; without data, only what makes it valid.
    ///
    /// # Safety
    /// `data` is valid for `bytes`.
    pub(super) unsafe fn fill(&self, data: Option<*const u8>, bytes: usize) {
        let slot = self.slot();
        // SAFETY: by this function's contract; a step fits into a slot, which is ours until it is posted.
        unsafe {
            match (self.proto, data) {
                (Proto::Simple, Some(data)) if data != slot.cast_const() => {
                    std::ptr::copy_nonoverlapping(data, slot, bytes);
                }
                (Proto::Simple, _) => {}
                (proto, Some(data)) => {
                    lines::pack(proto, slot, self.step, std::slice::from_raw_parts(data, bytes));
                }
                (proto, None) => lines::pack(proto, slot, self.step, &vec![0; bytes]),
            }
        }
    }

    /// Gives the current slot back to the sender.
    pub(super) fn release(&mut self, steps: u64) {
        self.step += steps;
        self.head().store(self.step, Ordering::Release);
    }

    /// Gives the current slot to the receiver. With LL, the flags in the data do that.
    pub(super) fn post(&mut self, steps: u64) {
        self.step += steps;
        if self.proto != Proto::Ll {
            self.tail().store(self.step, Ordering::Release);
        }
    }
}

/// What has arrived.
pub(super) enum Arrived {
    Slot(*const u8),
    Unpacked(Vec<u8>),
}

impl Arrived {
    pub(super) fn address(&self) -> *const u8 {
        match self {
            Arrived::Slot(at) => *at,
            Arrived::Unpacked(bytes) => bytes.as_ptr(),
        }
    }
}
