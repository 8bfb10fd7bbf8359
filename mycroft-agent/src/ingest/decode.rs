//! One record of the ring buffer to one [`Event`].

use mycroft_common::{
    abi::{
        CommEvent, CommIdent, FLAG_COLLECTIVE, FLAG_EMPTY, FLAG_IDENT, FLAG_SEQ_ABSOLUTE, Header, KIND_ABORT,
        KIND_DESTROY, KIND_FINALIZE, KIND_GROUP_END, KIND_INIT_BEGIN, KIND_INIT_END, KIND_OP, OpEvent,
    },
    memory::from_bytes,
    nccl::Func,
};
use thiserror::Error;

use crate::event::{Body, CommRef, Event, HostId, Ident, Op, ProcId, Signature};

/// First code of a caller's own reduction (`ncclNumOps`, `nccl.h`).
const FIRST_CUSTOM_REDOP: i32 = 5;

/// Why a record is not an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("record of {0} bytes is shorter than its kind says")]
    Short(usize),
    #[error("record of unknown kind {0}")]
    UnknownKind(u16),
}

/// Decodes the records of one host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    pub host: HostId,
}

impl Decoder {
    /// The header alone, for what concerns the process.
    #[must_use]
    pub fn header(bytes: &[u8]) -> Option<Header> {
        from_bytes(bytes)
    }

    /// # Errors
    /// If the record is too short or of no known kind.
    pub fn decode(&self, bytes: &[u8]) -> Result<Event, DecodeError> {
        let short = DecodeError::Short(bytes.len());
        let header: Header = from_bytes(bytes).ok_or(short)?;
        if header.kind == KIND_OP {
            return Ok(self.op(&from_bytes(bytes).ok_or(short)?));
        }
        if !(KIND_GROUP_END..=KIND_FINALIZE).contains(&header.kind) {
            return Err(DecodeError::UnknownKind(header.kind));
        }
        let event: CommEvent = from_bytes(bytes).ok_or(short)?;
        let comm = self.comm(&event.header, &event.comm);
        let body = match header.kind {
            KIND_GROUP_END => Body::GroupEnd { proc: comm.proc, tid: comm.tid },
            KIND_INIT_BEGIN => Body::InitBegin(comm),
            KIND_INIT_END => Body::InitEnd { comm, result: event.value as i32 },
            KIND_DESTROY => Body::Destroy(comm),
            KIND_ABORT => Body::Abort(comm),
            KIND_FINALIZE => Body::Finalize(comm),
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        };
        Ok(Event { ts: header.ts_ns, body })
    }

    /// An operation, from the ring buffer or from the kernel's copy of a communicator's state.
    #[must_use]
    pub fn op(&self, e: &OpEvent) -> Event {
        let flag = |bit| e.header.flags & bit != 0;
        let func = Func::from_code(e.coll);
        let redop = if e.redop >= FIRST_CUSTOM_REDOP { -1 } else { e.redop };
        let op = Op {
            comm: self.comm(&e.header, &e.comm),
            seq: e.seq,
            absolute: flag(FLAG_SEQ_ABSOLUTE),
            collective: flag(FLAG_COLLECTIVE),
            empty: flag(FLAG_EMPTY),
            signature: Signature {
                func,
                count: e.count,
                datatype: e.datatype,
                redop: if func.reduces() { redop } else { 0 },
                root: if func.has_root() { e.root } else { 0 },
            },
            peer: (!func.is_collective()).then_some(e.root),
            stream: e.stream,
            depth: e.depth,
        };
        Event { ts: e.header.ts_ns, body: Body::Op(op) }
    }

    fn comm(&self, header: &Header, ident: &CommIdent) -> CommRef {
        let known = header.flags & FLAG_IDENT != 0;
        CommRef {
            proc: ProcId { host: self.host, pid: header.pid },
            tid: header.tid,
            ptr: ident.ptr,
            ident: known.then(|| plausible(ident)).flatten(),
        }
    }
}

/// The fields come from another process's memory, so their signs are not to be trusted.
fn plausible(ident: &CommIdent) -> Option<Ident> {
    Some(Ident {
        hash: ident.hash,
        rank: u32::try_from(ident.rank).ok()?,
        nranks: u32::try_from(ident.nranks).ok()?,
        cuda_dev: ident.cuda_dev,
        nvml_dev: ident.nvml_dev,
        bus_id: ident.bus_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<T: Copy>(value: &T) -> Vec<u8> {
        // SAFETY: the test's event types have no padding (`mycroft_common::abi::tests`).
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
    }

    fn sample() -> OpEvent {
        OpEvent {
            header: Header {
                kind: KIND_OP,
                lib: 0,
                flags: FLAG_IDENT | FLAG_COLLECTIVE | FLAG_SEQ_ABSOLUTE,
                ts_ns: 5,
                pid: 7,
                tid: 8,
            },
            comm: CommIdent { ptr: 1, hash: 2, rank: 3, nranks: 4, ..CommIdent::default() },
            seq: 9,
            count: 10,
            coll: 4,
            datatype: 7,
            redop: 0,
            root: 99,
            ..OpEvent::default()
        }
    }

    #[test]
    fn an_operation_round_trips() {
        let event = Decoder::default().decode(&bytes(&sample())).unwrap();
        let Body::Op(op) = event.body else { panic!("{event:?}") };
        assert_eq!((event.ts, op.comm.proc.pid, op.comm.tid, op.seq), (5, 7, 8, 9));
        assert_eq!(op.comm.ident.map(|i| (i.hash, i.rank, i.nranks)), Some((2, 3, 4)));
        assert!(op.absolute && op.collective && !op.empty);
        assert_eq!(op.signature.root, 0, "AllReduce has no root, whatever the field holds");
    }

    #[test]
    fn hostile_records_are_errors_not_panics() {
        let d = Decoder::default();
        let good = bytes(&sample());
        for n in 0..good.len() {
            assert_eq!(d.decode(&good[..n]), Err(DecodeError::Short(n)));
        }
        for kind in [0u16, 8, 77, u16::MAX] {
            let mut b = good.clone();
            b[..2].copy_from_slice(&kind.to_ne_bytes());
            assert_eq!(d.decode(&b), Err(DecodeError::UnknownKind(kind)));
        }
        // Any bytes at all: a fixed walk over pseudo-random records.
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..20_000 {
            let b: Vec<u8> = (0..160)
                .map(|_| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    x as u8
                })
                .collect();
            for kind in 1..=KIND_FINALIZE {
                let mut b = b.clone();
                b[..2].copy_from_slice(&kind.to_ne_bytes());
                d.decode(&b).unwrap();
            }
        }
    }

    #[test]
    fn negative_ranks_leave_no_identity() {
        let mut e = sample();
        e.comm.rank = -1;
        let Body::Op(op) = Decoder::default().op(&e).body else { panic!() };
        assert_eq!(op.comm.ident, None);
    }
}
