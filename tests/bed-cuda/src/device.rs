//! Devices: `BED_DEVICES` of them from PCI bus `BED_BUS` on, each with the properties of a large GPU.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::error::{self, Code, INVALID_DEVICE, INVALID_VALUE, SUCCESS};

/// What both "version" calls report: 12.9.
const CUDA_VERSION: c_int = 12090;

thread_local! {
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

fn number(name: &str, default: c_int) -> c_int {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn count() -> c_int {
    static COUNT: OnceLock<c_int> = OnceLock::new();
    *COUNT.get_or_init(|| number("BED_DEVICES", 1))
}

fn first_bus() -> c_int {
    static BUS: OnceLock<c_int> = OnceLock::new();
    *BUS.get_or_init(|| number("BED_BUS", 16))
}

pub(crate) fn current() -> c_int {
    CURRENT.get()
}

pub(crate) fn set_current(device: c_int) {
    CURRENT.set(device);
}

pub(crate) unsafe extern "C" fn get(out: *mut c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    unsafe { out.write(current()) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn set(device: c_int) -> Code {
    if !(0..count()).contains(&device) {
        return error::fail(INVALID_DEVICE);
    }
    set_current(device);
    SUCCESS
}

pub(crate) unsafe extern "C" fn get_count(out: *mut c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    unsafe { out.write(count()) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn version(out: *mut c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    unsafe { out.write(CUDA_VERSION) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn set_limit(_limit: c_int, _value: usize) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn bus_id(out: *mut c_char, len: c_int, device: c_int) -> Code {
    let text = format!("0000:{:02X}:00.0\0", first_bus() + device);
    let Some(room) = usize::try_from(len).ok().filter(|l| *l >= text.len()) else {
        return error::fail(INVALID_VALUE);
    };
    debug_assert!(room >= text.len());
    // SAFETY: the caller's buffer has `len` bytes, and that is enough.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn by_bus_id(out: *mut c_int, text: *const c_char) -> Code {
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let bus = text.split(':').nth(1).and_then(|b| c_int::from_str_radix(b, 16).ok());
    match bus.map(|b| b - first_bus()).filter(|d| (0..count()).contains(d)) {
        Some(device) => {
            // SAFETY: the caller passes a place for the number.
            unsafe { out.write(device) };
            SUCCESS
        }
        None => error::fail(INVALID_DEVICE),
    }
}

/// No peer access: ranks talk through the network.
pub(crate) unsafe extern "C" fn can_access_peer(out: *mut c_int, _device: c_int, _peer: c_int) -> Code {
    // SAFETY: the caller passes a place for the answer.
    unsafe { out.write(0) };
    SUCCESS
}

/// `cudaDeviceAttr` and `CUdevice_attribute` share their numbers.
pub(crate) unsafe extern "C" fn attribute(out: *mut c_int, attribute: c_int, device: c_int) -> Code {
    let value = match attribute {
        1 => 1024,         // threads a block
        8 => 49152,        // shared memory a block
        10 => 32,          // threads a warp
        12 => 65536,       // registers a block
        16 => 132,         // multiprocessors
        19 | 41 | 95 => 1, // map host memory, unified addressing, cooperative launch
        33 => first_bus() + device,
        75 => 9,       // compute capability
        97 => 232_448, // shared memory a block, opt-in
        _ => 0,
    };
    trace!("attribute {attribute} of device {device} -> {value}");
    // SAFETY: the caller passes a place for the value.
    unsafe { out.write(value) };
    SUCCESS
}

/// `cudaDeviceProp` of CUDA 12: its size, and where the fields lie that the bed fills in.
const PROPERTIES_SIZE: usize = 1032;

pub(crate) unsafe extern "C" fn properties(out: *mut c_void, device: c_int) -> Code {
    let mut bytes = [0u8; PROPERTIES_SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"Mycroft test bed (no GPU)");
    put(256, &uuid(device));
    let words: [(usize, usize); 5] = [(288, 80 << 30), (296, 49152), (352, 65536), (640, 233_472), (696, 232_448)];
    words.iter().for_each(|(at, v)| put(*at, &v.to_ne_bytes()));
    let numbers: [(usize, c_int); 20] = [
        (304, 65536),
        (308, 32),
        (320, 1024),
        (324, 1024),
        (328, 1024),
        (332, 64),
        (336, c_int::MAX),
        (340, 65535),
        (344, 65535),
        (348, 1_980_000),
        (360, 9),
        (388, 132),
        (400, 1),
        (576, 1),
        (584, first_bus() + device),
        (600, 3),
        (604, 1),
        (624, 2048),
        (648, 65536),
        (688, 1),
    ];
    numbers.iter().for_each(|(at, v)| put(*at, &v.to_ne_bytes()));
    // SAFETY: the caller passes a `cudaDeviceProp`, which has this size since CUDA 12.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), PROPERTIES_SIZE) };
    SUCCESS
}

fn uuid(device: c_int) -> [u8; 16] {
    let mut uuid = [0x5a; 16];
    uuid[..4].copy_from_slice(&(first_bus() + device).to_ne_bytes());
    uuid[4..8].copy_from_slice(&std::process::id().to_ne_bytes());
    uuid
}

// The driver's view of the same devices.

pub(crate) unsafe extern "C" fn cu_init(_flags: c_uint) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn cu_get(out: *mut c_int, ordinal: c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    unsafe { out.write(ordinal) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn cu_uuid(out: *mut [u8; 16], device: c_int) -> Code {
    // SAFETY: the caller passes a place for a uuid.
    unsafe { out.write(uuid(device)) };
    SUCCESS
}

/// Contexts are a handle and nothing else.
const CONTEXT: usize = 0x1000;

pub(crate) unsafe extern "C" fn cu_context(out: *mut *mut c_void) -> Code {
    // SAFETY: the caller passes a place for the handle; nobody looks behind it.
    unsafe { out.write(CONTEXT as *mut c_void) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn cu_context_create(out: *mut *mut c_void, _flags: c_uint, _device: c_int) -> Code {
    // SAFETY: same contract.
    unsafe { cu_context(out) }
}

pub(crate) unsafe extern "C" fn cu_primary_retain(out: *mut *mut c_void, _device: c_int) -> Code {
    // SAFETY: same contract.
    unsafe { cu_context(out) }
}

pub(crate) unsafe extern "C" fn cu_primary_release(_device: c_int) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn cu_context_accept(_context: *mut c_void) -> Code {
    SUCCESS
}
