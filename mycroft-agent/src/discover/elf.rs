//! What a library file says of itself: is it NCCL, which build, where its functions are.
//!
//! Files have 250 to 470 MB, so only what is needed is read, with pread and not through a mapping.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::fs::FileExt as _,
};

use object::{
    Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, SymbolKind,
    elf::{EM_AARCH64, EM_X86_64},
};
use thiserror::Error;

use super::dwarf::{DebugInfo, DwarfError, StructSpec, Structs};

/// A `.rodata` larger than this is not searched for the version.
const RODATA_LIMIT: u64 = 256 << 20;
/// What every NCCL prints at its start; the version follows.
const VERSION_MARK: &[u8] = b"NCCL version ";
/// `endbr64`.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Exports by which NCCL is known, in whatever file.
const MARKS: [&str; 2] = ["ncclGetVersion", "ncclCommUserRank"];

/// Why a file is of no use.
#[derive(Debug, Error)]
pub enum ElfError {
    #[error("cannot read the file: {0}")]
    Io(#[from] io::Error),
    #[error("not an ELF file, or a corrupt one: {0}")]
    Corrupt(#[from] object::Error),
    #[error("built for another machine (ELF machine {0}); x86-64 and aarch64 are known")]
    Machine(u16),
    #[error("exports no ncclGetVersion and ncclCommUserRank: not NCCL")]
    NotNccl,
}

/// A function's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub vaddr: u64,
    pub size: u64,
    /// Of the first instruction, in the file.
    pub file_offset: u64,
    /// Bytes of a leading `endbr64`.
    pub entry_skip: u64,
}

/// An NCCL library file.
#[derive(Debug)]
pub struct NcclFile {
    /// GNU build id in hex; empty if there is none.
    pub build_id: String,
    /// Such as `2.27.5`; empty if the file does not say.
    pub version: String,
    pub has_symtab: bool,
    pub has_dwarf: bool,
    functions: BTreeMap<String, Function>,
    file: File,
}

impl NcclFile {
    /// Reads a file and looks up `functions` by their plain C++ names.
    ///
    /// # Errors
    /// If it can't be read, is no sound ELF file, or is not NCCL.
    pub fn open(file: &File, functions: &[&str]) -> Result<Self, ElfError> {
        let mut reader = file.try_clone()?;
        reader.rewind()?;
        let mut magic = [0; 4];
        reader.read_exact(&mut magic)?;
        let cache = ReadCache::new(reader);
        let elf = object::File::parse(&cache)?;
        let machine = machine(file)?;
        if !matches!(machine, EM_X86_64 | EM_AARCH64) {
            return Err(ElfError::Machine(machine));
        }
        let exports: BTreeMap<&str, u64> = elf
            .dynamic_symbols()
            .filter(|s| s.is_definition() && s.kind() == SymbolKind::Text)
            .filter_map(|s| Some((s.name().ok()?, s.address())))
            .collect();
        if !MARKS.iter().all(|m| exports.contains_key(m)) {
            return Err(ElfError::NotNccl);
        }
        let segments: Vec<Segment> =
            elf.segments().map(|s| Segment { address: s.address(), size: s.size(), file: s.file_range() }).collect();
        let mut out = Self {
            build_id: elf.build_id()?.map(hex).unwrap_or_default(),
            version: version(&elf).unwrap_or_default(),
            has_symtab: elf.symbol_table().is_some(),
            has_dwarf: elf.section_by_name(".debug_info").is_some(),
            functions: BTreeMap::new(),
            file: file.try_clone()?,
        };
        for name in functions {
            if let Some((vaddr, size)) = find(&elf, name)
                && let Some(file_offset) = file_offset(&segments, vaddr)
            {
                let entry_skip = skip(file, file_offset);
                out.functions.insert((*name).to_owned(), Function { vaddr, size, file_offset, entry_skip });
            }
        }
        Ok(out)
    }

    #[must_use]
    pub fn function(&self, name: &str) -> Option<Function> {
        self.functions.get(name).copied()
    }

    /// Looks structures up in the file's DWARF.
    ///
    /// # Errors
    /// If the file has no DWARF or a corrupt one.
    pub fn structs(&self, specs: &[StructSpec<'_>]) -> Result<Structs, DwarfError> {
        let section = |e| DwarfError::Section(".debug_info", e);
        let mut reader = self.file.try_clone().map_err(|_| DwarfError::Absent)?;
        reader.rewind().map_err(|_| DwarfError::Absent)?;
        let cache = ReadCache::new(reader);
        let elf = object::File::parse(&cache).map_err(section)?;
        DebugInfo::load(&elf)?.structs(specs)
    }
}

struct Segment {
    address: u64,
    size: u64,
    /// Offset and size in the file.
    file: (u64, u64),
}

fn file_offset(segments: &[Segment], vaddr: u64) -> Option<u64> {
    segments
        .iter()
        .find(|s| vaddr >= s.address && vaddr - s.address < s.size.min(s.file.1))
        .and_then(|s| s.file.0.checked_add(vaddr - s.address))
}

/// `e_machine`; object's own enumeration folds unknown machines into one.
fn machine(file: &File) -> io::Result<u16> {
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, 18)?;
    Ok(u16::from_le_bytes(bytes))
}

fn skip(file: &File, offset: u64) -> u64 {
    let mut first = [0; 4];
    match file.read_exact_at(&mut first, offset) {
        Ok(()) if first == ENDBR64 => 4,
        _ => 0,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn version<'a, R: object::ReadRef<'a>>(elf: &object::File<'a, R>) -> Option<String> {
    let section = elf.section_by_name(".rodata").filter(|s| s.size() <= RODATA_LIMIT)?;
    let data = section.data().ok()?;
    memchr::memmem::find_iter(data, VERSION_MARK).find_map(|at| {
        let text = data.get(at + VERSION_MARK.len()..)?;
        let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let version = std::str::from_utf8(text.get(..end)?).ok()?;
        (version.split('.').filter(|p| !p.is_empty()).count() == 3).then(|| version.to_owned())
    })
}

/// Address and size of a function by its plain name: exported in C, or C++ with the Itanium mangling
/// (`_Z16ncclEnqueueCheckP8ncclInfo`). Clones of the compiler (`.part.0`, `.cold`) are not the function. `None`
/// if several functions share the name.
fn find<'a, R: object::ReadRef<'a>>(elf: &object::File<'a, R>, name: &str) -> Option<(u64, u64)> {
    let mangled = [format!("_Z{}{name}", name.len()), format!("_ZL{}{name}", name.len())];
    let matches = |symbol: &str| {
        symbol == name
            || (!symbol.contains('.')
                && mangled.iter().any(|m| symbol.strip_prefix(m.as_str()).is_some_and(is_parameters)))
    };
    let mut hits: Vec<(u64, u64)> = elf
        .symbols()
        .chain(elf.dynamic_symbols())
        .filter(|s| s.is_definition() && s.kind() == SymbolKind::Text && s.address() != 0)
        .filter(|s| s.name().is_ok_and(matches))
        .map(|s| (s.address(), s.size()))
        .collect();
    hits.sort_unstable();
    hits.dedup_by_key(|h| h.0);
    match hits.as_slice() {
        [one] => Some(*one),
        _ => None,
    }
}

/// What follows a mangled function name is its parameter types, never another name component.
fn is_parameters(rest: &str) -> bool {
    !rest.is_empty() && !rest.starts_with(['E', 'I'])
}
