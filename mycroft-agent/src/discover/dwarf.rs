//! Where the fields of C++ structures lie, from a library's own DWARF.
//!
//! Sections are read into memory, not mapped: a file that is truncated under a mapping raises SIGBUS, which
//! would kill a privileged agent. Everything read is hostile input: work and depth are bounded.

use std::{borrow::Cow, collections::BTreeMap};

use gimli::{AttributeValue, DwTag, EndianSlice, LittleEndian, UnitOffset, constants as dw};
use object::{Object as _, ObjectSection as _, ReadRef};
use thiserror::Error;

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;
type Unit<'a> = gimli::Unit<Reader<'a>>;
type Die<'a> = gimli::DebuggingInformationEntry<Reader<'a>>;

/// Sections larger than this are refused: NCCL's largest has 23 MB.
const SECTION_LIMIT: u64 = 1 << 30;
/// Entries looked at, at most: NCCL 2.32 has 2 million.
const ENTRY_LIMIT: u64 = 50_000_000;
/// Steps from one type to the next (typedef, const, member of member), at most.
const DEPTH_LIMIT: u32 = 64;

/// Why no structures could be read.
#[derive(Debug, Error)]
pub enum DwarfError {
    #[error("no DWARF: the library was built or packaged without debug information")]
    Absent,
    #[error("DWARF section {0} has {1} bytes, which can't be right")]
    TooLarge(&'static str, u64),
    #[error("DWARF section {0} can't be read: {1}")]
    Section(&'static str, #[source] object::Error),
    #[error("corrupt DWARF: {0}")]
    Corrupt(#[from] gimli::Error),
    #[error("corrupt DWARF: more than {ENTRY_LIMIT} entries")]
    TooManyEntries,
}

/// A structure to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructSpec<'a> {
    pub name: &'a str,
    /// Part of the compilation unit's name, where two types share one name (`net.cc`, `coll_net.cc`).
    pub unit: Option<&'a str>,
    /// Dotted paths, such as `progressState.active`.
    pub fields: Vec<&'a str>,
}

impl<'a> StructSpec<'a> {
    #[must_use]
    pub fn new(name: &'a str, fields: &[&'a str]) -> Self {
        Self { name, unit: None, fields: fields.to_vec() }
    }
}

/// Where a field lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the structure.
    pub offset: u64,
    /// Bytes of the whole field.
    pub size: u64,
    /// Elements, if it is an array.
    pub count: Option<u64>,
    pub bits: Option<Bits>,
}

/// Where a bit field lies within the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Bits from the start of the structure, counted from the lowest bit of the lowest byte.
    pub offset: u64,
    pub size: u64,
}

/// A structure that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Struct {
    pub size: u64,
    pub fields: BTreeMap<String, Field>,
    /// Fields that it does not have.
    pub missing: Vec<String>,
}

/// Structures by the index of their [`StructSpec`]; `None`: not found.
pub type Structs = Vec<Option<Struct>>;

/// The DWARF sections of one file, in memory.
#[derive(Debug)]
pub struct DebugInfo<'a> {
    sections: gimli::DwarfSections<Cow<'a, [u8]>>,
}

impl<'a> DebugInfo<'a> {
    /// # Errors
    /// If there is no DWARF, or a section is absurdly large or unreadable.
    pub fn load<R: ReadRef<'a>>(file: &object::File<'a, R>) -> Result<Self, DwarfError> {
        if file.section_by_name(".debug_info").is_none() {
            return Err(DwarfError::Absent);
        }
        let sections = gimli::DwarfSections::load(|id| {
            // Ranges and locations are never asked for; line tables only for the header that a unit names.
            let wanted = matches!(
                id,
                gimli::SectionId::DebugInfo
                    | gimli::SectionId::DebugAbbrev
                    | gimli::SectionId::DebugLine
                    | gimli::SectionId::DebugStr
                    | gimli::SectionId::DebugLineStr
                    | gimli::SectionId::DebugStrOffsets
            );
            let Some(section) = file.section_by_name(id.name()).filter(|_| wanted) else {
                return Ok(Cow::Borrowed(&[][..]));
            };
            if section.size() > SECTION_LIMIT {
                return Err(DwarfError::TooLarge(id.name(), section.size()));
            }
            section.uncompressed_data().map_err(|e| DwarfError::Section(id.name(), e))
        })?;
        Ok(Self { sections })
    }

    /// Looks for structures, and stops when all are found.
    ///
    /// # Errors
    /// If the DWARF is corrupt. A structure or field that is not there is no error: see [`Structs`].
    pub fn structs(&self, specs: &[StructSpec<'_>]) -> Result<Structs, DwarfError> {
        let mut found: Structs = vec![None; specs.len()];
        self.walk(
            &[dw::DW_TAG_structure_type, dw::DW_TAG_class_type, dw::DW_TAG_union_type],
            |view, unit_name, name, at| {
                for (spec, slot) in specs.iter().zip(found.iter_mut()) {
                    if slot.is_none() && spec.name == name && spec.unit.is_none_or(|u| unit_name.contains(u)) {
                        *slot = Some(view.read_struct(at, spec)?);
                    }
                }
                Ok(found.iter().all(Option::is_some))
            },
        )?;
        Ok(found)
    }

    /// The enumerators of an enumeration, by its own name or that of a typedef.
    ///
    /// # Errors
    /// If the DWARF is corrupt.
    pub fn enumerators(&self, name: &str) -> Result<Option<Vec<(String, i64)>>, DwarfError> {
        let mut found = None;
        self.walk(&[dw::DW_TAG_enumeration_type, dw::DW_TAG_typedef], |view, _, this, at| {
            if this == name {
                found = view.read_enum(at)?;
            }
            Ok(found.is_some())
        })?;
        Ok(found)
    }

    /// Calls `visit` with each named definition of the given kinds, until it says that it has enough.
    fn walk(
        &self,
        tags: &[DwTag],
        mut visit: impl FnMut(&View<'_, '_>, &str, &str, UnitOffset) -> Result<bool, DwarfError>,
    ) -> Result<(), DwarfError> {
        let dwarf = self.sections.borrow(|s| EndianSlice::new(s, LittleEndian));
        let mut units = dwarf.units();
        let mut entries_left = ENTRY_LIMIT;
        while let Some(header) = units.next()? {
            let unit = dwarf.unit(header)?;
            let unit_name = unit.name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let view = View { dwarf: &dwarf, unit: &unit };
            let mut cursor = unit.entries();
            // The unit's own entry.
            if cursor.next_dfs()?.is_none() {
                continue;
            }
            let mut more = cursor.next_dfs()?.is_some();
            while more {
                entries_left = entries_left.checked_sub(1).ok_or(DwarfError::TooManyEntries)?;
                let Some(die) = cursor.current() else { break };
                let tag = die.tag();
                if tags.contains(&tag)
                    && die.attr(dw::DW_AT_declaration).is_none()
                    && let Some(name) = view.name(die)?
                    && visit(&view, &unit_name, &name, die.offset())?
                {
                    return Ok(());
                }
                // Only namespaces hold further types of interest; functions are most of the tree.
                more =
                    if tag == dw::DW_TAG_namespace { cursor.next_dfs()?.is_some() } else { next_outside(&mut cursor)? };
            }
        }
        Ok(())
    }
}

/// Moves past the current entry's children: to its sibling, or out of the enclosing namespace.
fn next_outside(cursor: &mut gimli::EntriesCursor<'_, Reader<'_>>) -> Result<bool, gimli::Error> {
    let depth = cursor.depth();
    if cursor.next_sibling()?.is_some() {
        return Ok(true);
    }
    // The end of the siblings: go on in document order until we are back above.
    while cursor.next_dfs()?.is_some() {
        if cursor.depth() <= depth {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One unit while it is looked at.
struct View<'a, 'd> {
    dwarf: &'a Dwarf<'d>,
    unit: &'a Unit<'d>,
}

impl View<'_, '_> {
    fn name(&self, die: &Die<'_>) -> Result<Option<String>, gimli::Error> {
        let Some(value) = die.attr_value(dw::DW_AT_name) else { return Ok(None) };
        Ok(Some(self.dwarf.attr_string(self.unit, value)?.to_string_lossy().into_owned()))
    }

    fn read_struct(&self, at: UnitOffset, spec: &StructSpec<'_>) -> Result<Struct, DwarfError> {
        let mut out = Struct { size: self.type_size(at, 0)?.unwrap_or(0), ..Struct::default() };
        for path in &spec.fields {
            match self.field(at, path, 0)? {
                Some(field) => {
                    out.fields.insert((*path).to_owned(), field);
                }
                None => out.missing.push((*path).to_owned()),
            }
        }
        Ok(out)
    }

    fn read_enum(&self, at: UnitOffset) -> Result<Option<Vec<(String, i64)>>, DwarfError> {
        let at = self.bare_type(at)?;
        let mut tree = self.unit.entries_tree(Some(at))?;
        let mut children = tree.root()?.children();
        let mut list = Vec::new();
        while let Some(child) = children.next()? {
            let die = child.entry();
            if die.tag() == dw::DW_TAG_enumerator
                && let (Some(name), Some(value)) = (self.name(die)?, die.attr_value(dw::DW_AT_const_value))
            {
                list.push((name, signed(&value).unwrap_or(0)));
            }
        }
        Ok((!list.is_empty()).then_some(list))
    }

    /// Finds a dotted path within the structure at `at`.
    fn field(&self, at: UnitOffset, path: &str, depth: u32) -> Result<Option<Field>, DwarfError> {
        if depth > DEPTH_LIMIT {
            return Ok(None);
        }
        let (first, rest) = match path.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path, None),
        };
        let mut tree = self.unit.entries_tree(Some(at))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let die = child.entry();
            if !matches!(die.tag(), dw::DW_TAG_member | dw::DW_TAG_inheritance) {
                continue;
            }
            let Some(of_type) = reference(die) else { continue };
            let name = if die.tag() == dw::DW_TAG_inheritance { None } else { self.name(die)? };
            let base = location(die).unwrap_or(0);
            let inner = match (&name, rest) {
                // Members of an anonymous struct, an anonymous union or a base class are the structure's own.
                (None, _) => self.field(self.bare_type(of_type)?, path, depth + 1)?,
                (Some(n), None) if n == first => self.last(die, of_type)?,
                (Some(n), Some(rest)) if n == first => self.field(self.bare_type(of_type)?, rest, depth + 1)?,
                _ => None,
            };
            if let Some(f) = inner {
                let bits = f.bits.map(|b| Bits { offset: b.offset.saturating_add(base.saturating_mul(8)), ..b });
                return Ok(Some(Field { offset: f.offset.saturating_add(base), bits, ..f }));
            }
        }
        Ok(None)
    }

    /// The field itself, relative to its own member location.
    fn last(&self, die: &Die<'_>, of_type: UnitOffset) -> Result<Option<Field>, DwarfError> {
        let size = self.type_size(of_type, 0)?.unwrap_or(0);
        let count = self.array_count(self.bare_type(of_type)?)?;
        Ok(Some(Field { offset: 0, size, count, bits: bits(die, size) }))
    }

    /// Strips typedefs and qualifiers.
    fn bare_type(&self, mut at: UnitOffset) -> Result<UnitOffset, DwarfError> {
        for _ in 0..DEPTH_LIMIT {
            let die = self.unit.entry(at)?;
            match die.tag() {
                dw::DW_TAG_typedef
                | dw::DW_TAG_const_type
                | dw::DW_TAG_volatile_type
                | dw::DW_TAG_restrict_type
                | dw::DW_TAG_atomic_type => match reference(&die) {
                    Some(next) => at = next,
                    None => return Ok(at),
                },
                _ => return Ok(at),
            }
        }
        Ok(at)
    }

    /// Bytes of a type; `None` where DWARF gives none (void, flexible array).
    fn type_size(&self, at: UnitOffset, depth: u32) -> Result<Option<u64>, DwarfError> {
        if depth > DEPTH_LIMIT {
            return Ok(None);
        }
        let at = self.bare_type(at)?;
        let die = self.unit.entry(at)?;
        if let Some(size) = die.attr_value(dw::DW_AT_byte_size).and_then(|v| v.udata_value()) {
            return Ok(Some(size));
        }
        match die.tag() {
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type => {
                Ok(Some(u64::from(self.unit.encoding().address_size)))
            }
            dw::DW_TAG_array_type => {
                let Some(element) = reference(&die) else { return Ok(None) };
                let size = self.type_size(element, depth + 1)?;
                Ok(size.zip(self.array_count(at)?).map(|(s, n)| s.saturating_mul(n)))
            }
            _ => Ok(None),
        }
    }

    /// Elements of an array over all its dimensions; `None` for another type or an open array.
    fn array_count(&self, at: UnitOffset) -> Result<Option<u64>, DwarfError> {
        if self.unit.entry(at)?.tag() != dw::DW_TAG_array_type {
            return Ok(None);
        }
        let mut tree = self.unit.entries_tree(Some(at))?;
        let mut children = tree.root()?.children();
        let mut count: Option<u64> = None;
        while let Some(child) = children.next()? {
            let die = child.entry();
            if die.tag() != dw::DW_TAG_subrange_type {
                continue;
            }
            let number = |at| die.attr_value(at).and_then(|v| v.udata_value());
            let n = number(dw::DW_AT_count).or_else(|| number(dw::DW_AT_upper_bound).map(|u| u.saturating_add(1)));
            let Some(n) = n else { return Ok(None) };
            count = Some(count.unwrap_or(1).saturating_mul(n));
        }
        Ok(count)
    }
}

/// The type of an entry, if it lies in the same unit (C++ in the wheels always does).
fn reference(die: &Die<'_>) -> Option<UnitOffset> {
    match die.attr_value(dw::DW_AT_type)? {
        AttributeValue::UnitRef(at) => Some(at),
        _ => None,
    }
}

fn location(die: &Die<'_>) -> Option<u64> {
    die.attr_value(dw::DW_AT_data_member_location)?.udata_value()
}

/// DWARF 4 and later count bits from the low end of the structure; DWARF 2 and 3, which GCC still writes for
/// version 4 in C++ at times, from the high end of the storage unit.
fn bits(die: &Die<'_>, storage: u64) -> Option<Bits> {
    let number = |at| die.attr_value(at).and_then(|v| v.udata_value());
    let size = number(dw::DW_AT_bit_size)?;
    if let Some(offset) = number(dw::DW_AT_data_bit_offset) {
        return Some(Bits { offset, size });
    }
    let storage = number(dw::DW_AT_byte_size).unwrap_or(storage).checked_mul(8)?;
    let from_high = number(dw::DW_AT_bit_offset)?;
    Some(Bits { offset: storage.checked_sub(from_high)?.checked_sub(size)?, size })
}

fn signed(value: &AttributeValue<Reader<'_>>) -> Option<i64> {
    value.sdata_value().or_else(|| value.udata_value().and_then(|u| i64::try_from(u).ok()))
}
