//! Events: how often one was recorded, and how many of these records its stream has reached.

use std::ffi::{c_uint, c_void};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::error::{Code, NOT_READY, SUCCESS};
use crate::stream::{self, Work};

#[derive(Default)]
pub(crate) struct Event {
    state: Mutex<Ticks>,
    reached: Condvar,
}

#[derive(Default)]
struct Ticks {
    recorded: u64,
    done: u64,
}

impl Event {
    /// The record made last, which is what a wait enqueued now waits for.
    fn latest(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).recorded
    }

    fn record(&self) -> u64 {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        s.recorded += 1;
        s.recorded
    }

    pub(crate) fn complete(&self, tick: u64) {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        s.done = s.done.max(tick);
        self.reached.notify_all();
    }

    pub(crate) fn wait_for(&self, tick: u64) {
        let s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.reached.wait_while(s, |s| s.done < tick));
    }

    fn pending(&self) -> bool {
        let s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        s.done < s.recorded
    }
}

/// # Safety
/// `handle` is one that [`create_with_flags`] gave out. Events are never freed, so it stays valid.
unsafe fn event(handle: *mut c_void) -> &'static Event {
    // SAFETY: by this function's contract.
    unsafe { &*handle.cast::<Event>() }
}

pub(crate) unsafe extern "C" fn create_with_flags(out: *mut *mut c_void, _flags: c_uint) -> Code {
    let event = Box::into_raw(Box::<Event>::default());
    // SAFETY: the caller passes a place for the handle, as CUDA requires.
    unsafe { out.write(event.cast()) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn create(out: *mut *mut c_void) -> Code {
    // SAFETY: same contract.
    unsafe { create_with_flags(out, 0) }
}

/// Kept for good: work that is still queued may name it.
pub(crate) unsafe extern "C" fn destroy(_event: *mut c_void) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn record(handle: *mut c_void, on: *mut c_void) -> Code {
    // SAFETY: both handles are ours, as CUDA requires of the caller.
    let (event, stream) = unsafe { (event(handle), stream::stream(on)) };
    let tick = event.record();
    stream.push(Work::Record(event, tick));
    SUCCESS
}

pub(crate) unsafe extern "C" fn stream_wait(on: *mut c_void, handle: *mut c_void, _flags: c_uint) -> Code {
    // SAFETY: both handles are ours, as CUDA requires of the caller.
    let (event, stream) = unsafe { (event(handle), stream::stream(on)) };
    stream.push(Work::Wait(event, event.latest()));
    SUCCESS
}

pub(crate) unsafe extern "C" fn query(handle: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    if unsafe { event(handle) }.pending() { NOT_READY } else { SUCCESS }
}

pub(crate) unsafe extern "C" fn synchronize(handle: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    let event = unsafe { event(handle) };
    event.wait_for(event.latest());
    SUCCESS
}
