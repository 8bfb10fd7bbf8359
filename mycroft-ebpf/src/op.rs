//! Once per operation: `ncclEnqueueCheck(ncclInfo*)`; once per plan: `ncclLaunchKernel(ncclComm*, plan)`.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::uprobe, programs::ProbeContext};
use mycroft_common::{
    abi::{CommKey, CommState, FLAG_COLLECTIVE, FLAG_EMPTY, FLAG_IDENT, FLAG_SEQ_ABSOLUTE, KIND_OP, OpEvent},
    counters::Counter,
    layout::KernelLayout,
    memory::{InfoPrefix, Memory as _, read_collectives, read_ident, reconcile},
    nccl::counts_as_collective,
};

use crate::{
    emit, group,
    maps::{COMMS, LAYOUTS, bump},
    user::{Caller, User},
};

#[uprobe]
pub fn nccl_enqueue(ctx: ProbeContext) -> u32 {
    if let Some(caller) = Caller::wanted(&ctx) {
        let info: u64 = ctx.arg(0).unwrap_or(0);
        match User.read::<InfoPrefix>(info) {
            Some(info) => operation(&caller, &info),
            None => bump(Counter::InfoUnreadable),
        }
    }
    0
}

#[inline(always)]
fn operation(caller: &Caller, info: &InfoPrefix) {
    bump(Counter::Ops);
    let key = CommKey { ptr: info.comm, pid: caller.pid, pad: 0 };
    let Some(state) = state_of(&key) else {
        bump(Counter::CommsFull);
        return;
    };
    let depth = group::queue_op(caller.tid);
    // SAFETY: `state` points to a live map value. NCCL forbids two threads in one communicator at a time
    // outside a group's own thread, so there is one writer; a caller that breaks this tears our numbers,
    // not the kernel.
    let state = unsafe { &mut *state };
    let layout = LAYOUTS.get(caller.lib as u32);
    update(state, caller, info, layout, depth);
    // SAFETY: `state.last` is readable: it was just written.
    unsafe { emit::send(&raw const state.last) };
}

#[inline(always)]
fn update(state: &mut CommState, caller: &Caller, info: &InfoPrefix, layout: Option<&KernelLayout>, depth: u32) {
    let absolute = state.last.header.flags & FLAG_SEQ_ABSOLUTE;
    let mut flags = absolute;
    let ident = layout.and_then(|l| read_ident(&User, l, info.comm));
    match ident {
        Some(ident) => {
            let same = state.last.comm.hash == ident.hash && state.last.comm.rank == ident.rank;
            if state.last.header.flags & FLAG_IDENT != 0 && !same {
                // The address was freed and used again by a communicator whose end we did not see.
                state.next_coll = 0;
                state.next_other = 0;
                flags = 0;
            }
            state.last.comm = ident;
            flags |= FLAG_IDENT;
        }
        None => {
            bump(Counter::CommUnreadable);
            state.last.comm.ptr = info.comm;
        }
    }
    let empty = info.count == 0;
    if counts_as_collective(info.coll) {
        flags |= FLAG_COLLECTIVE;
        let counted = layout.and_then(|l| read_collectives(&User, l, info.comm));
        if counted.is_some() {
            flags |= FLAG_SEQ_ABSOLUTE;
        }
        let seq = reconcile(state.next_coll, counted);
        state.last.seq = seq;
        // NCCL discards an empty collective before it counts it.
        state.next_coll = if empty { seq } else { seq + 1 };
        if empty {
            flags |= FLAG_EMPTY;
        }
    } else {
        state.last.seq = state.next_other;
        state.next_other += 1;
    }
    state.last.header = caller.header(KIND_OP, flags);
    state.last.count = info.count;
    state.last.sendbuff = info.sendbuff;
    state.last.recvbuff = info.recvbuff;
    state.last.stream = info.stream;
    state.last.coll = info.coll;
    state.last.datatype = info.datatype;
    state.last.redop = info.redop;
    state.last.root = info.root;
    state.last.depth = depth;
}

#[inline(always)]
fn state_of(key: &CommKey) -> Option<*mut CommState> {
    if let Some(p) = COMMS.get_ptr_mut(key) {
        return Some(p);
    }
    COMMS.insert(key, CommState::default(), 0).ok()?;
    COMMS.get_ptr_mut(key)
}

/// Only updates the state: the launch is asked for when an operation is suspected, so it needs no event.
#[uprobe]
pub fn nccl_launch(ctx: ProbeContext) -> u32 {
    if let Some(caller) = Caller::wanted(&ctx) {
        let comm: u64 = ctx.arg(0).unwrap_or(0);
        if let Some(p) = COMMS.get_ptr_mut(CommKey { ptr: comm, pid: caller.pid, pad: 0 }) {
            // SAFETY: a live map value with one writer, as in `operation`; the helper has no preconditions.
            unsafe {
                (*p).launches += 1;
                (*p).launch_ts_ns = bpf_ktime_get_ns();
            }
        }
    }
    0
}

/// A communicator that starts its life: its sequence begins at 0, known to be so.
#[inline(always)]
pub fn fresh(key: &CommKey, last: OpEvent) {
    let mut state = CommState { last, ..CommState::default() };
    state.last.header.flags |= FLAG_SEQ_ABSOLUTE;
    if COMMS.insert(key, state, 0).is_err() {
        bump(Counter::CommsFull);
    }
}
