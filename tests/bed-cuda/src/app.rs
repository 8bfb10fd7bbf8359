//! What a test program needs of CUDA itself, found by name in the preloaded library.
#![expect(unreachable_pub, reason = "found by name, not by path")]

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::error::Code;
use crate::{api, device, memory, stream};

/// The function that stands for a CUDA runtime function, for the stand-in `libcudart`; null if there is none.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bed_function(name: *const c_char) -> *mut c_void {
    // SAFETY: by this function's contract.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    name.ok().and_then(api::function).unwrap_or(0) as *mut c_void
}

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
