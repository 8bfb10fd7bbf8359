//! Memory: device and pinned memory are anonymous host mappings; the ranges handed out are remembered so that a copy
//! knows pageable memory (which CUDA stages at the call) from the rest.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use crate::device;
use crate::error::{self, Code, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::stream::{self, Work};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Device,
    Pinned,
    /// The application's own memory, registered: not ours to unmap.
    Registered,
}

#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) len: usize,
    kind: Kind,
    device: c_int,
}

static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());

fn remember(range: Range) {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner).insert(range.start, range);
}

fn forget(start: usize) -> Option<Range> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner).remove(&start)
}

/// The range an address lies in.
pub(crate) fn find(at: usize) -> Option<Range> {
    let ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, range) = ranges.range(..=at).next_back()?;
    (at < range.start + range.len).then_some(*range)
}

fn allocate(len: usize, kind: Kind) -> Option<*mut c_void> {
    let len = len.max(1).next_multiple_of(4096);
    // SAFETY: a fresh anonymous mapping touches nothing that exists.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        report!("cannot map {len} bytes: {}", std::io::Error::last_os_error());
        return None;
    }
    remember(Range { start: at as usize, len, kind, device: device::current() });
    Some(at)
}

/// Gives back what [`allocate`] made; anything else is left alone.
pub(crate) fn release(start: usize) {
    if let Some(range) = forget(start).filter(|r| r.kind != Kind::Registered) {
        // SAFETY: the range was mapped by `allocate` and is no longer on record, so this is its only release.
        let rc = unsafe { libc::munmap(range.start as *mut c_void, range.len) };
        if rc != 0 {
            report!("munmap of {start:#x}: {}", std::io::Error::last_os_error());
        }
    }
}

/// # Safety
/// `out` is a place for a pointer.
unsafe fn allocate_into(out: *mut *mut c_void, len: usize, kind: Kind) -> Code {
    let Some(at) = allocate(len, kind) else {
        return error::fail(OUT_OF_MEMORY);
    };
    trace!("allocate {len} -> {at:p}");
    // SAFETY: by this function's contract.
    unsafe { out.write(at) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn malloc(out: *mut *mut c_void, len: usize) -> Code {
    // SAFETY: CUDA's contract for the caller.
    unsafe { allocate_into(out, len, Kind::Device) }
}

pub(crate) unsafe extern "C" fn host_alloc(out: *mut *mut c_void, len: usize, _flags: c_uint) -> Code {
    // SAFETY: CUDA's contract for the caller.
    unsafe { allocate_into(out, len, Kind::Pinned) }
}

/// Waits for the device first, as CUDA does: a kernel may still use the memory.
pub(crate) unsafe extern "C" fn free(at: *mut c_void) -> Code {
    if let Some(range) = find(at as usize) {
        stream::wait_device(range.device);
        release(at as usize);
    }
    SUCCESS
}

pub(crate) unsafe extern "C" fn host_register(at: *mut c_void, len: usize, _flags: c_uint) -> Code {
    remember(Range { start: at as usize, len, kind: Kind::Registered, device: device::current() });
    SUCCESS
}

pub(crate) unsafe extern "C" fn host_unregister(at: *mut c_void) -> Code {
    forget(at as usize);
    SUCCESS
}

pub(crate) unsafe extern "C" fn host_get_device_pointer(
    out: *mut *mut c_void,
    host: *mut c_void,
    _flags: c_uint,
) -> Code {
    // SAFETY: the caller passes a place for the pointer.
    unsafe { out.write(host) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize, _kind: c_int) -> Code {
    // SAFETY: CUDA's contract: both ranges are valid for `len` bytes.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), len) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn memset(to: *mut c_void, value: c_int, len: usize) -> Code {
    // SAFETY: CUDA's contract: the range is valid for `len` bytes. CUDA, too, keeps the low byte only.
    unsafe { std::ptr::write_bytes(to.cast::<u8>(), value as u8, len) };
    SUCCESS
}

/// Pageable memory is staged before the call returns: NCCL copies variables on its stack this way.
pub(crate) unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    _kind: c_int,
    on: *mut c_void,
) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    let stream = unsafe { stream::stream(on) };
    let work = if find(from as usize).is_some() {
        Work::Copy { to: to as usize, from: from as usize, len }
    } else {
        // SAFETY: CUDA's contract: the source is valid for `len` bytes at the call.
        let staged = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec();
        Work::CopyStaged { to: to as usize, from: staged }
    };
    stream.push(work);
    if find(to as usize).is_none() {
        stream.wait_idle();
    }
    SUCCESS
}

pub(crate) unsafe extern "C" fn memset_async(to: *mut c_void, value: c_int, len: usize, on: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    unsafe { stream::stream(on) }.push(Work::Fill { to: to as usize, value: value as u8, len });
    SUCCESS
}

/// `cudaPointerAttributes`.
#[repr(C)]
pub(crate) struct Attributes {
    kind: c_int,
    device: c_int,
    device_pointer: *const c_void,
    host_pointer: *const c_void,
}

pub(crate) unsafe extern "C" fn pointer_attributes(out: *mut Attributes, at: *const c_void) -> Code {
    let null = std::ptr::null();
    let attributes = match find(at as usize) {
        None => Attributes { kind: 0, device: -2, device_pointer: null, host_pointer: null },
        Some(r) if r.kind == Kind::Device => {
            Attributes { kind: 2, device: r.device, device_pointer: at, host_pointer: null }
        }
        Some(r) => Attributes { kind: 1, device: r.device, device_pointer: at, host_pointer: at },
    };
    // SAFETY: the caller passes a place for the attributes.
    unsafe { out.write(attributes) };
    SUCCESS
}

/// Pools are a handle and nothing else.
pub(crate) unsafe extern "C" fn pool_create(out: *mut *mut c_void, _props: *const c_void) -> Code {
    // SAFETY: the caller passes a place for the handle; nobody looks behind it.
    unsafe { out.write(8 as *mut c_void) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn pool_destroy(_pool: *mut c_void) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn pool_set_attribute(_pool: *mut c_void, _name: c_int, _value: *mut c_void) -> Code {
    SUCCESS
}

pub(crate) unsafe extern "C" fn malloc_from_pool(
    out: *mut *mut c_void,
    len: usize,
    _pool: *mut c_void,
    _on: *mut c_void,
) -> Code {
    // SAFETY: CUDA's contract for the caller.
    unsafe { allocate_into(out, len, Kind::Device) }
}

pub(crate) unsafe extern "C" fn free_async(at: *mut c_void, on: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    unsafe { stream::stream(on) }.push(Work::Free(at as usize));
    SUCCESS
}

/// `cuMemGetAddressRange`.
pub(crate) unsafe extern "C" fn address_range(base: *mut usize, len: *mut usize, at: usize) -> Code {
    let Some(range) = find(at) else { return INVALID_VALUE };
    for (out, value) in [(base, range.start), (len, range.len)] {
        if !out.is_null() {
            // SAFETY: not null, so the caller passes a place for the number.
            unsafe { out.write(value) };
        }
    }
    SUCCESS
}
