//! Works of NCCL 2.22 and later: batches that point to work descriptors, in the arguments or in a fifo.

use super::Model;
use super::block::Block;
use super::combine::Reduction;
use super::conn::Way;
use super::func::{Coll, Function, Proto};
use super::layout::{Batches, Coll as CollLayout};
use super::p2p::{self, Transfer};
use super::place::{Field, Place};
use super::ring::Part;
use super::rounds::Share;

const STORED_IN_ARGS: u8 = 0;
const KIND_P2P: u64 = 0;
const KIND_COLL: u64 = 1;
/// Chunks of collectives come in grains of this many bytes.
const fn grain_bytes(proto: Proto) -> usize {
    match proto {
        Proto::Ll => 16,
        Proto::Ll128 => 1920,
        Proto::Simple => 512,
    }
}

/// Runs all batches of one block.
pub(super) fn run(model: &Model, b: &Batches, args: Place, block: &Block<'_>, index: usize) {
    let mut index = index;
    loop {
        let mut works = Works::default();
        // a batch may be continued by the next one
        let batch = loop {
            let batch = args.plus(b.args_size + index * b.batch_size);
            works.collect(b, args, batch);
            if batch.bits(b.extends) == 0 {
                break batch;
            }
            index += batch.bits(b.jump) as usize;
        };
        let function = model.functions.get(batch.bits(b.function) as i32);
        match batch.bits(b.kind) {
            KIND_P2P => send_recv(b, block, &works),
            KIND_COLL if function.emulated() => {
                for work in works.each() {
                    if super::collective(block, function, &part(model, &b.coll, block, function, work)).is_err() {
                        return;
                    }
                }
            }
            kind => super::unsupported(&format!("{function:?} in a batch of kind {kind}")),
        }
        if let Some(counter) = block.layout.channel.work_counter {
            block.channel.set(counter, block.channel.get(counter) + works.count() as u64);
        }
        match batch.bits(b.jump) as usize {
            0 => return,
            jump => index += jump,
        }
    }
}

/// Copies of a batch's work descriptors: NCCL may reuse the fifo once the counter has moved.
#[derive(Default)]
struct Works {
    bytes: Vec<u64>,
    words_each: usize,
}

impl Works {
    fn collect(&mut self, b: &Batches, args: Place, batch: Place) {
        let size = match batch.bits(b.kind) {
            KIND_P2P => b.p2p.size,
            KIND_COLL => b.coll.size,
            _ => super::unsupported("registered buffers"),
        };
        self.words_each = size / 8;
        let (base, set) = (batch.get(b.base) as usize, batch.get(b.set));
        let in_args = args.get(b.storage) == STORED_IN_ARGS;
        let (buffer, mask) = (args.follow(b.buffer), args.get(b.mask) as usize);
        for nth in (0..64).filter(|n| set >> n & 1 == 1) {
            for at in (0..size).step_by(8).map(|word| base + nth * size + word) {
                let place = if in_args { args.plus(at) } else { buffer.plus(at & mask) };
                self.bytes.push(place.get(Field::<u64>::new(0)));
            }
        }
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.words_each.max(1)
    }

    fn each(&self) -> impl Iterator<Item = Place> {
        self.bytes.chunks_exact(self.words_each.max(1)).map(|work| {
            // SAFETY: a whole descriptor of the batch's type, which lives as long as `self` and is only read.
            unsafe { Place::new(work.as_ptr().cast_mut().cast()) }
        })
    }
}

/// This channel's part of a collective: the first and the last channel differ from those between.
fn part(model: &Model, c: &CollLayout, block: &Block<'_>, function: Function, work: Place) -> Part {
    if c.registered.iter().any(|r| work.bits(*r) != 0) {
        super::unsupported("registered buffers");
    }
    let (low, high) = (work.bits(c.low) as u32, work.bits(c.high) as u32);
    let middle = (high + 1).saturating_sub(low).saturating_sub(2) as usize;
    let [first, mid, last] = c.counts.map(|f| work.get(f));
    let size = function.elem.size();
    let grain = |i: usize| work.bits(c.grains[i]) as usize * (grain_bytes(function.proto) / size);
    let (offset, len, chunk) = match block.channel_id {
        id if id == low => (0, first, grain(0)),
        id if id == high => (first + middle * mid, last, grain(2)),
        id => (first + (id - low - 1) as usize * mid, mid, grain(1)),
    };
    let arg = argument(work.get(c.arg), work.bits(c.arg_is_pointer) == 1, size);
    Part {
        send: work.get(c.send).cast_const(),
        recv: work.get(c.recv),
        root: work.get(c.root) as i32,
        count: first + mid * middle + last,
        rounds: Share { offset, len, chunk, last_chunk: None }.rounds(function, block.ranks as usize),
        op: Reduction::new(function.elem, function.kind, arg, model.functions.signed_in_arg),
    }
}

/// The reduction's argument, which may lie in the user's memory.
pub(super) fn argument(value: u64, is_pointer: bool, size: usize) -> u64 {
    if !is_pointer {
        return value;
    }
    let mut bytes = [0u8; 8];
    // SAFETY: NCCL's caller gave the address of one element for this use.
    unsafe { std::ptr::copy_nonoverlapping(value as *const u8, bytes.as_mut_ptr(), size) };
    u64::from_le_bytes(bytes)
}

fn send_recv(b: &Batches, block: &Block<'_>, works: &Works) {
    let p = &b.p2p;
    let mut transfers = Vec::new();
    for work in works.each() {
        let local = work.get(p.rank[0]) == block.rank;
        if !local && p.special.iter().any(|s| work.bits(*s) != 0) {
            super::unsupported(&format!("{:?} with registered buffers", Coll::SendRecv));
        }
        let part = part_of_channel(work.get(p.channels), work.get(p.base), block.channel_id);
        let (to, from) = (work.get(p.address[1]), work.get(p.address[0]));
        for (i, way) in [Way::Send, Way::Recv].into_iter().enumerate() {
            let (parts, bytes) = (usize::from(work.get(p.parts[i])), work.get(p.bytes[i]));
            if part >= parts {
                continue;
            }
            let proto = if work.bits(p.lines[i]) == 1 { Proto::Ll } else { Proto::Simple };
            let each = bytes.div_ceil(parts).next_multiple_of(4096);
            let (begin, end) = ((part * each).min(bytes), ((part + 1) * each).min(bytes));
            if !local {
                let buffer = if way == Way::Send { from } else { to };
                let (peer, chunk) = (work.get(p.rank[i]), small_float(work.get(p.chunk[i])));
                transfers.push(Transfer {
                    way,
                    proto,
                    peer,
                    buffer: buffer.wrapping_add(begin),
                    bytes: end - begin,
                    chunk,
                });
            } else if way == Way::Send && to != from && block.moves_data {
                // SAFETY: a rank's message to itself: both buffers are its caller's, for `bytes`.
                unsafe { std::ptr::copy(from.add(begin), to.add(begin), end - begin) };
            }
        }
    }
    p2p::run_all(block, &transfers);
}

/// Which part of a message a channel carries: parts go to channels in bit-reversed order.
fn part_of_channel(channels: u8, base: u8, channel: u32) -> usize {
    let bits = u32::from(channels).trailing_zeros();
    let delta = channel.wrapping_sub(u32::from(base)) & (u32::from(channels) - 1);
    if bits == 0 { 0 } else { (delta.reverse_bits() >> (32 - bits)) as usize }
}

/// NCCL's eight-bit float: five bits of exponent, three of mantissa.
fn small_float(bits: u8) -> usize {
    let (exponent, mantissa) = (u32::from(bits >> 3), usize::from(bits & 7));
    if exponent == 0 { mantissa } else { (8 | mantissa) << (exponent - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_to_channels_in_bit_reversed_order() {
        let parts = |channels, base| (0..4).map(|c| part_of_channel(channels, base, c)).collect::<Vec<_>>();
        assert_eq!(parts(4, 0), [0, 2, 1, 3]);
        assert_eq!(parts(4, 1), [3, 0, 2, 1]);
        assert_eq!(part_of_channel(1, 0, 0), 0);
    }

    #[test]
    fn small_floats() {
        assert_eq!([0, 7, 8, 9, 16, 17].map(small_float), [0, 7, 8, 9, 16, 18]);
        assert_eq!(small_float(17 << 3), 8 << 16);
    }
}
