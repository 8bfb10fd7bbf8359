//! Where the fields of NCCL's device structures lie, as the harness found them in the library's debug information.
//!
//! The file has one item a line: `nccl 22705`, `size NAME BYTES`, `field NAME OFFSET BYTES`, or
//! `bits NAME OFFSET BYTES LOW WIDTH`.

use std::collections::HashMap;

use super::place::{Bits, Field};

type Pointer = Field<*mut u8>;

pub(super) struct Layout {
    pub(super) version: u32,
    pub(super) comm: Comm,
    pub(super) channel: Channel,
    pub(super) conn: Conn,
    pub(super) slots: Slots,
    pub(super) works: Works,
}

pub(super) struct Comm {
    pub(super) rank: Field<i32>,
    pub(super) ranks: Field<i32>,
    pub(super) buffer_sizes: Field<i32>,
    pub(super) abort: Pointer,
    pub(super) channels: Pointer,
}

pub(super) struct Channel {
    pub(super) size: usize,
    pub(super) peers: Pointer,
    pub(super) prev: Field<i32>,
    pub(super) next: Field<i32>,
    pub(super) user_ranks: Pointer,
    pub(super) index: Field<i32>,
    pub(super) tree_up: Field<i32>,
    pub(super) tree_down: usize,
    /// Up to 2.21, the device acknowledges works of the fifo here.
    pub(super) fifo_done: Option<Pointer>,
    /// Later, it counts them here.
    pub(super) work_counter: Option<Field<u64>>,
}

/// A connection, and where a peer keeps its connections.
pub(super) struct Conn {
    pub(super) size: usize,
    pub(super) peer_send: usize,
    pub(super) peer_recv: usize,
    pub(super) buffers: Pointer,
    pub(super) tail: Pointer,
    pub(super) head: Pointer,
    pub(super) step: Field<u64>,
}

/// What kernel and proxy tell each other about the slots of a connection.
pub(super) enum Slots {
    /// From 2.20 on: a record per slot.
    Records(Records),
    /// Before: an array of sizes and, if the buffer is shared, one of offsets.
    Arrays { sizes: Pointer, offsets: Pointer },
}

pub(super) struct Records {
    pub(super) slot_size: Field<i32>,
    pub(super) first: Pointer,
    pub(super) size: usize,
    pub(super) mode: Field<i32>,
    pub(super) offset: usize,
    /// The offset grew to 64 bits in 2.32.
    pub(super) wide_offset: bool,
    pub(super) bytes: Field<u64>,
}

/// How a launch describes its work.
pub(super) enum Works {
    Batches(Box<Batches>),
    Fifo(Box<OldWorks>),
}

/// From 2.22 on: kernel arguments, then batches, then works there or in a fifo.
pub(super) struct Batches {
    pub(super) args_size: usize,
    pub(super) comm: Pointer,
    pub(super) channel_mask: Field<u64>,
    pub(super) storage: Field<u8>,
    pub(super) mask: Field<u32>,
    pub(super) buffer: Pointer,
    pub(super) batch_size: usize,
    pub(super) jump: Bits,
    pub(super) extends: Bits,
    pub(super) kind: Bits,
    pub(super) function: Bits,
    pub(super) base: Field<u32>,
    pub(super) set: Field<u64>,
    pub(super) coll: Coll,
    pub(super) p2p: P2p,
}

pub(super) struct Coll {
    pub(super) size: usize,
    pub(super) low: Bits,
    pub(super) high: Bits,
    pub(super) arg_is_pointer: Bits,
    pub(super) registered: [Bits; 2],
    pub(super) root: Field<u32>,
    pub(super) recv: Pointer,
    pub(super) send: Pointer,
    pub(super) counts: [Field<usize>; 3],
    pub(super) grains: [Bits; 3],
    pub(super) arg: Field<u64>,
}

pub(super) struct P2p {
    pub(super) size: usize,
    pub(super) address: [Pointer; 2],
    pub(super) bytes: [Field<usize>; 2],
    pub(super) rank: [Field<i32>; 2],
    pub(super) channels: Field<u8>,
    pub(super) base: Field<u8>,
    pub(super) parts: [Field<u8>; 2],
    pub(super) chunk: [Field<u8>; 2],
    /// Whether it goes in lines (LL).
    pub(super) lines: [Bits; 2],
    /// Any of these set is something that is not emulated.
    pub(super) special: [Bits; 4],
}

/// Up to 2.21: works of 512 bytes.
pub(super) struct OldWorks {
    pub(super) size: usize,
    pub(super) next: Field<i32>,
    pub(super) function: Field<u16>,
    pub(super) last: Bits,
    pub(super) in_fifo: Bits,
    pub(super) kind: Field<u8>,
    pub(super) elems: usize,
    pub(super) elem: OldElem,
    pub(super) p2p_elems: usize,
    pub(super) p2p: OldP2p,
}

pub(super) struct OldElem {
    pub(super) size: usize,
    pub(super) used: Bits,
    pub(super) arg_is_pointer: Bits,
    pub(super) root: Field<u32>,
    pub(super) send: Pointer,
    pub(super) recv: Pointer,
    pub(super) count: Field<usize>,
    pub(super) arg: Field<u64>,
    pub(super) share: OldShare,
}

/// A channel's share of a work.
pub(super) enum OldShare {
    /// From 2.20 on, it is there.
    Part { chunk: Bits, part: Bits, last_chunk: Bits, offset: Bits },
    /// Before, it follows from these.
    Own(OwnShare),
}

pub(super) struct OwnShare {
    pub(super) registered: Bits,
    pub(super) warps: Field<u8>,
    pub(super) last_chunk: Field<usize>,
    /// Which of so many channels this is.
    pub(super) nth: Field<u8>,
    pub(super) channels: Field<u8>,
}

pub(super) struct OldP2p {
    pub(super) size: usize,
    pub(super) peer: Bits,
    pub(super) proto: Bits,
    pub(super) kind: Field<u8>,
    /// Not before 2.20.
    pub(super) registered: Option<Bits>,
    pub(super) groups: Field<u8>,
    pub(super) buffer: [Field<u32>; 2],
    pub(super) bytes: [Field<u32>; 2],
    pub(super) chunk: Field<i32>,
}

/// The file's items by name.
struct Items(HashMap<String, Vec<usize>>);

impl Items {
    fn parse(text: &str) -> Result<Items, String> {
        let mut items = HashMap::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(kind), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let numbers: Result<Vec<usize>, _> = words.map(str::parse).collect();
            let numbers = numbers.map_err(|e| format!("BED_LAYOUT: {line}: {e}"))?;
            items.insert(format!("{kind} {name}"), numbers);
        }
        Ok(Items(items))
    }

    fn numbers(&self, kind: &str, name: &str) -> Result<&[usize], String> {
        let found = self.0.get(&format!("{kind} {name}"));
        found.map(Vec::as_slice).ok_or_else(|| format!("BED_LAYOUT: no {kind} {name}"))
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        self.0.contains_key(&format!("{kind} {name}"))
    }

    fn size(&self, name: &str) -> Result<usize, String> {
        self.numbers("size", name)?.first().copied().ok_or_else(|| format!("BED_LAYOUT: size {name} is empty"))
    }

    /// Offset and size of a field.
    fn place(&self, name: &str) -> Result<(usize, usize), String> {
        match self.numbers("field", name)? {
            [at, size] => Ok((*at, *size)),
            _ => Err(format!("BED_LAYOUT: field {name} has no offset and size")),
        }
    }

    fn field<T>(&self, name: &str) -> Result<Field<T>, String> {
        self.place(name).map(|(at, _)| Field::new(at))
    }

    fn optional<T>(&self, name: &str) -> Result<Option<Field<T>>, String> {
        if self.has("field", name) { self.field(name).map(Some) } else { Ok(None) }
    }

    fn optional_bits(&self, name: &str) -> Result<Option<Bits>, String> {
        if self.has("bits", name) { self.bits(name).map(Some) } else { Ok(None) }
    }

    fn bits(&self, name: &str) -> Result<Bits, String> {
        match self.numbers("bits", name)? {
            &[at, size @ 1..=8, low @ 0..64, width @ 1..=64] => {
                Ok(Bits { at, size, low: low as u32, width: width as u32 })
            }
            _ => Err(format!("BED_LAYOUT: bits {name} is not a bitfield of at most 64 bits")),
        }
    }
}

impl Layout {
    pub(super) fn parse(text: &str) -> Result<Layout, String> {
        let i = Items::parse(text)?;
        let version = text.lines().find_map(|l| l.strip_prefix("nccl ")?.trim().parse().ok());
        Ok(Layout {
            version: version.ok_or("BED_LAYOUT: no version")?,
            comm: Comm {
                rank: i.field("comm.rank")?,
                ranks: i.field("comm.nRanks")?,
                buffer_sizes: i.field("comm.buffSizes")?,
                abort: i.field("comm.abortFlag")?,
                channels: i.field("comm.channels")?,
            },
            channel: Channel {
                size: i.size("channel")?,
                peers: i.field("channel.peers")?,
                prev: i.field("channel.ring.prev")?,
                next: i.field("channel.ring.next")?,
                user_ranks: i.field("channel.ring.userRanks")?,
                index: i.field("channel.ring.index")?,
                tree_up: i.field("channel.tree.up")?,
                tree_down: i.place("channel.tree.down")?.0,
                fifo_done: i.optional("channel.workFifoDone")?,
                work_counter: i.optional("channel.workCounter")?,
            },
            conn: Conn {
                size: i.size("conn")?,
                peer_send: i.place("peer.send")?.0,
                peer_recv: i.place("peer.recv")?.0,
                buffers: i.field("conn.buffs")?,
                tail: i.field("conn.tail")?,
                head: i.field("conn.head")?,
                step: i.field("conn.step")?,
            },
            slots: slots(&i)?,
            works: if i.has("size", "batch") {
                Works::Batches(Box::new(batches(&i)?))
            } else {
                Works::Fifo(Box::new(old_works(&i)?))
            },
        })
    }
}

fn slots(i: &Items) -> Result<Slots, String> {
    if !i.has("size", "fifo") {
        return Ok(Slots::Arrays { sizes: i.field("conn.sizesFifo")?, offsets: i.field("conn.offsFifo")? });
    }
    let (offset, offset_size) = i.place("fifo.offset")?;
    Ok(Slots::Records(Records {
        slot_size: i.field("conn.stepSize")?,
        first: i.field("conn.connFifo")?,
        size: i.size("fifo")?,
        mode: i.field("fifo.mode")?,
        offset,
        wide_offset: offset_size == 8,
        bytes: i.field("fifo.size")?,
    }))
}

fn batches(i: &Items) -> Result<Batches, String> {
    Ok(Batches {
        args_size: i.size("args")?,
        comm: i.field("args.comm")?,
        channel_mask: i.field("args.channelMask")?,
        storage: i.field("args.workStorageType")?,
        mask: i.field("args.workMask")?,
        buffer: i.field("args.workBuf")?,
        batch_size: i.size("batch")?,
        jump: i.bits("batch.nextJump")?,
        extends: i.bits("batch.nextExtends")?,
        kind: i.bits("batch.workType")?,
        function: i.bits("batch.funcId")?,
        base: i.field("batch.offsetBase")?,
        set: i.field("batch.offsetBitset")?,
        coll: Coll {
            size: i.size("coll")?,
            low: i.bits("coll.channelLo")?,
            high: i.bits("coll.channelHi")?,
            arg_is_pointer: i.bits("coll.redOpArgIsPtr")?,
            registered: [i.bits("coll.regUsed")?, i.bits("coll.netRegUsed")?],
            root: i.field("coll.root")?,
            recv: i.field("coll.recvbuff")?,
            send: i.field("coll.sendbuff")?,
            counts: [i.field("coll.cbd.countLo")?, i.field("coll.cbd.countMid")?, i.field("coll.cbd.countHi")?],
            grains: [
                i.bits("coll.cbd.chunkGrainsLo")?,
                i.bits("coll.cbd.chunkGrainsMid")?,
                i.bits("coll.cbd.chunkGrainsHi")?,
            ],
            arg: i.field("coll.redOpArg")?,
        },
        p2p: P2p {
            size: i.size("p2p")?,
            address: [i.field("p2p.sendAddr")?, i.field("p2p.recvAddr")?],
            bytes: [i.field("p2p.sendBytes")?, i.field("p2p.recvBytes")?],
            rank: [i.field("p2p.sendRank")?, i.field("p2p.recvRank")?],
            channels: i.field("p2p.nP2pChannels")?,
            base: i.field("p2p.channelBase")?,
            parts: [i.field("p2p.nSendChannels")?, i.field("p2p.nRecvChannels")?],
            chunk: [i.field("p2p.sendChunkSize_u32fp8")?, i.field("p2p.recvChunkSize_u32fp8")?],
            lines: [i.bits("p2p.sendProtoLL")?, i.bits("p2p.recvProtoLL")?],
            special: [
                i.bits("p2p.sendNetReg")?,
                i.bits("p2p.recvNetReg")?,
                i.bits("p2p.sendIpcReg")?,
                i.bits("p2p.recvIpcReg")?,
            ],
        },
    })
}

fn old_share(i: &Items) -> Result<OldShare, String> {
    if i.has("bits", "elem.chunkCount") {
        return Ok(OldShare::Part {
            chunk: i.bits("elem.chunkCount")?,
            part: i.bits("elem.workCount")?,
            last_chunk: i.bits("elem.lastChunkCount")?,
            offset: i.bits("elem.workOffset")?,
        });
    }
    Ok(OldShare::Own(OwnShare {
        registered: i.bits("elem.regUsed")?,
        warps: i.field("elem.nWarps")?,
        last_chunk: i.field("elem.lastChunkSize")?,
        nth: i.field("elem.bid")?,
        channels: i.field("elem.nChannels")?,
    }))
}

fn old_works(i: &Items) -> Result<OldWorks, String> {
    Ok(OldWorks {
        size: i.size("work")?,
        next: i.field("work.header.workNext")?,
        function: i.field("work.header.funcIndex")?,
        last: i.bits("work.header.isLast")?,
        in_fifo: i.bits("work.header.inFifo")?,
        kind: i.field("work.header.type")?,
        elems: i.place("work.elems")?.0,
        elem: OldElem {
            size: i.size("elem")?,
            used: i.bits("elem.isUsed")?,
            arg_is_pointer: i.bits("elem.redOpArgIsPtr")?,
            root: i.field("elem.root")?,
            send: i.field("elem.sendbuff")?,
            recv: i.field("elem.recvbuff")?,
            count: i.field("elem.count")?,
            arg: i.field("elem.redOpArg")?,
            share: old_share(i)?,
        },
        p2p_elems: i.place("work.p2pElems")?.0,
        p2p: OldP2p {
            size: i.size("p2pelem")?,
            peer: i.bits("p2pelem.peer")?,
            proto: i.bits("p2pelem.proto")?,
            kind: i.field("p2pelem.p2pType")?,
            registered: i.optional_bits("p2pelem.reg")?,
            groups: i.field("p2pelem.ngroups")?,
            buffer: [i.field("p2pelem.buffHi32")?, i.field("p2pelem.buffLo32")?],
            bytes: [i.field("p2pelem.countHi32")?, i.field("p2pelem.countLo32")?],
            chunk: i.field("p2pelem.chunkSize")?,
        },
    })
}
