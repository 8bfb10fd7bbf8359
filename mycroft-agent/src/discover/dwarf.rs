//! Sizes, field offsets and enumerators of named types, out of a library's DWARF.
//!
//! Owns: all knowledge of DWARF. Must not: know NCCL's types.
//!
//! Units are read one at a time, so memory is bounded by the largest unit plus the string and abbreviation
//! sections (2.4 MB for NCCL 2.32, whose `.debug_info` has 22 MB), and what lies after the last wanted type
//! is never read from disk. Versions 3 to 5; not supported: type units, split DWARF, compressed sections,
//! types that another unit holds (`DW_FORM_ref_addr`, which link-time optimisation and dwz produce).

mod fields;
mod unit;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;

use gimli::Reader;

use super::image::{ElfError, Image};
use unit::{Budget, Stop, Strings, Unit};

/// A section that is held in memory whole, or one unit, may have this many bytes.
const PIECE_LIMIT: u64 = 256 << 20;

/// Bounds the work on input that sends us in circles. NCCL 2.32 has 2 million entries.
const MAX_ENTRIES: u64 = 64 << 20;

/// Likewise, for a section of units that are all but empty. NCCL 2.32 has 203.
const MAX_UNITS: u64 = 1 << 16;

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum DwarfError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Built without `-g`, or stripped.
    #[error("the file has no {0} section, so no debug information")]
    Missing(&'static str),
    #[error("unit at 0x{0:x} of .debug_info runs past the end of the section")]
    Unit(u64),
    #[error("gave up after {0} debug entries")]
    TooMuch(u64),
}

/// A struct whose layout is wanted.
#[derive(Clone, Copy, Debug)]
pub struct StructSpec<'a> {
    /// Name of a struct, class or union, or of a typedef of one that has no name.
    pub name: &'a str,
    /// Part of the name of the compilation unit (`net.cc`), for names that mean different types in different
    /// units. `None`: the first definition counts.
    pub unit: Option<&'a str>,
    /// Paths of fields from the struct. `.` goes into a nested struct or union, and into the first element
    /// of an array of them. Members without a name are looked through; pointers are not followed.
    pub fields: &'a [&'a str],
}

/// Layout of one struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: String,
    /// Compilation unit in which the definition was found.
    pub unit: String,
    /// Bytes.
    pub size: u64,
    /// By path. A field that is not there is among [`Structs::problems`].
    pub fields: BTreeMap<String, Field>,
}

/// Place of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the struct that was asked for. For a bit-field, of the byte that holds its
    /// lowest bit.
    pub offset: u64,
    /// Bytes of the whole field: all elements of an array, the declared type of a bit-field.
    pub size: u64,
    /// Elements over all dimensions if the field is an array; 0 for a flexible one.
    pub count: Option<u64>,
    pub bits: Option<Bits>,
}

/// Place of a bit-field from [`Field::offset`], counted from the lowest bit (little endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    pub offset: u64,
    pub size: u64,
}

/// Something that was asked for and is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub name: String,
    /// `None`: the whole struct.
    pub field: Option<String>,
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{}.{field}: {}", self.name, self.reason),
            None => write!(f, "{}: {}", self.name, self.reason),
        }
    }
}

/// What [`Dwarf::structs`] found.
#[derive(Clone, Debug, Default)]
pub struct Structs {
    /// One per spec, in the order of the specs.
    pub found: Vec<Option<Struct>>,
    pub problems: Vec<Problem>,
}

impl Structs {
    /// The first struct of that name. Specs that share a name are told apart by their place in `found`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Struct> {
        self.found.iter().flatten().find(|s| s.name == name)
    }

    /// A field of the first struct of that name.
    #[must_use]
    pub fn field(&self, name: &str, path: &str) -> Option<Field> {
        self.get(name)?.fields.get(path).copied()
    }
}

/// The layouts of `specs` in an ELF file; [`Dwarf::open`] and [`Dwarf::structs`] in one.
///
/// # Errors
/// See there.
pub fn read_structs(file: &File, specs: &[StructSpec<'_>]) -> Result<Structs, DwarfError> {
    Dwarf::open(file)?.structs(specs)
}

/// Debug information of one file.
#[derive(Debug)]
pub struct Dwarf<'f> {
    image: Image<'f>,
    /// Place of `.debug_info` in the file.
    info_offset: u64,
    info_size: u64,
    strings: Strings,
}

impl<'f> Dwarf<'f> {
    /// Reads the tables that all units share.
    ///
    /// # Errors
    /// No ELF file, no debug information, or sections that cannot be read.
    pub fn open(file: &'f File) -> Result<Self, DwarfError> {
        Self::from_image(Image::open(file)?)
    }

    /// As [`Self::open`], of a file whose headers were read already.
    ///
    /// # Errors
    /// No debug information, or sections that cannot be read.
    pub fn from_image(image: Image<'f>) -> Result<Self, DwarfError> {
        let (info_offset, info_size) = {
            let info = image
                .section(".debug_info")
                .or_else(|| image.section(".zdebug_info"))
                .ok_or(DwarfError::Missing(".debug_info"))?;
            image.check_section(info)?;
            (info.offset, info.size)
        };
        let optional = |name: &str| -> Result<Vec<u8>, ElfError> {
            image
                .section(name)
                .map_or(Ok(Vec::new()), |s| image.section_bytes(s, PIECE_LIMIT))
        };
        if image.section(".debug_abbrev").is_none() {
            return Err(DwarfError::Missing(".debug_abbrev"));
        }
        let strings = Strings {
            abbrev: optional(".debug_abbrev")?,
            str: optional(".debug_str")?,
            line_str: optional(".debug_line_str")?,
            str_offsets: optional(".debug_str_offsets")?,
        };
        Ok(Self {
            image,
            info_offset,
            info_size,
            strings,
        })
    }

    /// The layouts of `specs`. Stops at the unit that completes them.
    ///
    /// A struct or field that is not there is no error but one of [`Structs::problems`].
    ///
    /// # Errors
    /// The file cannot be read, or its debug information makes no sense as a whole.
    pub fn structs(&self, specs: &[StructSpec<'_>]) -> Result<Structs, DwarfError> {
        let mut result = Structs {
            found: specs.iter().map(|_| None).collect(),
            problems: Vec::new(),
        };
        let damaged = self.search(|unit, budget| {
            let in_unit = |spec: &StructSpec<'_>| spec.unit.is_none_or(|part| unit.name().contains(part));
            let open: Vec<_> = specs
                .iter()
                .zip(&mut result.found)
                .filter(|(spec, slot)| slot.is_none() && in_unit(spec))
                .collect();
            let names: Vec<_> = open.iter().map(|(spec, _)| spec.name).collect();
            let definitions = unit.find_structs(&names, budget)?;
            for (spec, slot) in open {
                if let Some(target) = definitions.get(spec.name) {
                    let (layout, problems) = fields::layout(unit, spec, *target, budget)?;
                    *slot = Some(layout);
                    result.problems.extend(problems);
                }
            }
            Ok(result.found.iter().all(Option::is_some))
        })?;
        for (spec, _) in specs.iter().zip(&result.found).filter(|(_, found)| found.is_none()) {
            let place = spec
                .unit
                .map(|unit| format!(" in a unit named *{unit}*"))
                .unwrap_or_default();
            result.problems.push(Problem {
                name: spec.name.to_owned(),
                field: None,
                reason: format!("no definition{place}{damaged}"),
            });
        }
        Ok(result)
    }

    /// Names and values of the enumeration `name`, or of the typedef `name` of one, in their order in the
    /// source; `None` if there is none.
    ///
    /// # Errors
    /// As for [`Self::structs`].
    pub fn enumerators(&self, name: &str) -> Result<Option<Vec<(String, i64)>>, DwarfError> {
        let mut result = None;
        self.search(|unit, budget| {
            result = unit.find_enum(name, budget)?;
            Ok(result.is_some())
        })?;
        Ok(result)
    }

    /// Shows `visit` one unit after the other until it says `true`. Units that make no sense are passed over
    /// and counted.
    fn search(
        &self,
        mut visit: impl FnMut(&Unit<'_>, &mut Budget) -> Result<bool, Stop>,
    ) -> Result<Damaged, DwarfError> {
        // An entry takes a byte or more, and a few are looked at more than once. Small input that makes us
        // work longer than that sends us in circles.
        let mut budget = Budget::new((1 << 16) + self.info_size.saturating_mul(4).min(MAX_ENTRIES));
        let mut damaged = Damaged::default();
        let mut at = 0;
        for _ in 0..MAX_UNITS {
            if at >= self.info_size {
                return Ok(damaged);
            }
            let bytes = self.unit_bytes(at)?;
            let done = Unit::parse(&bytes, at, &self.strings).and_then(|unit| visit(&unit, &mut budget));
            match done {
                Ok(true) => return Ok(damaged),
                Ok(false) => {}
                Err(Stop::Exhausted) => return Err(DwarfError::TooMuch(budget.total())),
                Err(Stop::Malformed(error)) => damaged.note(error),
            }
            at += bytes.len() as u64;
        }
        Err(DwarfError::TooMuch(budget.total()))
    }

    /// One unit with its header. Never empty, so a walk advances.
    fn unit_bytes(&self, at: u64) -> Result<Vec<u8>, DwarfError> {
        let left = self.info_size.saturating_sub(at);
        let head = self
            .image
            .bytes_at("unit header", self.info_offset + at, left.min(12), 12)?;
        let mut reader = gimli::EndianSlice::new(&head, gimli::LittleEndian);
        let (length, format) = reader.read_initial_length().map_err(|_| DwarfError::Unit(at))?;
        let size = u64::from(format.initial_length_size()).saturating_add(length as u64);
        if size > left {
            return Err(DwarfError::Unit(at));
        }
        Ok(self.image.bytes_at("unit", self.info_offset + at, size, PIECE_LIMIT)?)
    }
}

/// Units that could not be understood, for the reason of an absence.
#[derive(Debug, Default)]
struct Damaged {
    count: u32,
    first: Option<String>,
}

impl Damaged {
    fn note(&mut self, error: String) {
        self.count += 1;
        self.first.get_or_insert(error);
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first {
            Some(error) => write!(f, ", but {} units could not be read ({error})", self.count),
            None => Ok(()),
        }
    }
}
