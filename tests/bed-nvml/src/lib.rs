//! Test bed: the NVML functions that `libnccl` looks up in `libnvidia-ml.so.1`.
//!
//! A host has `BED_HOST_DEVICES` devices from PCI bus 16 on, without NVLink, peer access or fabric. What is not here
//! NCCL takes for missing, as with an old driver.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;

const FIRST_BUS: c_uint = 16;

/// A device's handle is its index and one, so that it is never null.
type Device = usize;

fn count() -> c_uint {
    static COUNT: OnceLock<c_uint> = OnceLock::new();
    *COUNT.get_or_init(|| std::env::var("BED_HOST_DEVICES").ok().and_then(|v| v.parse().ok()).unwrap_or(8))
}

fn bus(device: Device) -> c_uint {
    FIRST_BUS + device as c_uint - 1
}

/// # Safety
/// `out` is null or a place for the value.
unsafe fn answer<T>(out: *mut T, value: T) -> c_int {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, so by this function's contract a place for the value.
    unsafe { out.write(value) };
    SUCCESS
}

/// Copies a string with its end, if there is room.
///
/// # Safety
/// `out` has `room` bytes.
unsafe fn answer_text(out: *mut c_char, room: usize, text: &str) -> c_int {
    if text.len() >= room {
        return INVALID_ARGUMENT;
    }
    // SAFETY: there is room for the text and a zero.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    SUCCESS
}

/// Functions that answer with one number.
macro_rules! numbers {
    ($($name:ident($($arg:ident: $t:ty),*) -> $out:ty = $value:expr;)*) => { $(
        /// # Safety
        /// The last argument is a place for the answer.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $t,)* out: *mut $out) -> c_int {
            $(let _ = $arg;)*
            // SAFETY: same contract.
            unsafe { answer(out, $value) }
        }
    )* };
}

numbers! {
    nvmlDeviceGetCount() -> c_uint = count();
    nvmlDeviceGetCount_v2() -> c_uint = count();
    nvmlDeviceGetHandleByIndex(index: c_uint) -> Device = index as Device + 1;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint) -> Device = index as Device + 1;
    nvmlDeviceGetIndex(device: Device) -> c_uint = device as c_uint - 1;
    nvmlDeviceGetMaxPcieLinkGeneration(device: Device) -> c_uint = 5;
    nvmlDeviceGetCurrPcieLinkGeneration(device: Device) -> c_uint = 5;
    nvmlDeviceGetMaxPcieLinkWidth(device: Device) -> c_uint = 16;
    nvmlDeviceGetCurrPcieLinkWidth(device: Device) -> c_uint = 16;
    // 1: not supported by the chipset
    nvmlDeviceGetP2PStatus(device: Device, peer: Device, index: c_int) -> c_int = 1;
}

/// Functions that are there and say no.
macro_rules! refusals {
    ($($name:ident($($t:ty),*);)*) => { $(
        /// # Safety
        /// None: the arguments are not looked at.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($(_: $t),*) -> c_int {
            NOT_SUPPORTED
        }
    )* };
}

refusals! {
    nvmlDeviceGetNvLinkState(Device, c_uint, *mut c_int);
    nvmlDeviceGetNvLinkRemotePciInfo(Device, c_uint, *mut c_void);
    nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, c_uint, *mut c_void);
    nvmlDeviceGetNvLinkCapability(Device, c_uint, c_int, *mut c_uint);
    nvmlDeviceGetFieldValues(Device, c_int, *mut c_void);
}

/// # Safety
/// None beyond the signature; so for the three below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit() -> c_int {
    SUCCESS
}

/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(_code: c_int) -> *const c_char {
    c"error of the test bed's NVML".as_ptr()
}

/// # Safety
/// `text` is a C string and `out` a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId(text: *const c_char, out: *mut Device) -> c_int {
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let bus = text.split(':').nth(1).and_then(|b| c_uint::from_str_radix(b, 16).ok());
    match bus.and_then(|b| b.checked_sub(FIRST_BUS)).filter(|d| *d < count()) {
        // SAFETY: by this function's contract.
        Some(index) => unsafe { answer(out, index as Device + 1) },
        None => NOT_FOUND,
    }
}

/// # Safety
/// As for the first version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(text: *const c_char, out: *mut Device) -> c_int {
    // SAFETY: same contract.
    unsafe { nvmlDeviceGetHandleByPciBusId(text, out) }
}

/// # Safety
/// Both are places for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    _device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { answer(major, 9).max(answer(minor, 0)) }
}

/// # Safety
/// `out` has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, out: *mut c_char, room: c_uint) -> c_int {
    let text = format!("GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a{:02x}", bus(device));
    // SAFETY: by this function's contract.
    unsafe { answer_text(out, room as usize, &text) }
}

/// `nvmlPciInfo_t`.
#[derive(Debug)]
#[repr(C)]
pub struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: c_uint,
    subsystem: c_uint,
    id: [c_char; 32],
}

/// # Safety
/// `out` is a place for the record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, out: *mut PciInfo) -> c_int {
    let bus = bus(device);
    let (ids, subsystem) = (0x2330_10de, 0x16c1_10de);
    let empty = PciInfo { legacy: [0; 16], domain: 0, bus, device: 0, ids, subsystem, id: [0; 32] };
    // SAFETY: by this function's contract, and the arrays have the room that is named.
    unsafe {
        answer(out, empty)
            .max(answer_text((&raw mut (*out).legacy).cast(), 16, &format!("0000:{bus:02X}:00.0")))
            .max(answer_text((&raw mut (*out).id).cast(), 32, &format!("00000000:{bus:02X}:00.0")))
    }
}

/// # Safety
/// As for the third version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v2(device: Device, out: *mut PciInfo) -> c_int {
    // SAFETY: same contract.
    unsafe { nvmlDeviceGetPciInfo_v3(device, out) }
}

/// # Safety
/// As for the third version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo(device: Device, out: *mut PciInfo) -> c_int {
    // SAFETY: same contract.
    unsafe { nvmlDeviceGetPciInfo_v3(device, out) }
}
