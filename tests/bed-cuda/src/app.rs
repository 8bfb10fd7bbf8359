//! What a test program needs of CUDA itself, found by name in the preloaded library.
#![expect(unreachable_pub, reason = "found by name, not by path")]

use std::ffi::{c_int, c_void};

use crate::error::Code;
use crate::{device, memory, stream};

/// # Safety
/// `out` is a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bed_stream_create(out: *mut *mut c_void) -> Code {
    // SAFETY: same contract.
    unsafe { stream::create_with_flags(out, 1) }
}

/// # Safety
/// `handle` comes from [`bed_stream_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bed_stream_query(handle: *mut c_void) -> Code {
    // SAFETY: same contract.
    unsafe { stream::query(handle) }
}

/// # Safety
/// None beyond the signature.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bed_set_device(device: c_int) -> Code {
    // SAFETY: the call has no preconditions.
    unsafe { device::set(device) }
}

/// # Safety
/// `out` is a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bed_malloc(out: *mut *mut c_void, len: usize) -> Code {
    // SAFETY: same contract.
    unsafe { memory::malloc(out, len) }
}
