//! What a library file says of itself: whether it is NCCL, which one, and where its functions are.
//!
//! Owns: identity and functions of a file. Must not: know struct layouts.

use std::fmt;
use std::fs::File;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::dwarf::{Dwarf, DwarfError};
use super::image::{ElfError, Image, Machine, Section};
use super::stripped::{self, Mark};
use super::symbols::{Symbol, SymbolTable, choose};

/// Exports that make a file NCCL; they are in every release since 2.0.
const MARKS: [&str; 2] = ["ncclGetVersion", "ncclCommUserRank"];

/// Debug information that is read through for its digest: ten times that of NCCL 2.32, in 0.2 s.
const DIGEST_LIMIT: u64 = 256 << 20;
const DIGEST_PIECE: u64 = 1 << 20;

/// An NCCL release. The order is that of the releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A function of a file, as a uprobe needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Address that the file gives it; add a process's load bias.
    pub address: u64,
    /// Bytes, 0 if the file does not say.
    pub size: u64,
    /// Of the first instruction, in bytes from the start of the file.
    pub file_offset: u64,
    /// Bytes to skip before a probe is set: 4 where the function starts with `endbr64`, else 0.
    ///
    /// The kernel must single-step `endbr64` out of line, while it emulates the `push` that mostly follows,
    /// which halves the cost of a probe.
    pub entry_skip: u64,
}

/// The tables of one file that are needed to probe it. Keeps the symbols in memory (1.4 MB for NCCL 2.32),
/// so it is made, asked and dropped.
#[derive(Debug)]
pub struct NcclFile<'f> {
    image: Image<'f>,
    exports: SymbolTable,
    /// `.symtab`, unless stripped.
    symbols: Option<SymbolTable>,
    build_id: Option<String>,
    /// Its debug information, where that is in a file of its own.
    debug: Option<Image<'f>>,
}

impl<'f> NcclFile<'f> {
    /// Reads headers and symbol tables; `None` if the file is a library but not NCCL.
    ///
    /// # Errors
    /// No ELF file that we can work with, or one whose tables cannot be read; see [`ElfError`].
    pub fn open(file: &'f File) -> Result<Option<Self>, ElfError> {
        let image = Image::open(file)?;
        let Some(exports) = SymbolTable::read(&image, ".dynsym")? else {
            return Ok(None);
        };
        let lacks = |table: &SymbolTable| MARKS.iter().any(|mark| table.functions(mark).next().is_none());
        let symbols = SymbolTable::read(&image, ".symtab")?;
        // A program that NCCL was linked into exports nothing.
        if lacks(&exports) && symbols.as_ref().is_none_or(lacks) {
            return Ok(None);
        }
        let build_id = image.build_id()?;
        Ok(Some(Self { image, exports, symbols, build_id, debug: None }))
    }

    /// Takes symbols and debug information out of `file`, if it belongs to the same build; says whether it does.
    ///
    /// # Errors
    /// It is no sound ELF file.
    pub fn add_debug_file(&mut self, file: &'f File) -> Result<bool, ElfError> {
        let image = Image::open(file)?;
        if self.build_id.is_none() || image.build_id()? != self.build_id {
            return Ok(false);
        }
        if self.symbols.is_none() {
            self.symbols = SymbolTable::read(&image, ".symtab")?;
        }
        self.debug = Some(image);
        Ok(true)
    }

    /// Whether the debug information is that of a file of its own.
    #[must_use]
    pub fn has_debug_file(&self) -> bool {
        self.debug.is_some()
    }

    /// Instruction set of the file.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.image.machine()
    }

    /// The build-id in hex; `None` if the file was linked without one.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Whether local functions can be found, and not only exports.
    #[must_use]
    pub fn has_symbols(&self) -> bool {
        self.symbols.is_some()
    }

    /// Whether struct layouts can be read, see [`Self::dwarf`].
    #[must_use]
    pub fn has_dwarf(&self) -> bool {
        let image = self.debug.as_ref().unwrap_or(&self.image);
        image.section(".debug_info").is_some_and(|s| image.check_section(s).is_ok())
    }

    /// A digest of the debug information that layouts are read from; `None` if there is none, or too much to go through.
    ///
    /// A build-id does not do: whoever makes a file writes into it what he likes.
    #[must_use]
    pub fn debug_digest(&self) -> Option<String> {
        let image = self.debug.as_ref().unwrap_or(&self.image);
        image.section(".debug_info")?;
        let mut digest = Sha256::new();
        let mut left = DIGEST_LIMIT;
        for name in [".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str"] {
            let Some(section) = image.section(name) else { continue };
            image.check_section(section).ok()?;
            left = left.checked_sub(section.size)?;
            digest.update(section.size.to_le_bytes());
            let mut at = 0;
            while at < section.size {
                let size = (section.size - at).min(DIGEST_PIECE);
                digest.update(image.bytes_at(name, section.offset.checked_add(at)?, size, size).ok()?);
                at += size;
            }
        }
        Some(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Debug information of the file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn dwarf(&self) -> Result<Dwarf<'f>, DwarfError> {
        Dwarf::from_image(self.debug.as_ref().unwrap_or(&self.image).clone())
    }

    /// The release, out of the string `NCCL version X.Y.Z+cudaA.B` that all of them can print; `None` if it
    /// is not there, or contradicts itself.
    ///
    /// The string was preferred to the number that `ncclGetVersion` stores, which would take a decoder for
    /// each instruction set. Source: `VERSION_STRING` in `src/init.cc`, 2.8 to 2.30.
    ///
    /// # Errors
    /// The read-only data cannot be read.
    pub fn version(&self) -> Result<Option<Version>, ElfError> {
        match self.image.section(".rodata") {
            Some(section) => find_version(&self.image, section),
            None => Ok(None),
        }
    }

    /// The function that is called `name` in the source, exported or not; `None` if there is none, because
    /// the release has none, it was inlined or the file is stripped.
    ///
    /// # Errors
    /// Several functions bear the name, or the function is not where the file has bytes.
    pub fn function(&self, name: &str) -> Result<Option<Function>, ElfError> {
        let mut candidates: Vec<_> = self.exports.functions(name).collect();
        if let Some(symbols) = &self.symbols {
            candidates.extend(symbols.functions(name));
        }
        let Some(symbol) = choose(name, &candidates)?.or_else(|| self.by_code(name)) else {
            return Ok(None);
        };
        let file_offset = self
            .image
            .code_offset(symbol.address)
            .ok_or_else(|| ElfError::Malformed(format!("address 0x{:x} of {name}", symbol.address)))?;
        Ok(Some(Function {
            address: symbol.address,
            size: symbol.size,
            file_offset,
            entry_skip: self.entry_skip(name, file_offset)?,
        }))
    }

    /// A function that a stripped file does not name.
    fn by_code(&self, name: &str) -> Option<Symbol> {
        if self.has_symbols() || name != "ncclEnqueueCheck" {
            return None;
        }
        stripped::enqueue_check(&self.image, &self.exports).map(Symbol::at)
    }

    /// Whether the code uses these offsets, which tells one layout from another without debug information.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub(super) fn attest(&self, marks: &[Mark], anywhere: &[(&'static str, u32)]) -> Result<(), String> {
        stripped::attest(&self.image, &self.exports, marks, anywhere)
    }

    /// Address of the variable that is called `name` in the source, exported or not; `None` if there is none, or several
    /// bear the name.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<u64> {
        let exported = self.exports.objects(name);
        let all: Vec<_> = exported.chain(self.symbols.iter().flat_map(|s| s.objects(name))).collect();
        choose(name, &all).ok().flatten().map(|s| s.address)
    }

    /// What to add to an offset in the file to get the address that the file gives to code.
    #[must_use]
    pub fn code_bias(&self) -> Option<u64> {
        let f = self.function(MARKS[0]).ok().flatten()?;
        Some(f.address.wrapping_sub(f.file_offset))
    }

    fn entry_skip(&self, name: &str, file_offset: u64) -> Result<u64, ElfError> {
        const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        if self.machine() != Machine::X86_64 {
            return Ok(0);
        }
        let start = self.image.bytes_at(name, file_offset, 4, 4)?;
        Ok(if start == ENDBR64 { 4 } else { 0 })
    }
}

/// Looks through a section piece by piece. It has 0.5 MB in NCCL itself, but much more in a library that NCCL
/// was linked into.
fn find_version(image: &Image<'_>, section: &Section) -> Result<Option<Version>, ElfError> {
    const PIECE: u64 = 1 << 20;
    /// Pieces overlap by the longest text that counts.
    const OVERLAP: u64 = 64;
    image.check_section(section)?;
    let mut found = None;
    let mut at = 0;
    while at < section.size {
        let size = (section.size - at).min(PIECE + OVERLAP);
        let bytes = image.bytes_at("section .rodata", section.offset + at, size, size)?;
        for version in versions(&bytes) {
            if found.is_some_and(|other| other != version) {
                return Ok(None);
            }
            found = Some(version);
        }
        at += PIECE;
    }
    Ok(found)
}

/// All `NCCL version X.Y.Z` in `bytes`.
fn versions(bytes: &[u8]) -> impl Iterator<Item = Version> {
    const LEAD: &[u8] = b"NCCL version ";
    bytes.windows(LEAD.len()).enumerate().filter_map(move |(i, window)| {
        let rest = (window == LEAD).then(|| bytes.get(i + LEAD.len()..))??;
        // The character after the digits must be there, or the overlap may have cut them short.
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let mut numbers = str::from_utf8(rest.get(..end)?).ok()?.splitn(3, '.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Version { major: next()?, minor: next()?, patch: next()? })
    })
}

#[cfg(test)]
mod tests;
