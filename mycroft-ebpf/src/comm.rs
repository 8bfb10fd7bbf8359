//! A communicator's life: creation (init, split, shrink), finalize, destroy, abort.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use mycroft_common::{
    abi::{
        CommEvent, CommIdent, CommKey, FLAG_IDENT, KIND_ABORT, KIND_DESTROY, KIND_FINALIZE, KIND_INIT_BEGIN,
        KIND_INIT_END, OpEvent,
    },
    memory::{Memory as _, read_ident},
};

use crate::{
    emit,
    maps::{COMMS, INITS, LAYOUTS},
    op,
    user::{Caller, User},
};

#[inline(always)]
fn report(caller: &Caller, kind: u16, ptr: u64, value: i64) -> CommEvent {
    let ident = LAYOUTS.get(caller.lib as u32).and_then(|l| read_ident(&User, l, ptr));
    let (comm, flags) = match ident {
        Some(ident) => (ident, FLAG_IDENT),
        None => (CommIdent { ptr, ..CommIdent::default() }, 0),
    };
    let event = CommEvent { header: caller.header(kind, flags), comm, value };
    emit::send_now(&event);
    event
}

/// `ncclCommInitRankFunc(ncclAsyncJob*)`.
#[uprobe]
pub fn nccl_init_entry(ctx: ProbeContext) -> u32 {
    if let Some(caller) = Caller::wanted(&ctx)
        && let Some(layout) = LAYOUTS.get(caller.lib as u32)
        && layout.job_comm != 0
    {
        let job: u64 = ctx.arg(0).unwrap_or(0);
        if let Some(comm) = User.read::<u64>(job.wrapping_add(layout.job_comm as u64)) {
            // An init that never returns leaves its entry until the map is full: then the oldest goes.
            let _ = INITS.insert(caller.tid, comm, 0);
            report(&caller, KIND_INIT_BEGIN, comm, 0);
        }
    }
    0
}

#[uretprobe]
pub fn nccl_init_return(ctx: RetProbeContext) -> u32 {
    let result = ctx.ret::<i32>();
    let ctx = ProbeContext::new(aya_ebpf::EbpfContext::as_ptr(&ctx));
    if let Some(caller) = Caller::wanted(&ctx)
        && let Some(p) = INITS.get_ptr(caller.tid)
    {
        // SAFETY: a live map value, read by value; the key is this very thread.
        let ptr = unsafe { *p };
        let event = report(&caller, KIND_INIT_END, ptr, result as i64);
        let last = OpEvent { header: event.header, comm: event.comm, ..OpEvent::default() };
        op::fresh(&CommKey { ptr, pid: caller.pid, pad: 0 }, last);
        let _ = INITS.remove(caller.tid);
    }
    0
}

#[uprobe]
pub fn nccl_destroy(ctx: ProbeContext) -> u32 {
    end(&ctx, KIND_DESTROY)
}

#[uprobe]
pub fn nccl_abort(ctx: ProbeContext) -> u32 {
    end(&ctx, KIND_ABORT)
}

#[uprobe]
pub fn nccl_finalize(ctx: ProbeContext) -> u32 {
    if let Some(caller) = Caller::wanted(&ctx) {
        report(&caller, KIND_FINALIZE, ctx.arg(0).unwrap_or(0), 0);
    }
    0
}

#[inline(always)]
fn end(ctx: &ProbeContext, kind: u16) -> u32 {
    if let Some(caller) = Caller::wanted(ctx) {
        let ptr: u64 = ctx.arg(0).unwrap_or(0);
        report(&caller, kind, ptr, 0);
        // The address may serve the next communicator, whose numbers start at 0. It may be unknown to us.
        let _ = COMMS.remove(CommKey { ptr, pid: caller.pid, pad: 0 });
    }
    0
}
