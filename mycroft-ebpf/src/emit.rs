//! Events into the ring buffer: reserve, or count the loss; write; submit.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use mycroft_common::counters::Counter;

use crate::{
    maps::{EVENTS, bump},
    user::config,
};

/// Sends a copy of `*event`. The reader is woken only when it has a lot to read: a wake-up a hit more than
/// doubles the hit's cost.
///
/// # Safety
/// `event` must point to a readable `T`: a map value or the stack.
#[inline(always)]
pub unsafe fn send<T: Copy + 'static>(event: *const T) {
    let Some(mut slot) = EVENTS.reserve::<T>(0) else {
        bump(Counter::RingFull);
        return;
    };
    // SAFETY: `slot` is `size_of::<T>()` writable bytes, `event` readable by contract.
    unsafe { core::ptr::copy_nonoverlapping(event, slot.as_mut_ptr(), 1) };
    let waiting = EVENTS.query(BPF_RB_AVAIL_DATA as u64);
    let flags = if waiting >= config().wake_bytes as u64 { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    slot.submit(flags as u64);
}

/// Sends `event` and wakes the reader at once: for what is rare.
#[inline(always)]
pub fn send_now<T: Copy + 'static>(event: &T) {
    let Some(mut slot) = EVENTS.reserve::<T>(0) else {
        bump(Counter::RingFull);
        return;
    };
    // SAFETY: `slot` is `size_of::<T>()` writable bytes and `event` a reference to as many readable ones.
    unsafe { core::ptr::copy_nonoverlapping(event, slot.as_mut_ptr(), 1) };
    slot.submit(BPF_RB_FORCE_WAKEUP as u64);
}
