//! `ncclGroupStart` and `ncclGroupEnd`: how deep each thread is, and when a queued group is launched.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::uprobe, programs::ProbeContext};
use mycroft_common::{
    abi::{CommEvent, CommIdent, GroupState, KIND_GROUP_END},
    counters::Counter,
};

use crate::{
    emit,
    maps::{GROUPS, bump},
    user::Caller,
};

#[uprobe]
pub fn nccl_group_start(ctx: ProbeContext) -> u32 {
    if let Some(caller) = Caller::wanted(&ctx) {
        // SAFETY: the helper has no preconditions.
        let now = unsafe { bpf_ktime_get_ns() };
        match GROUPS.get_ptr_mut(caller.tid) {
            // SAFETY: a live map value; the key is this very thread, so nobody else writes it.
            Some(p) => unsafe {
                if (*p).depth == 0 {
                    (*p).ops = 0;
                    (*p).since_ns = now;
                }
                (*p).depth += 1;
            },
            None => {
                if GROUPS.insert(caller.tid, GroupState { depth: 1, ops: 0, since_ns: now }, 0).is_err() {
                    bump(Counter::GroupsFull);
                }
            }
        }
    }
    0
}

#[uprobe]
pub fn nccl_group_end(ctx: ProbeContext) -> u32 {
    if let Some(caller) = Caller::wanted(&ctx)
        && let Some(p) = GROUPS.get_ptr_mut(caller.tid)
    {
        // SAFETY: as in `nccl_group_start`.
        let group = unsafe { &mut *p };
        if group.depth == 1 {
            let ops = group.ops;
            group.depth = 0;
            // SAFETY: the helper has no preconditions.
            group.since_ns = unsafe { bpf_ktime_get_ns() };
            if ops > 0 {
                let event = CommEvent {
                    header: caller.header(KIND_GROUP_END, 0),
                    comm: CommIdent::default(),
                    value: ops as i64,
                };
                // SAFETY: a local value.
                unsafe { emit::send(&raw const event) };
            }
        } else if group.depth > 1 {
            group.depth -= 1;
        }
    }
    0
}

/// Notes an operation of thread `tid` and returns the depth at which it was called.
#[inline(always)]
pub fn queue_op(tid: u32) -> u32 {
    match GROUPS.get_ptr_mut(tid) {
        // SAFETY: as in `nccl_group_start`.
        Some(p) => unsafe {
            if (*p).depth > 0 {
                (*p).ops += 1;
            }
            (*p).depth
        },
        None => 0,
    }
}
