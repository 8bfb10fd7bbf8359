//! Kernel launches: the kernel's name and its arguments go to the stream, which hands them to the emulation.

use std::ffi::{c_int, c_uint, c_void};

use crate::emu;
use crate::error::{self, Code, NOT_SUPPORTED, SUCCESS};
use crate::stream::{self, Work};
use crate::symbols;

/// A launch on its way to the emulated GPU.
pub(crate) struct Launch {
    pub(crate) name: &'static str,
    pub(crate) blocks: u32,
    /// Copy of the arguments, in words: NCCL's structures want that alignment.
    pub(crate) args: Vec<u64>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// `cudaLaunchConfig_t`, up to what is used.
#[repr(C)]
pub(crate) struct Config {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
}

/// `CUlaunchConfig`, up to what is used.
#[repr(C)]
pub(crate) struct CuConfig {
    grid: Dim3,
    block: Dim3,
    shared: c_uint,
    stream: *mut c_void,
}

/// Parameters of NCCL's kernels up to 2.21: communicator, channels, first work.
const OLD_PARAMETERS: usize = 3;

/// # Safety
/// `on` is a stream handle of ours; `args` holds a copy of the kernel's arguments.
unsafe fn launch(function: *const c_void, blocks: c_uint, on: *mut c_void, args: Vec<u64>) -> Code {
    let Some(name) = symbols::nccl().and_then(|s| s.function_at(function as usize)) else {
        report!("launch of a kernel at {function:p}, which is not in libnccl");
        return error::fail(NOT_SUPPORTED);
    };
    trace!("launch {name}: {blocks} blocks, {} words of arguments", args.len());
    // the second name is that of 2.18
    if !name.contains("ncclDevKernel") && !name.contains("ncclKernel_") {
        report!("kernel {name} is not emulated");
        return error::fail(NOT_SUPPORTED);
    }
    if let Err(e) = emu::ready() {
        report!("no kernel can run: {e}");
        return error::fail(NOT_SUPPORTED);
    }
    // SAFETY: by this function's contract.
    unsafe { stream::stream(on) }.push(Work::Kernel(Launch { name, blocks, args }));
    SUCCESS
}

pub(crate) unsafe extern "C" fn kernel(
    function: *const c_void,
    grid: Dim3,
    _block: Dim3,
    args: *mut *mut c_void,
    _shared: usize,
    on: *mut c_void,
) -> Code {
    // SAFETY: NCCL launches through the runtime only kernels with these three parameters of eight bytes.
    let args = (0..OLD_PARAMETERS).map(|i| unsafe { args.add(i).read().cast::<u64>().read_unaligned() }).collect();
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    unsafe { launch(function, grid.x, on, args) }
}

pub(crate) unsafe extern "C" fn kernel_ex(
    config: *const Config,
    function: *const c_void,
    args: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller passes a launch configuration.
    let config = unsafe { &*config };
    // SAFETY: same contract.
    unsafe { kernel(function, config.grid, config.block, args, config.shared, config.stream) }
}

/// The buffer of arguments in a list of (key, value) pairs: 0 ends it, 1 is the address, 2 the size.
///
/// # Safety
/// `extra` is null or such a list.
unsafe fn argument_buffer(extra: *mut *mut c_void) -> Option<Vec<u64>> {
    let (mut at, mut len) = (std::ptr::null::<u8>(), 0usize);
    let mut pair = extra;
    // SAFETY: by this function's contract; the list ends with key 0.
    unsafe {
        while !pair.is_null() && !pair.read().is_null() {
            match pair.read() as usize {
                1 => at = pair.add(1).read().cast(),
                2 => len = pair.add(1).read().cast::<usize>().read(),
                _ => {}
            }
            pair = pair.add(2);
        }
    }
    if at.is_null() {
        return None;
    }
    let mut words = vec![0u64; len.div_ceil(8)];
    // SAFETY: the buffer has `len` bytes, and the copy has room for them.
    unsafe { std::ptr::copy_nonoverlapping(at, words.as_mut_ptr().cast::<u8>(), len) };
    Some(words)
}

/// # Safety
/// As for [`launch`] and [`argument_buffer`].
unsafe fn cu_launch(function: *const c_void, blocks: c_uint, on: *mut c_void, extra: *mut *mut c_void) -> Code {
    // SAFETY: by this function's contract.
    let Some(args) = (unsafe { argument_buffer(extra) }) else {
        report!("driver launch without an argument buffer");
        return NOT_SUPPORTED;
    };
    // SAFETY: by this function's contract.
    unsafe { launch(function, blocks, on, args) }
}

pub(crate) unsafe extern "C" fn cu_kernel(
    function: *const c_void,
    grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    on: *mut c_void,
    _params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller keeps the driver's contract, which is that of `cu_launch`.
    unsafe { cu_launch(function, grid_x, on, extra) }
}

pub(crate) unsafe extern "C" fn cu_kernel_ex(
    config: *const CuConfig,
    function: *const c_void,
    _params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller passes a launch configuration.
    let config = unsafe { &*config };
    // SAFETY: the caller keeps the driver's contract, which is that of `cu_launch`.
    unsafe { cu_launch(function, config.grid.x, config.stream, extra) }
}

/// `cudaFuncAttributes`: its size, and the few fields that are not zero.
pub(crate) unsafe extern "C" fn attributes(out: *mut c_void, _function: *const c_void) -> Code {
    const SIZE: usize = 144;
    let mut bytes = [0u8; SIZE];
    // threads a block, registers, PTX and binary version
    for (at, value) in [(24, 1024i32), (28, 96), (32, 90), (36, 90)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // SAFETY: the caller passes a `cudaFuncAttributes`, which has this size in CUDA 12.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), SIZE) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn set_attribute(_function: *const c_void, _attribute: c_int, _value: c_int) -> Code {
    SUCCESS
}

/// A kernel's handle is the address of its host function.
pub(crate) unsafe extern "C" fn by_symbol(out: *mut *const c_void, symbol: *const c_void) -> Code {
    // SAFETY: the caller passes a place for the handle.
    unsafe { out.write(symbol) };
    SUCCESS
}
