//! Works of NCCL up to 2.21: records of 512 bytes, chained.

use std::sync::atomic::Ordering;

use super::Model;
use super::block::Block;
use super::combine::Reduction;
use super::conn::Way;
use super::func::{Function, Proto};
use super::layout::{OldElem, OldP2p, OldShare, OldWorks, OwnShare};
use super::p2p::{self, Transfer};
use super::place::Place;
use super::ring::Part;
use super::rounds::{Share, Whole};
use super::work::argument;

const KIND_COLL: u8 = 1;
const KIND_P2P: u8 = 2;
const P2P_UNUSED: u8 = 0;
const P2P_SEND: u8 = 1;

/// Runs all works of one block.
pub(super) fn run(model: &Model, w: &OldWorks, head: Place, block: &Block<'_>, index: usize) {
    let mut at = head.plus(index * w.size);
    loop {
        // a copy: once the last work is acknowledged, NCCL may reuse the fifo
        let mut copy = vec![0u64; w.size / 8];
        // SAFETY: a whole record lies there until it is acknowledged, and the copy has room for it.
        let work = unsafe {
            std::ptr::copy_nonoverlapping(at.address().cast_const(), copy.as_mut_ptr().cast::<u8>(), w.size);
            Place::new(copy.as_mut_ptr().cast())
        };
        let (next, last) = (work.get(w.next), work.bits(w.last) == 1);
        if last
            && work.bits(w.in_fifo) == 1
            && let Some(done) = block.layout.channel.fifo_done
        {
            block.channel.follow(done).flag().store(next as u32, Ordering::Release);
        }
        let function = model.functions.get(i32::from(work.get(w.function)));
        match work.get(w.kind) {
            KIND_P2P => send_recv(&w.p2p, work.plus(w.p2p_elems), block),
            KIND_COLL if function.emulated() => {
                let room = (w.size - w.elems) / w.elem.size;
                let elems = (0..room).map(|i| work.plus(w.elems + i * w.elem.size));
                for elem in elems.take_while(|e| e.bits(w.elem.used) == 1) {
                    if super::collective(block, function, &part(&w.elem, block, function, elem)).is_err() {
                        return;
                    }
                }
            }
            kind => super::unsupported(&format!("{function:?} in a work of kind {kind}")),
        }
        if last || block.aborted() {
            return;
        }
        at = head.plus(next as usize * w.size);
    }
}

fn part(e: &OldElem, block: &Block<'_>, function: Function, elem: Place) -> Part {
    let arg = argument(elem.get(e.arg), elem.bits(e.arg_is_pointer) == 1, function.elem.size());
    let (count, ranks) = (elem.get(e.count), block.ranks as usize);
    let rounds = match &e.share {
        OldShare::Part { chunk, part, last_chunk, offset } => {
            let [chunk, len, last_chunk, offset] = [*chunk, *part, *last_chunk, *offset].map(|b| elem.bits(b) as usize);
            Share { offset, len, chunk, last_chunk: (last_chunk > 0).then_some(last_chunk) }.rounds(function, ranks)
        }
        OldShare::Own(own) => whole(own, block, function, elem, count).rounds(function, ranks),
    };
    Part {
        send: elem.get(e.send).cast_const(),
        recv: elem.get(e.recv),
        root: elem.get(e.root) as i32,
        count,
        rounds,
        op: Reduction::new(function.elem, function.kind, arg, false),
    }
}

fn whole(own: &OwnShare, block: &Block<'_>, function: Function, elem: Place, count: usize) -> Whole {
    if elem.bits(own.registered) == 1 {
        super::unsupported("registered buffers");
    }
    Whole {
        count,
        nth: elem.get(own.nth).into(),
        channels: elem.get(own.channels).into(),
        threads: usize::from(elem.get(own.warps)) * 32,
        last_chunk: elem.get(own.last_chunk),
        slot: block.slot_bytes(function.proto),
    }
}

fn join([high, low]: [u32; 2]) -> usize {
    (u64::from(high) << 32 | u64::from(low)) as usize
}

/// Elements come in pairs: what is received, then what is sent.
fn send_recv(p: &OldP2p, elems: Place, block: &Block<'_>) {
    let mut transfers = Vec::new();
    for i in 0..usize::from(elems.get(p.groups)) {
        let elem = elems.plus(i * p.size);
        let kind = elem.get(p.kind);
        // 30 bits, signed
        let peer = (elem.bits(p.peer) << 34) as i64 >> 34;
        if kind == P2P_UNUSED || peer == -1 {
            continue;
        }
        let buffer = join(p.buffer.map(|f| elem.get(f))) as *mut u8;
        let bytes = join(p.bytes.map(|f| elem.get(f)));
        if peer as i32 == block.rank {
            if kind == P2P_SEND && i > 0 && block.moves_data {
                let to = join(p.buffer.map(|f| elems.plus((i - 1) * p.size).get(f))) as *mut u8;
                // SAFETY: a rank's message to itself: both buffers are its caller's, for `bytes`.
                unsafe { std::ptr::copy(buffer.cast_const(), to, bytes) };
            }
            continue;
        }
        if p.registered.is_some_and(|r| elem.bits(r) == 1) {
            super::unsupported("send/recv with registered buffers");
        }
        let (proto, chunk) = match elem.get(p.chunk) as usize {
            // half of it is flags
            chunk if elem.bits(p.proto) as usize == Proto::Ll as usize => (Proto::Ll, chunk / 2),
            chunk => (Proto::Simple, chunk),
        };
        let way = if kind == P2P_SEND { Way::Send } else { Way::Recv };
        transfers.push(Transfer { way, proto, peer: peer as i32, buffer, bytes, chunk });
    }
    p2p::run_all(block, &transfers);
}
