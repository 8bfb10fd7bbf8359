//! Test bed: the CUDA runtime that an application itself uses, as a shared library of its own.
//!
//! PyTorch calls `cudaEventRecord` and the like in a `libcudart`, not in the copy inside `libnccl`. This stands in for
//! it: real exported functions, on which probes work as on NVIDIA's, unlike on those that the bed redirects inside
//! `libnccl`. They lead to the bed's emulation, which is preloaded.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// CUDA's code for "not supported": nothing is preloaded.
const NOT_SUPPORTED: c_int = 801;

/// The emulation's function of a name.
fn emulation(name: &CStr) -> *mut c_void {
    type Find = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    // SAFETY: the name is a C string.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"bed_function".as_ptr()) };
    // SAFETY: what the preloaded library names so has this type; null becomes `None`.
    let find = unsafe { std::mem::transmute::<*mut c_void, Option<Find>>(find) };
    // SAFETY: the name is a C string.
    find.map_or(std::ptr::null_mut(), |find| unsafe { find(name.as_ptr()) })
}

macro_rules! runtime {
    ($($name:ident = $text:literal ($($arg:ident: $type:ty),*);)*) => { $(
        /// # Safety
        /// As CUDA's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
            let function = FUNCTION.get_or_init(|| {
                // SAFETY: the emulation's function of this name has this type; null becomes `None`.
                unsafe { std::mem::transmute::<*mut c_void, Option<Function>>(emulation($text)) }
            });
            // SAFETY: by this function's contract.
            function.map_or(NOT_SUPPORTED, |function| unsafe { function($($arg),*) })
        }
    )* };
}

runtime! {
    cudaStreamCreateWithFlags = c"cudaStreamCreateWithFlags"(out: *mut *mut c_void, flags: c_uint);
    cudaStreamWaitEvent = c"cudaStreamWaitEvent"(stream: *mut c_void, event: *mut c_void, flags: c_uint);
    cudaStreamSynchronize = c"cudaStreamSynchronize"(stream: *mut c_void);
    cudaStreamQuery = c"cudaStreamQuery"(stream: *mut c_void);
    cudaDeviceSynchronize = c"cudaDeviceSynchronize"();
    cudaEventCreateWithFlags = c"cudaEventCreateWithFlags"(out: *mut *mut c_void, flags: c_uint);
    cudaEventDestroy = c"cudaEventDestroy"(event: *mut c_void);
    cudaEventRecord = c"cudaEventRecord"(event: *mut c_void, stream: *mut c_void);
    cudaEventQuery = c"cudaEventQuery"(event: *mut c_void);
    cudaEventSynchronize = c"cudaEventSynchronize"(event: *mut c_void);
}
