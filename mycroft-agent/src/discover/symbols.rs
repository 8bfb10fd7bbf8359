//! Functions by their plain name, out of the symbol tables of an ELF file.
//!
//! Names of C++ are mangled (Itanium ABI): `_Z16ncclEnqueueCheckP8ncclInfo`, with an `L` after `_Z` for
//! static functions. Only functions at namespace level without a namespace are of use here, so no demangler
//! is needed: the name is `_Z`, `L` perhaps, its length, itself.

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use super::image::{ElfError, Image, string_at};

/// Larger tables are refused; NCCL 2.32 has 0.6 MB of symbols and 0.7 MB of names.
const TABLE_LIMIT: u64 = 256 << 20;

/// A function of a symbol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) address: u64,
    /// Bytes.
    pub(super) size: u64,
    local: bool,
}

impl Symbol {
    /// A function known by its address alone.
    pub(super) const fn at(address: u64) -> Self {
        Self { address, size: 0, local: true }
    }
}

/// `.dynsym` or `.symtab` with its strings.
#[derive(Debug)]
pub(super) struct SymbolTable {
    symbols: Vec<u8>,
    names: Vec<u8>,
    /// `.gnu.version`, an entry of 2 bytes for each symbol; empty if there is none.
    versions: Vec<u8>,
}

impl SymbolTable {
    /// Reads the table in the section `name`; `None` if there is no such section.
    pub(super) fn read(image: &Image<'_>, name: &str) -> Result<Option<Self>, ElfError> {
        let Some(section) = image.section(name) else {
            return Ok(None);
        };
        // What `strip --only-keep-debug` and `--strip-debug` leave can be a table without bytes.
        if section.kind == elf::SHT_NOBITS {
            return Ok(None);
        }
        let strings = image
            .section_at(section.link)
            .filter(|s| s.kind == elf::SHT_STRTAB)
            .ok_or_else(|| ElfError::Malformed(format!("section {name} (its link to the names)")))?;
        let versions = match image.section(".gnu.version") {
            Some(versions) if section.kind == elf::SHT_DYNSYM => image.section_bytes(versions, TABLE_LIMIT)?,
            _ => Vec::new(),
        };
        let symbols = image.section_bytes(section, TABLE_LIMIT)?;
        if symbols.len() % size_of::<elf::Sym64<LE>>() != 0 {
            return Err(ElfError::Malformed(format!("section {name} (its size)")));
        }
        Ok(Some(Self { symbols, names: image.section_bytes(strings, TABLE_LIMIT)?, versions }))
    }

    /// The functions named `name`, whether C or C++, in their default version.
    pub(super) fn functions<'t>(&'t self, name: &'t str) -> impl Iterator<Item = Symbol> + 't {
        self.named(name, elf::STT_FUNC)
    }

    /// The variables named `name`, likewise.
    pub(super) fn objects<'t>(&'t self, name: &'t str) -> impl Iterator<Item = Symbol> + 't {
        self.named(name, elf::STT_OBJECT)
    }

    fn named<'t>(&'t self, name: &'t str, kind: u8) -> impl Iterator<Item = Symbol> + 't {
        let symbols: &[elf::Sym64<LE>] = pod::slice_from_all_bytes(&self.symbols).unwrap_or_default();
        // Most names can be told apart by their start, without looking for their end.
        let length = name.len();
        // Variables outside of any namespace are not mangled, unless they are static.
        let starts = [name.to_owned(), format!("_Z{length}{name}"), format!("_ZL{length}{name}")];
        symbols.iter().enumerate().filter_map(move |(i, symbol)| {
            let defined = symbol.st_shndx.get(LE) != elf::SHN_UNDEF && symbol.st_value.get(LE) != 0;
            if !defined || symbol.st_type() != kind {
                return None;
            }
            let at = symbol.st_name.get(LE);
            let text = self.names.get(at as usize..)?;
            if !starts.iter().any(|start| text.starts_with(start.as_bytes())) || self.is_old_version(i) {
                return None;
            }
            (unqualified_name(string_at(&self.names, at)?) == Some(name)).then(|| Symbol {
                address: symbol.st_value.get(LE),
                size: symbol.st_size.get(LE),
                local: symbol.st_bind() == elf::STB_LOCAL,
            })
        })
    }

    /// A version that is only kept for programs that were linked with it.
    fn is_old_version(&self, index: usize) -> bool {
        self.versions
            .get(index * 2..)
            .and_then(|rest| rest.first_chunk())
            .is_some_and(|entry| u16::from_le_bytes(*entry) & elf::VERSYM_HIDDEN != 0)
    }
}

/// The one function that `candidates` are: global ones count before local ones, and several names for one
/// address are one function.
pub(super) fn choose(name: &str, candidates: &[Symbol]) -> Result<Option<Symbol>, ElfError> {
    let globals = candidates.iter().any(|s| !s.local);
    let mut chosen: Vec<Symbol> = candidates.iter().filter(|s| s.local != globals).copied().collect();
    chosen.sort_by_key(|s| s.address);
    chosen.dedup_by_key(|s| s.address);
    match chosen.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        several => Err(ElfError::Ambiguous { name: name.to_owned(), count: several.len() }),
    }
}

/// The plain name of a function that is a member of nothing; `None` for everything else, including the parts
/// that the compiler splits off (`.cold`, `.part.0`, `.isra.0`, `.constprop.0`).
fn unqualified_name(symbol: &str) -> Option<&str> {
    // `.symtab` marks versions in the name, the default one with two.
    let symbol = symbol.split_once("@@").map_or(symbol, |(name, _)| name);
    if symbol.contains(['.', '@']) {
        return None;
    }
    let Some(mangled) = symbol.strip_prefix("_Z") else {
        return Some(symbol);
    };
    let mangled = mangled.strip_prefix('L').unwrap_or(mangled);
    let digits = mangled.bytes().take_while(u8::is_ascii_digit).count();
    let (length, rest) = mangled.split_at_checked(digits)?;
    rest.get(..length.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_out_of_symbols() {
        for (symbol, name) in [
            ("ncclAllReduce", Some("ncclAllReduce")),
            ("ncclAllReduce@@NCCL_2", Some("ncclAllReduce")),
            ("ncclAllReduce@NCCL_1", None),
            ("_Z16ncclEnqueueCheckP8ncclInfo", Some("ncclEnqueueCheck")),
            ("_ZL22hostStreamPlanCallbackPv", Some("hostStreamPlanCallback")),
            ("_ZL22hostStreamPlanCallbackPv.cold.103", None),
            ("_ZL8commFreeP8ncclComm.part.60", None),
            ("_ZN9__gnu_cxx3fooEv", None),
            ("_ZZ16ncclEnqueueCheckP8ncclInfoE8__func__", None),
            ("_Z99short", None),
            ("_Z", None),
            ("", Some("")),
        ] {
            assert_eq!(unqualified_name(symbol), name, "{symbol}");
        }
    }

    #[test]
    fn globals_go_before_locals_and_two_equals_are_refused() {
        let symbol = |address, local| Symbol { address, size: 1, local };
        let choose = |candidates: &[Symbol]| choose("f", candidates);
        assert_eq!(choose(&[]).unwrap(), None);
        assert_eq!(choose(&[symbol(1, true), symbol(2, false), symbol(2, false)]).unwrap(), Some(symbol(2, false)));
        assert_eq!(choose(&[symbol(1, true)]).unwrap(), Some(symbol(1, true)));
        assert!(choose(&[symbol(1, true), symbol(2, true)]).is_err());
        assert!(choose(&[symbol(1, false), symbol(2, false)]).is_err());
    }
}
