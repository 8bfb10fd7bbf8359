//! Redirecting the CUDA runtime functions inside the mapped `libnccl` to this library.
//!
//! Each public function's entry gets a 14-byte jump, in this process's memory only. A uprobe on such an entry makes
//! the process crash: the kernel runs the instruction that it found in the *file* out of line and then continues
//! behind it, which is the middle of the jump. NCCL's own functions are not touched, and probes on them work.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::api;
use crate::error::{self, Code, NOT_SUPPORTED};
use crate::symbols::{self, Symbol, Symbols};

/// `jmp *0(%rip)` and the address it goes to.
const JUMP: usize = 14;
/// Code of one stub: two 10-byte loads and a jump.
const STUB: usize = 22;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: unsafe extern "C" fn() = at_load;

unsafe extern "C" fn at_load() {
    attach();
}

/// Found before the C library's own `dlopen`, so that `libnccl` is redirected before anybody calls into it.
///
/// # Safety
/// As for `dlopen`.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "found by name, not by path")]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    static REAL: OnceLock<Option<Dlopen>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
        // SAFETY: what the C library names `dlopen` has this type; null becomes `None`.
        unsafe { std::mem::transmute::<*mut c_void, Option<Dlopen>>(found) }
    });
    let Some(real) = real else { return std::ptr::null_mut() };
    // SAFETY: handed on unchanged.
    let handle = unsafe { real(name, flags) };
    if !handle.is_null() {
        attach();
    }
    handle
}

fn attach() {
    static BUSY: Mutex<()> = Mutex::new(());
    let _one = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    match symbols::find() {
        None => {}
        Some(Err(e)) => report!("cannot attach: {e}"),
        Some(Ok(nccl)) => match redirect(nccl) {
            Ok((ours, stubs)) => {
                trace!("attached to {} at {:#x}: {ours} functions, {stubs} stubs", nccl.path.display(), nccl.base());
            }
            Err(e) => report!("cannot attach to {}: {e}", nccl.path.display()),
        },
    }
}

/// The runtime's public functions: `cuda` and a capital letter.
fn public(symbol: &&Symbol) -> bool {
    symbol.name.strip_prefix("cuda").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

fn redirect(nccl: &Symbols) -> Result<(usize, usize), String> {
    let targets: Vec<&Symbol> = nccl.functions().filter(public).collect();
    let mut stubs = Stubs::with_room_for(targets.len())?;
    let mut ours = 0;
    for symbol in &targets {
        if symbol.size < JUMP {
            return Err(format!("{} has only {} bytes of code", symbol.name, symbol.size));
        }
        let to = match api::function(&symbol.name) {
            Some(function) => {
                ours += 1;
                function
            }
            None => stubs.add(&symbol.name)?,
        };
        write_jump(symbol.at, to).map_err(|e| format!("{}: {e}", symbol.name))?;
    }
    stubs.seal()?;
    Ok((ours, targets.len() - ours))
}

fn protect(at: usize, len: usize, how: c_int) -> Result<(), std::io::Error> {
    let page = at & !4095;
    // SAFETY: the pages are code of `libnccl` or our own stubs, mapped and ours to patch.
    match unsafe { libc::mprotect(page as *mut c_void, at + len - page, how) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn write_jump(at: usize, to: usize) -> Result<(), std::io::Error> {
    let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    code[6..].copy_from_slice(&to.to_le_bytes());
    protect(at, JUMP, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
    // SAFETY: the function has at least `JUMP` bytes, they are writable now, and nobody has called it yet.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, JUMP) };
    protect(at, JUMP, libc::PROT_READ | libc::PROT_EXEC)
}

/// Small functions that name the CUDA function they stand for and fail.
struct Stubs {
    code: usize,
    used: usize,
    room: usize,
}

unsafe extern "C" fn missing(name: *const c_char) -> Code {
    // SAFETY: a stub passes the name it was made with, which is never freed.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    report!("{}: not provided by the test bed", name.to_string_lossy());
    error::fail(NOT_SUPPORTED)
}

impl Stubs {
    fn with_room_for(count: usize) -> Result<Stubs, String> {
        let room = (count * STUB).max(1).next_multiple_of(4096);
        let how = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let code = unsafe { libc::mmap(std::ptr::null_mut(), room, how, flags, -1, 0) };
        if code == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        Ok(Stubs { code: code as usize, used: 0, room })
    }

    fn add(&mut self, name: &str) -> Result<usize, String> {
        let name = CString::new(name).map_err(|e| e.to_string())?.into_raw() as usize;
        let stop = missing as *const () as usize;
        let mut code = [0u8; STUB];
        code[..2].copy_from_slice(&[0x48, 0xbf]); // mov $name, %rdi
        code[2..10].copy_from_slice(&name.to_le_bytes());
        code[10..12].copy_from_slice(&[0x48, 0xb8]); // mov $missing, %rax
        code[12..20].copy_from_slice(&stop.to_le_bytes());
        code[20..].copy_from_slice(&[0xff, 0xe0]); // jmp *%rax
        let at = self.code + self.used;
        debug_assert!(self.used + STUB <= self.room);
        // SAFETY: the mapping has room for as many stubs as there are functions.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, STUB) };
        self.used += STUB;
        Ok(at)
    }

    fn seal(self) -> Result<(), String> {
        protect(self.code, self.room, libc::PROT_READ | libc::PROT_EXEC).map_err(|e| format!("mprotect: {e}"))
    }
}
