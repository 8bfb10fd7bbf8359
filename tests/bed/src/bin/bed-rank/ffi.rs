//! NCCL's public functions, found in the library by name, and the few of CUDA that the preloaded stand-in offers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mycroft_bed::control::UniqueId;
use mycroft_bed::{Dtype, RedOp};

pub(crate) type Comm = *mut c_void;
pub(crate) type Stream = *mut c_void;

/// `ncclUniqueId`, which NCCL passes by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Id(UniqueId);

macro_rules! functions {
    ($($field:ident: $symbol:literal => fn($($arg:ty),*) $(-> $out:ty)?;)*) => {
        pub(crate) struct Api { $($field: unsafe extern "C" fn($($arg),*) $(-> $out)?),* }

        impl Api {
            fn resolve(library: *mut c_void) -> Result<Api> {
                $(
                    // SAFETY: the symbol has the type that `nccl.h`, or `bed-cuda` for the `bed_` ones, gives it.
                    let $field = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $out)?>(
                            symbol(library, $symbol)?,
                        )
                    };
                )*
                Ok(Api { $($field),* })
            }
        }
    };
}

functions! {
    version: c"ncclGetVersion" => fn(*mut c_int) -> c_int;
    unique_id: c"ncclGetUniqueId" => fn(*mut Id) -> c_int;
    init: c"ncclCommInitRank" => fn(*mut Comm, c_int, Id, c_int) -> c_int;
    destroy: c"ncclCommDestroy" => fn(Comm) -> c_int;
    async_error: c"ncclCommGetAsyncError" => fn(Comm, *mut c_int) -> c_int;
    last_error: c"ncclGetLastError" => fn(Comm) -> *const c_char;
    group_start: c"ncclGroupStart" => fn() -> c_int;
    group_end: c"ncclGroupEnd" => fn() -> c_int;
    all_reduce: c"ncclAllReduce" => fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    all_gather: c"ncclAllGather" => fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int;
    reduce_scatter: c"ncclReduceScatter" => fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    broadcast: c"ncclBroadcast" => fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    reduce: c"ncclReduce" => fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int;
    send: c"ncclSend" => fn(*const c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    recv: c"ncclRecv" => fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    create_premulsum: c"ncclRedOpCreatePreMulSum" => fn(*mut c_int, *mut c_void, c_int, c_int, Comm) -> c_int;
    stream_create: c"bed_stream_create" => fn(*mut Stream) -> c_int;
    stream_query: c"bed_stream_query" => fn(Stream) -> c_int;
    set_device: c"bed_set_device" => fn(c_int) -> c_int;
    malloc: c"bed_malloc" => fn(*mut *mut c_void, usize) -> c_int;
}

/// A symbol of the library, or of what was preloaded.
///
/// # Safety
/// `library` is an open library.
unsafe fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void> {
    let from = if name.to_bytes().starts_with(b"bed_") { libc::RTLD_DEFAULT } else { library };
    // SAFETY: by this function's contract.
    let found = unsafe { libc::dlsym(from, name.as_ptr()) };
    if found.is_null() {
        bail!("{} not found: is libbed_cuda.so preloaded?", name.to_string_lossy());
    }
    Ok(found)
}

/// One collective call, ready to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) count: usize,
    pub(crate) dtype: Dtype,
    /// NCCL's number of the reduction.
    pub(crate) redop: c_int,
    pub(crate) root: c_int,
    pub(crate) rank: c_int,
    pub(crate) ranks: c_int,
    /// Half of `SendRecv` can be left out.
    pub(crate) receive: bool,
}

impl Api {
    pub(crate) fn open(library: &Path) -> Result<Api> {
        let name = CString::new(library.as_os_str().as_bytes())?;
        // SAFETY: a C string; the library's initialisers are NCCL's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: `dlopen` has just failed, so there is a message.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            bail!("{}: {}", library.display(), why.to_string_lossy());
        }
        Api::resolve(handle)
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL allows null here and returns a C string that it keeps.
        let why = unsafe { CStr::from_ptr((self.last_error)(std::ptr::null_mut())) };
        bail!("{what} returned {code}: {}", why.to_string_lossy())
    }

    pub(crate) fn version(&self) -> Result<c_int> {
        let mut version = 0;
        // SAFETY: a place for the number.
        let code = unsafe { (self.version)(&raw mut version) };
        self.check("ncclGetVersion", code).map(|()| version)
    }

    pub(crate) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = Id([0; 128]);
        // SAFETY: a place for the id.
        let code = unsafe { (self.unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code).map(|()| id.0)
    }

    pub(crate) fn init(&self, id: UniqueId, rank: usize, ranks: usize) -> Result<Comm> {
        let mut comm = std::ptr::null_mut();
        // SAFETY: a place for the handle; the rest are values.
        let code = unsafe { (self.init)(&raw mut comm, ranks as c_int, Id(id), rank as c_int) };
        self.check("ncclCommInitRank", code).map(|()| comm)
    }

    pub(crate) fn destroy(&self, comm: Comm) -> Result<()> {
        // SAFETY: the handle comes from `init` and is not used again.
        let code = unsafe { (self.destroy)(comm) };
        self.check("ncclCommDestroy", code)
    }

    pub(crate) fn async_error(&self, comm: Comm) -> Result<()> {
        let mut error = 0;
        // SAFETY: the handle comes from `init`; a place for the number.
        let code = unsafe { (self.async_error)(comm, &raw mut error) };
        self.check("ncclCommGetAsyncError", code)?;
        self.check("a collective", error)
    }

    /// NCCL's number for a reduction; "pre-multiply" is made for this communicator, with factor two.
    pub(crate) fn redop(&self, redop: RedOp, dtype: Dtype, two: &[u8; 8], comm: Comm) -> Result<c_int> {
        if redop != RedOp::PreMulSum {
            return Ok(redop as c_int);
        }
        const HOST_IMMEDIATE: c_int = 1;
        let mut op = 0;
        let scalar = two.as_ptr().cast_mut().cast();
        // SAFETY: the scalar is one element in host memory, which NCCL copies at the call.
        let code = unsafe { (self.create_premulsum)(&raw mut op, scalar, dtype as c_int, HOST_IMMEDIATE, comm) };
        self.check("ncclRedOpCreatePreMulSum", code).map(|()| op)
    }

    pub(crate) fn set_device(&self, device: usize) -> Result<()> {
        // SAFETY: a plain number.
        let code = unsafe { (self.set_device)(device as c_int) };
        self.check("bed_set_device", code)
    }

    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        let code = unsafe { (self.stream_create)(&raw mut stream) };
        self.check("bed_stream_create", code).map(|()| stream)
    }

    pub(crate) fn idle(&self, stream: Stream) -> bool {
        // SAFETY: the handle comes from `stream`.
        unsafe { (self.stream_query)(stream) == 0 }
    }

    /// Device memory, never freed: it goes with the process.
    pub(crate) fn buffer(&self, len: usize) -> Result<&'static mut [u8]> {
        let mut at = std::ptr::null_mut();
        // SAFETY: a place for the address.
        let code = unsafe { (self.malloc)(&raw mut at, len) };
        self.check("bed_malloc", code).context("no memory")?;
        // SAFETY: fresh zeroed memory of `len` bytes; the emulated GPU uses it only between a call and its completion.
        Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len) })
    }

    /// Enqueues a collective.
    pub(crate) fn call(&self, op: mycroft_bed::Op, c: &Call, comm: Comm, stream: Stream) -> Result<()> {
        use mycroft_bed::Op;
        let dtype = c.dtype as c_int;
        // SAFETY: the buffers have room for the counts of every collective (see `Buffers`), and the handles are ours.
        let code = unsafe {
            match op {
                Op::AllReduce => (self.all_reduce)(c.send, c.recv, c.count, dtype, c.redop, comm, stream),
                Op::AllGather => (self.all_gather)(c.send, c.recv, c.count, dtype, comm, stream),
                Op::ReduceScatter => (self.reduce_scatter)(c.send, c.recv, c.count, dtype, c.redop, comm, stream),
                Op::Broadcast => (self.broadcast)(c.send, c.recv, c.count, dtype, c.root, comm, stream),
                Op::Reduce => (self.reduce)(c.send, c.recv, c.count, dtype, c.redop, c.root, comm, stream),
                Op::SendRecv => {
                    let (next, prev) = ((c.rank + 1) % c.ranks, (c.rank + c.ranks - 1) % c.ranks);
                    let codes = [
                        (self.group_start)(),
                        (self.send)(c.send, c.count, dtype, next, comm, stream),
                        if c.receive { (self.recv)(c.recv, c.count, dtype, prev, comm, stream) } else { 0 },
                        (self.group_end)(),
                    ];
                    codes.into_iter().find(|c| *c != 0).unwrap_or(0)
                }
            }
        };
        self.check(op.name(), code)
    }
}
