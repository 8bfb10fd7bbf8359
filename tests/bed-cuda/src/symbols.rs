//! The symbol table of the mapped `libnccl`, read from its file (not mapped: a second mapping would show up in
//! `/proc/PID/maps` and mislead who looks for the library there).

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) struct Symbols {
    pub(crate) path: PathBuf,
    /// What to add to a symbol's value.
    base: usize,
    /// By address.
    all: Vec<Symbol>,
}

pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) at: usize,
    pub(crate) size: usize,
    pub(crate) function: bool,
}

static SYMBOLS: OnceLock<Symbols> = OnceLock::new();

/// The symbols of the library once it has been found.
pub(crate) fn nccl() -> Option<&'static Symbols> {
    SYMBOLS.get()
}

/// Looks for `libnccl` among the mapped libraries and reads its symbols; done at most once.
pub(crate) fn find() -> Option<Result<&'static Symbols, String>> {
    let (path, base) = mapped()?;
    if SYMBOLS.get().is_some() {
        return None;
    }
    // A stripped copy is redirected by the symbols of the library that it was made from.
    let named = std::env::var_os("BED_SYMBOLS").map_or_else(|| path.clone(), PathBuf::from);
    let read = Symbols::read(&named, base).map_err(|e| format!("{}: {e}", path.display()));
    Some(read.map(|s| SYMBOLS.get_or_init(|| s)))
}

fn mapped() -> Option<(PathBuf, usize)> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid record, and `out` is the `Option` below.
        let (info, out) = unsafe { (&*info, &mut *out.cast::<Option<(PathBuf, usize)>>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: the loader's names are C strings.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        let path = Path::new(OsStr::from_bytes(name));
        if path.file_name().is_some_and(|f| f.as_bytes().starts_with(b"libnccl.so")) {
            *out = Some((path.to_owned(), info.dlpi_addr as usize));
            return 1;
        }
        0
    }
    let mut found: Option<(PathBuf, usize)> = None;
    // SAFETY: `visit` gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::from_mut(&mut found).cast()) };
    found
}

fn u16_at(b: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?).into())
}

fn u32_at(b: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?) as usize)
}

fn u64_at(b: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?)).ok()
}

fn bytes(file: &File, at: usize, len: usize) -> std::io::Result<Vec<u8>> {
    let mut out = vec![0; len];
    file.read_exact_at(&mut out, at as u64)?;
    Ok(out)
}

impl Symbols {
    fn read(path: &Path, base: usize) -> Result<Symbols, String> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let header = bytes(&file, 0, 64).map_err(|e| e.to_string())?;
        let sections = (|| Some((u64_at(&header, 0x28)?, u16_at(&header, 0x3a)?, u16_at(&header, 0x3c)?)))();
        let (at, entry, count) = sections.ok_or("no ELF header")?;
        let table = bytes(&file, at, entry * count).map_err(|e| e.to_string())?;
        let section = |i: usize| table.get(i * entry..(i + 1) * entry);
        // type 2: the full symbol table, as opposed to the dynamic one
        let symtab = (0..count).filter_map(section).find(|s| u32_at(s, 4) == Some(2)).ok_or("no .symtab")?;
        let load = |s: &[u8]| {
            let (at, len) = (u64_at(s, 0x18).ok_or("bad section")?, u64_at(s, 0x20).ok_or("bad section")?);
            bytes(&file, at, len).map_err(|e| e.to_string())
        };
        let strings = u32_at(symtab, 0x28).and_then(section).ok_or("no string table")?;
        let (entries, strings) = (load(symtab)?, load(strings)?);
        let mut all: Vec<Symbol> = entries.chunks_exact(24).filter_map(|e| Symbol::parse(e, &strings, base)).collect();
        all.sort_by_key(|s| s.at);
        Ok(Symbols { path: path.to_owned(), base, all })
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = &Symbol> {
        self.all.iter().filter(|s| s.function)
    }

    /// Name of the function that an address lies in.
    pub(crate) fn function_at(&self, address: usize) -> Option<&str> {
        let upto = self.all.partition_point(|s| s.at <= address);
        self.all[..upto].iter().rev().take(16).find(|s| s.function && address < s.at + s.size).map(|s| s.name.as_str())
    }

    /// Address and size of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<(usize, usize)> {
        self.all.iter().find(|s| !s.function && s.name == name).map(|s| (s.at, s.size))
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }
}

impl Symbol {
    fn parse(entry: &[u8], strings: &[u8], base: usize) -> Option<Symbol> {
        let kind = entry.get(4)? & 0xf;
        let (value, size) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
        if !matches!(kind, 1 | 2) || value == 0 {
            return None;
        }
        let name = CStr::from_bytes_until_nul(strings.get(u32_at(entry, 0)?..)?).ok()?.to_str().ok()?;
        Some(Symbol { name: name.to_owned(), at: base + value, size, function: kind == 2 })
    }
}
