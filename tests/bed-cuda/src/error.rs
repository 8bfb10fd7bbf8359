//! CUDA's error codes, as far as the bed returns them, and the per-thread "last error".

use std::cell::Cell;
use std::ffi::{c_char, c_int};

pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
}

/// Remembers a failure for `cudaGetLastError` and hands it back.
pub(crate) fn fail(code: Code) -> Code {
    LAST.set(code);
    code
}

pub(crate) unsafe extern "C" fn get_last_error() -> Code {
    LAST.replace(SUCCESS)
}

pub(crate) unsafe extern "C" fn get_error_string(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        INVALID_VALUE => c"invalid argument (test bed)",
        OUT_OF_MEMORY => c"out of memory (test bed)",
        INVALID_DEVICE => c"invalid device ordinal (test bed)",
        NOT_READY => c"device not ready (test bed)",
        NOT_SUPPORTED => c"not supported by the test bed",
        _ => c"unknown error (test bed)",
    };
    text.as_ptr()
}
