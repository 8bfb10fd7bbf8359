//! Streams: a thread with a queue each. What is pushed runs in order on that thread.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use crate::device;
use crate::error::{self, Code, NOT_READY, OUT_OF_MEMORY, SUCCESS};
use crate::event::Event;
use crate::launch::Launch;

pub(crate) type HostFn = unsafe extern "C" fn(*mut c_void);

/// One thing a stream does. Addresses are kept as numbers: they belong to whoever enqueued the work.
pub(crate) enum Work {
    Copy {
        to: usize,
        from: usize,
        len: usize,
    },
    /// From memory that CUDA would have staged before the call returned.
    CopyStaged {
        to: usize,
        from: Vec<u8>,
    },
    Fill {
        to: usize,
        value: u8,
        len: usize,
    },
    Record(&'static Event, u64),
    Wait(&'static Event, u64),
    Host(HostFn, usize),
    Free(usize),
    Kernel(Launch),
}

pub(crate) struct Stream {
    id: u64,
    device: c_int,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    pushed: u64,
    done: u64,
    closed: bool,
}

fn all() -> &'static Mutex<Vec<&'static Stream>> {
    static ALL: Mutex<Vec<&'static Stream>> = Mutex::new(Vec::new());
    &ALL
}

impl Stream {
    /// A stream is never freed: a handle that outlives `cudaStreamDestroy` stays harmless.
    fn start() -> Option<&'static Stream> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let stream: &'static Stream = Box::leak(Box::new(Stream {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            device: device::current(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }));
        let spawned = std::thread::Builder::new().name("bed-stream".into()).spawn(move || stream.run());
        if let Err(e) = spawned {
            report!("cannot start a stream thread: {e}");
            return None;
        }
        all().lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Some(stream)
    }

    fn run(&self) {
        device::set_current(self.device);
        loop {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let mut queue = self
                .changed
                .wait_while(queue, |q| q.waiting.is_empty() && !q.closed)
                .unwrap_or_else(PoisonError::into_inner);
            let Some(work) = queue.waiting.pop_front() else { return };
            drop(queue);
            work.perform();
            self.queue.lock().unwrap_or_else(PoisonError::into_inner).done += 1;
            self.changed.notify_all();
        }
    }

    pub(crate) fn push(&self, work: Work) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting.push_back(work);
        queue.pushed += 1;
        self.changed.notify_all();
    }

    pub(crate) fn wait_idle(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let upto = queue.pushed;
        drop(self.changed.wait_while(queue, |q| q.done < upto));
    }

    fn busy(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.done < queue.pushed
    }

    fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }
}

impl Work {
    fn perform(self) {
        match self {
            // SAFETY: CUDA's contract: both ranges stay valid until the stream has passed this point.
            Work::Copy { to, from, len } => unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) },
            // SAFETY: as above, for the destination.
            Work::CopyStaged { to, from } => unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len());
            },
            // SAFETY: as above.
            Work::Fill { to, value, len } => unsafe { std::ptr::write_bytes(to as *mut u8, value, len) },
            Work::Record(event, tick) => event.complete(tick),
            Work::Wait(event, tick) => event.wait_for(tick),
            // SAFETY: the function and its argument were handed over for exactly this call.
            Work::Host(function, arg) => unsafe { function(arg as *mut c_void) },
            Work::Free(at) => crate::memory::release(at),
            Work::Kernel(launch) => crate::emu::run(&launch),
        }
    }
}

/// Waits for every stream of a device, as freeing device memory does.
pub(crate) fn wait_device(device: c_int) {
    let streams: Vec<_> = all().lock().unwrap_or_else(PoisonError::into_inner).clone();
    streams.iter().filter(|s| s.device == device).for_each(|s| s.wait_idle());
}

/// The stream a handle names; the first few values are CUDA's names for the default stream.
///
/// # Safety
/// Any other `handle` is one that [`create_with_flags`] gave out.
pub(crate) unsafe fn stream(handle: *mut c_void) -> &'static Stream {
    static DEFAULT: OnceLock<&'static Stream> = OnceLock::new();
    if handle as usize > 2 {
        // SAFETY: by this function's contract; streams are never freed.
        return unsafe { &*handle.cast::<Stream>() };
    }
    DEFAULT.get_or_init(|| Stream::start().unwrap_or_else(|| std::process::abort()))
}

pub(crate) unsafe extern "C" fn create_with_flags(out: *mut *mut c_void, _flags: c_uint) -> Code {
    let Some(stream) = Stream::start() else {
        return error::fail(OUT_OF_MEMORY);
    };
    // SAFETY: the caller passes a place for the handle, as CUDA requires.
    unsafe { out.write(std::ptr::from_ref(stream).cast_mut().cast()) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn create(out: *mut *mut c_void) -> Code {
    // SAFETY: same contract.
    unsafe { create_with_flags(out, 0) }
}

pub(crate) unsafe extern "C" fn create_with_priority(out: *mut *mut c_void, flags: c_uint, _priority: c_int) -> Code {
    // SAFETY: same contract.
    unsafe { create_with_flags(out, flags) }
}

/// What is queued still runs; the thread ends after it.
pub(crate) unsafe extern "C" fn destroy(handle: *mut c_void) -> Code {
    if handle as usize > 2 {
        // SAFETY: the handle is ours, as CUDA requires of the caller.
        let stream = unsafe { stream(handle) };
        all().lock().unwrap_or_else(PoisonError::into_inner).retain(|s| s.id != stream.id);
        stream.close();
    }
    SUCCESS
}

pub(crate) unsafe extern "C" fn synchronize(handle: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    unsafe { stream(handle) }.wait_idle();
    SUCCESS
}

pub(crate) unsafe extern "C" fn query(handle: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    if unsafe { stream(handle) }.busy() { NOT_READY } else { SUCCESS }
}

pub(crate) unsafe extern "C" fn get_id(handle: *mut c_void, out: *mut c_ulonglong) -> Code {
    // SAFETY: the handle is ours and the caller passes a place for the number.
    unsafe { out.write(stream(handle).id) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn launch_host_func(handle: *mut c_void, function: HostFn, arg: *mut c_void) -> Code {
    // SAFETY: the handle is ours, as CUDA requires of the caller.
    unsafe { stream(handle) }.push(Work::Host(function, arg as usize));
    SUCCESS
}

pub(crate) unsafe extern "C" fn device_synchronize() -> Code {
    wait_device(device::current());
    SUCCESS
}

/// Nothing is ever captured into a graph.
pub(crate) unsafe extern "C" fn is_capturing(_stream: *mut c_void, out: *mut c_int) -> Code {
    // SAFETY: the caller passes a place for the status.
    unsafe { out.write(0) };
    SUCCESS
}

/// # Safety
/// `out` is null or a place for a `T`.
unsafe fn clear<T>(out: *mut T) {
    if !out.is_null() {
        // SAFETY: by this function's contract; every type used here is fine as all zeroes.
        unsafe { std::ptr::write_bytes(out, 0, 1) };
    }
}

pub(crate) unsafe extern "C" fn capture_info_v2(
    _stream: *mut c_void,
    status: *mut c_int,
    id: *mut c_ulonglong,
    graph: *mut *mut c_void,
    nodes: *mut *const c_void,
    count: *mut usize,
) -> Code {
    // SAFETY: each is null or a place of that type, as CUDA requires.
    unsafe { (clear(status), clear(id), clear(graph), clear(nodes), clear(count)) };
    SUCCESS
}

pub(crate) unsafe extern "C" fn capture_info_v3(
    stream: *mut c_void,
    status: *mut c_int,
    id: *mut c_ulonglong,
    graph: *mut *mut c_void,
    nodes: *mut *const c_void,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Code {
    // SAFETY: each is null or a place of that type, as CUDA requires.
    unsafe {
        clear(edges);
        capture_info_v2(stream, status, id, graph, nodes, count)
    }
}

/// Per thread, as in CUDA; nobody reads it but the thread that swaps it back.
pub(crate) unsafe extern "C" fn exchange_capture_mode(mode: *mut c_int) -> Code {
    thread_local! {
        static MODE: std::cell::Cell<c_int> = const { std::cell::Cell::new(0) };
    }
    // SAFETY: the caller passes a mode to exchange.
    unsafe { mode.write(MODE.replace(mode.read())) };
    SUCCESS
}
