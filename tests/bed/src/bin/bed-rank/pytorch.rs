//! Waiting and looking for errors as PyTorch's `ProcessGroupNCCL` does: with events, and a watchdog that asks for them.
//!
//! Its calls of CUDA go through a `libcudart` of the process, as PyTorch's do.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mycroft_bed::control::Control;

use crate::ffi::{Api, Comm, Stream};

/// How often the watchdog looks.
const PERIOD: Duration = Duration::from_millis(100);
/// CUDA's code for "not yet".
const NOT_READY: c_int = 600;
/// Event flag: no timing.
const NO_TIMING: c_uint = 2;
/// Stream flag: does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;

type Event = *mut c_void;

macro_rules! cudart {
    ($($field:ident: $symbol:literal => fn($($arg:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct Cudart { $($field: unsafe extern "C" fn($($arg),*) -> c_int),* }

        impl Cudart {
            fn open() -> Result<Cudart> {
                // SAFETY: a C string; the stand-in has no initialisers.
                let library = unsafe { libc::dlopen(c"libcudart.so.12".as_ptr(), libc::RTLD_NOW) };
                ensure!(!library.is_null(), "libcudart.so.12 cannot be opened");
                $(
                    // SAFETY: `library` is open, and the symbol has the type that CUDA's documentation gives it.
                    let $field = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(
                            symbol(library, $symbol)?,
                        )
                    };
                )*
                Ok(Cudart { $($field),* })
            }
        }
    };
}

cudart! {
    stream_create: c"cudaStreamCreateWithFlags" => fn(*mut Stream, c_uint);
    stream_wait: c"cudaStreamWaitEvent" => fn(Stream, Event, c_uint);
    stream_synchronize: c"cudaStreamSynchronize" => fn(Stream);
    event_create: c"cudaEventCreateWithFlags" => fn(*mut Event, c_uint);
    event_destroy: c"cudaEventDestroy" => fn(Event);
    event_record: c"cudaEventRecord" => fn(Event, Stream);
    event_query: c"cudaEventQuery" => fn(Event);
}

/// # Safety
/// `library` is an open library.
unsafe fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void> {
    // SAFETY: by this function's contract.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    ensure!(!found.is_null(), "{} not found in libcudart", name.to_string_lossy());
    Ok(found)
}

fn check(what: &str, code: c_int) -> Result<()> {
    ensure!(code == 0, "{what} returned {code}");
    Ok(())
}

/// A collective under way: its last event, and its communicator.
struct Work {
    end: Event,
    comm: Comm,
}

// SAFETY: CUDA's and NCCL's handles may be used from any thread.
unsafe impl Send for Work {}

/// What a rank and its watchdog share.
struct Shared {
    works: Mutex<Vec<Work>>,
    ends: AtomicBool,
}

pub(crate) struct Pytorch {
    cuda: Cudart,
    /// The stream that the application computes on; collectives have their own.
    current: Stream,
    /// Recorded on it before each collective.
    ready: Event,
    shared: Arc<Shared>,
    watchdog: JoinHandle<()>,
}

impl Cudart {
    fn event(&self) -> Result<Event> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        check("cudaEventCreateWithFlags", unsafe { (self.event_create)(&raw mut event, NO_TIMING) }).map(|()| event)
    }

    /// Makes what is enqueued on `later` from now on wait for all that is on `first`.
    fn order(&self, event: Event, first: Stream, later: Stream) -> Result<()> {
        // SAFETY: the handles are CUDA's.
        check("cudaEventRecord", unsafe { (self.event_record)(event, first) })?;
        // SAFETY: as above.
        check("cudaStreamWaitEvent", unsafe { (self.stream_wait)(later, event, 0) })
    }

    fn done(&self, work: &Work) -> Result<bool> {
        // SAFETY: the handle is CUDA's, and is destroyed only by who has found the work done.
        match unsafe { (self.event_query)(work.end) } {
            0 => Ok(true),
            NOT_READY => Ok(false),
            code => bail!("cudaEventQuery returned {code}"),
        }
    }
}

impl Pytorch {
    pub(crate) fn start(api: &'static Api, control: &'static Control, rank: usize) -> Result<Pytorch> {
        let cuda = Cudart::open()?;
        let mut current = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        check("cudaStreamCreateWithFlags", unsafe { (cuda.stream_create)(&raw mut current, NON_BLOCKING) })?;
        let ready = cuda.event()?;
        let shared = Arc::new(Shared { works: Mutex::default(), ends: AtomicBool::new(false) });
        let seen = Arc::clone(&shared);
        let watchdog = std::thread::Builder::new().name("pt_nccl_watchdg".into()).spawn(move || {
            if let Err(e) = watch(&cuda, api, control, rank, &seen) {
                crate::fail(control, rank, &e.context("watchdog"));
            }
        })?;
        Ok(Pytorch { cuda, current, ready, shared, watchdog })
    }

    /// The collective waits for what the application has computed.
    pub(crate) fn before(&self, collectives: Stream) -> Result<()> {
        self.cuda.order(self.ready, self.current, collectives)
    }

    /// The application's stream waits for the collective, and the application for that.
    pub(crate) fn after(&self, collectives: Stream, comm: Comm) -> Result<()> {
        let end = self.cuda.event()?;
        self.cuda.order(end, collectives, self.current)?;
        self.shared.works.lock().unwrap_or_else(PoisonError::into_inner).push(Work { end, comm });
        // SAFETY: the handle is CUDA's.
        check("cudaStreamSynchronize", unsafe { (self.cuda.stream_synchronize)(self.current) })
    }

    /// Ends the watchdog when it has seen all works done.
    pub(crate) fn end(self) -> Result<()> {
        self.shared.ends.store(true, Ordering::Release);
        self.watchdog.join().ok().context("the watchdog panicked")
    }
}

/// Asks each communicator for errors and each event whether it is done, until told to end.
fn watch(cuda: &Cudart, api: &Api, control: &Control, rank: usize, shared: &Shared) -> Result<()> {
    loop {
        let ends = shared.ends.load(Ordering::Acquire);
        let mut works = shared.works.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = Vec::new();
        let before = works.len();
        for work in works.drain(..) {
            api.async_error(work.comm)?;
            if cuda.done(&work)? {
                // SAFETY: the handle is CUDA's, and nobody uses it from here on.
                check("cudaEventDestroy", unsafe { (cuda.event_destroy)(work.end) })?;
            } else {
                left.push(work);
            }
        }
        control.add_works_done(rank, (before - left.len()) as u64);
        let idle = left.is_empty();
        *works = left;
        drop(works);
        if ends && idle {
            return Ok(());
        }
        std::thread::sleep(PERIOD);
    }
}
