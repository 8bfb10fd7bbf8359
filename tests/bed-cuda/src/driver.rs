//! The driver functions that NCCL asks for by name. They are ours from the start: no `libcuda` is involved.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::error::{Code, NOT_SUPPORTED, SUCCESS};
use crate::{device, launch, memory};

fn function(name: &str) -> Option<usize> {
    Some(match name {
        "cuInit" => device::cu_init as *const () as usize,
        "cuDriverGetVersion" => device::version as *const () as usize,
        "cuDeviceGet" => device::cu_get as *const () as usize,
        "cuDeviceGetCount" => device::get_count as *const () as usize,
        "cuDeviceGetUuid" => device::cu_uuid as *const () as usize,
        "cuDeviceGetAttribute" => device::attribute as *const () as usize,
        "cuCtxGetCurrent" => device::cu_context as *const () as usize,
        "cuCtxSetCurrent" | "cuCtxDestroy" => device::cu_context_accept as *const () as usize,
        "cuCtxGetDevice" => device::get as *const () as usize,
        "cuCtxCreate" => device::cu_context_create as *const () as usize,
        "cuDevicePrimaryCtxRetain" => device::cu_primary_retain as *const () as usize,
        "cuDevicePrimaryCtxRelease" => device::cu_primary_release as *const () as usize,
        "cuMemGetAddressRange" => memory::address_range as *const () as usize,
        "cuPointerGetAttribute" => pointer_attribute as *const () as usize,
        "cuLaunchKernel" => launch::cu_kernel as *const () as usize,
        "cuLaunchKernelEx" => launch::cu_kernel_ex as *const () as usize,
        "cuGetErrorString" | "cuGetErrorName" => error_text as *const () as usize,
        _ => return None,
    })
}

/// NCCL goes on without the functions that are not here, as with an old driver.
pub(crate) unsafe extern "C" fn entry_point(
    name: *const c_char,
    out: *mut *mut c_void,
    _flags: c_ulonglong,
    status: *mut c_int,
) -> Code {
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let found = function(&name);
    trace!("driver function {name}: {}", if found.is_some() { "ours" } else { "none" });
    // SAFETY: the caller passes a place for the address.
    unsafe { out.write(found.unwrap_or(0) as *mut c_void) };
    if !status.is_null() {
        // SAFETY: not null, so a place for the status (1: symbol not found).
        unsafe { status.write(c_int::from(found.is_none())) };
    }
    SUCCESS
}

pub(crate) unsafe extern "C" fn entry_point_by_version(
    name: *const c_char,
    out: *mut *mut c_void,
    _version: c_uint,
    flags: c_ulonglong,
    status: *mut c_int,
) -> Code {
    // SAFETY: same contract.
    unsafe { entry_point(name, out, flags, status) }
}

unsafe extern "C" fn error_text(_code: Code, out: *mut *const c_char) -> Code {
    // SAFETY: the caller passes a place for the string.
    unsafe { out.write(c"error of the test bed's driver".as_ptr()) };
    SUCCESS
}

unsafe extern "C" fn pointer_attribute(_out: *mut c_void, _attribute: c_int, _at: usize) -> Code {
    NOT_SUPPORTED
}
