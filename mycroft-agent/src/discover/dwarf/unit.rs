//! One unit of `.debug_info`: named types, their children, and references between entries.

use std::collections::HashMap;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugInfo, DebugLineStr, DebugStr, DebugStrOffsets,
    DebugStrOffsetsBase, DebuggingInformationEntry, EndianSlice, EntriesRaw, LittleEndian, UnitHeader, UnitOffset,
};

pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Entry<'a> = DebuggingInformationEntry<Bytes<'a>>;

/// Typedefs of typedefs, structs in structs: deeper than this is not real.
pub(super) const MAX_DEPTH: u32 = 32;

/// Why a unit was left.
#[derive(Debug)]
pub(super) enum Stop {
    /// No budget left.
    Exhausted,
    Malformed(String),
}

impl From<gimli::Error> for Stop {
    fn from(error: gimli::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Entries that may still be looked at.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
    total: u64,
}

impl Budget {
    pub(super) fn new(total: u64) -> Self {
        Self { left: total, total }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn take(&mut self) -> Result<(), Stop> {
        self.left = self.left.checked_sub(1).ok_or(Stop::Exhausted)?;
        Ok(())
    }
}

/// The sections that units share, each empty if the file has none.
#[derive(Debug)]
pub(super) struct Strings {
    pub(super) abbrev: Vec<u8>,
    pub(super) str: Vec<u8>,
    pub(super) line_str: Vec<u8>,
    pub(super) str_offsets: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Unit<'a> {
    header: UnitHeader<Bytes<'a>>,
    abbreviations: Abbreviations,
    strings: &'a Strings,
    str_offsets_base: DebugStrOffsetsBase<usize>,
    /// Offset of the unit in `.debug_info`.
    start: u64,
    name: String,
}

impl<'a> Unit<'a> {
    /// `bytes` are one unit from its header on, which lies at `start` of `.debug_info`.
    pub(super) fn parse(bytes: &'a [u8], start: u64, strings: &'a Strings) -> Result<Self, Stop> {
        let header = DebugInfo::new(bytes, LittleEndian)
            .units()
            .next()?
            .ok_or(gimli::Error::MissingUnitDie)?;
        let abbreviations = header.abbreviations(&DebugAbbrev::new(&strings.abbrev, LittleEndian))?;
        let mut unit = Self {
            str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(
                header.encoding(),
                gimli::DwarfFileType::Main,
            ),
            header,
            abbreviations,
            strings,
            start,
            name: String::new(),
        };
        let root = unit.entry(unit.header.root_offset())?;
        if let Some(AttributeValue::DebugStrOffsetsBase(base)) = root.attr_value(gimli::DW_AT_str_offsets_base) {
            unit.str_offsets_base = base;
        }
        unit.name = unit
            .own_name(&root)
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        Ok(unit)
    }

    /// The source file, as the compiler was given it; empty if not known.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of a pointer.
    pub(super) fn address_size(&self) -> u64 {
        u64::from(self.header.address_size())
    }

    /// First definitions of structs, classes and unions, by those of `names` that have one here.
    pub(super) fn find_structs<'n>(
        &self,
        names: &[&'n str],
        budget: &mut Budget,
    ) -> Result<HashMap<&'n str, UnitOffset>, Stop> {
        let mut found = HashMap::new();
        if names.is_empty() {
            return Ok(found);
        }
        let mut types = self.named_types()?;
        while let Some((name, offset)) = types.next(budget)? {
            let Some(name) = names.iter().find(|n| n.as_bytes() == name.slice()) else {
                continue;
            };
            if !found.contains_key(name)
                && let Some(target) = self.struct_at(offset, budget)?
            {
                found.insert(*name, target);
                if names.iter().all(|n| found.contains_key(n)) {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Enumerators of the enumeration or typedef `name`.
    pub(super) fn find_enum(&self, name: &str, budget: &mut Budget) -> Result<Option<Vec<(String, i64)>>, Stop> {
        let mut types = self.named_types()?;
        while let Some((found, offset)) = types.next(budget)? {
            if found.slice() != name.as_bytes() {
                continue;
            }
            let Some(target) = self.strip(Some(offset), budget)? else {
                continue;
            };
            if target.tag() != gimli::DW_TAG_enumeration_type || target.has_attr(gimli::DW_AT_declaration) {
                continue;
            }
            let mut values = Vec::new();
            let mut children = self.children(target.offset())?;
            while let Some(child) = children.next(budget)? {
                if child.tag() == gimli::DW_TAG_enumerator
                    && let Some(name) = self.own_name(child)
                    && let Some(value) = constant(child)
                {
                    values.push((name.to_string_lossy().into_owned(), value));
                }
            }
            return Ok(Some(values));
        }
        Ok(None)
    }

    /// The struct, class or union that the entry is or is a typedef of, if it is a definition.
    pub(super) fn struct_at(&self, offset: UnitOffset, budget: &mut Budget) -> Result<Option<UnitOffset>, Stop> {
        Ok(self
            .strip(Some(offset), budget)?
            .filter(is_definition)
            .map(|e| e.offset()))
    }

    /// Follows typedefs and qualifiers to a type; `None` for void.
    pub(super) fn strip(&self, at: Option<UnitOffset>, budget: &mut Budget) -> Result<Option<Entry<'a>>, Stop> {
        let mut at = at;
        for _ in 0..MAX_DEPTH {
            let Some(offset) = at else {
                return Ok(None);
            };
            budget.take()?;
            let entry = self.entry(offset)?;
            if !matches!(
                entry.tag(),
                gimli::DW_TAG_typedef
                    | gimli::DW_TAG_const_type
                    | gimli::DW_TAG_volatile_type
                    | gimli::DW_TAG_restrict_type
                    | gimli::DW_TAG_atomic_type
            ) {
                return Ok(Some(entry));
            }
            at = self.type_of(&entry)?;
        }
        Err(Stop::Malformed("typedefs go in a circle".to_owned()))
    }

    /// Where the type of an entry is; `None` for void.
    pub(super) fn type_of(&self, entry: &Entry<'a>) -> Result<Option<UnitOffset>, Stop> {
        self.reference(entry, gimli::DW_AT_type)
    }

    /// The entry at `offset`.
    pub(super) fn entry(&self, offset: UnitOffset) -> Result<Entry<'a>, Stop> {
        Ok(self.header.entry(&self.abbreviations, offset)?)
    }

    /// Children of the entry at `offset`.
    pub(super) fn children(&self, offset: UnitOffset) -> Result<Children<'_, 'a>, Stop> {
        let mut raw = self.header.entries_raw(&self.abbreviations, Some(offset))?;
        let mut entry = Entry::null();
        raw.read_entry(&mut entry)?;
        Ok(Children { raw, entry })
    }

    /// The name that the entry itself bears.
    pub(super) fn own_name(&self, entry: &Entry<'a>) -> Option<Bytes<'a>> {
        self.string(entry.attr_value(gimli::DW_AT_name)?)
    }

    /// A definition outside of its class or namespace has its name at the declaration.
    fn name_of(&self, entry: &Entry<'a>) -> Option<Bytes<'a>> {
        self.own_name(entry).or_else(|| {
            let declaration = self.reference(entry, gimli::DW_AT_specification).ok()??;
            self.own_name(&self.entry(declaration).ok()?)
        })
    }

    fn string(&self, value: AttributeValue<Bytes<'a>>) -> Option<Bytes<'a>> {
        let main = DebugStr::new(&self.strings.str, LittleEndian);
        match value {
            AttributeValue::String(s) => Some(s),
            AttributeValue::DebugStrRef(at) => main.get_str(at).ok(),
            AttributeValue::DebugLineStrRef(at) => {
                DebugLineStr::from(EndianSlice::new(&self.strings.line_str, LittleEndian))
                    .get_str(at)
                    .ok()
            }
            AttributeValue::DebugStrOffsetsIndex(index) => {
                let offsets = DebugStrOffsets::from(EndianSlice::new(&self.strings.str_offsets, LittleEndian));
                let at = offsets
                    .get_str_offset(self.header.format(), self.str_offsets_base, index)
                    .ok()?;
                main.get_str(at).ok()
            }
            _ => None,
        }
    }

    fn reference(&self, entry: &Entry<'a>, name: gimli::DwAt) -> Result<Option<UnitOffset>, Stop> {
        match entry.attr_value(name) {
            None => Ok(None),
            Some(AttributeValue::UnitRef(offset)) => Ok(Some(offset)),
            Some(AttributeValue::DebugInfoRef(offset)) => (offset.0 as u64)
                .checked_sub(self.start)
                .and_then(|into| usize::try_from(into).ok())
                .map(|into| Some(UnitOffset(into)))
                .ok_or_else(|| Stop::Malformed("a type lies in another unit".to_owned())),
            Some(_) => Err(Stop::Malformed("a type lies outside of .debug_info".to_owned())),
        }
    }

    fn named_types(&self) -> Result<NamedTypes<'_, 'a>, Stop> {
        Ok(NamedTypes {
            unit: self,
            raw: self.header.entries_raw(&self.abbreviations, None)?,
            entry: Entry::null(),
        })
    }
}

/// All types of a unit that have a name, in the order of the file.
struct NamedTypes<'u, 'a> {
    unit: &'u Unit<'a>,
    raw: EntriesRaw<'u, Bytes<'a>>,
    entry: Entry<'a>,
}

impl<'a> NamedTypes<'_, 'a> {
    fn next(&mut self, budget: &mut Budget) -> Result<Option<(Bytes<'a>, UnitOffset)>, Stop> {
        while !self.raw.is_empty() {
            budget.take()?;
            let mut probe = self.raw.clone();
            let Some(abbreviation) = probe.read_abbreviation()? else {
                self.raw = probe;
                continue;
            };
            match abbreviation.tag() {
                gimli::DW_TAG_structure_type
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_union_type
                | gimli::DW_TAG_enumeration_type
                | gimli::DW_TAG_typedef => {
                    self.raw.read_entry(&mut self.entry)?;
                    if let Some(name) = self.unit.name_of(&self.entry) {
                        return Ok(Some((name, self.entry.offset())));
                    }
                }
                // Most entries are inside of functions, where no type that we want is declared.
                gimli::DW_TAG_subprogram => {
                    self.raw.read_entry(&mut self.entry)?;
                    if let Some(AttributeValue::UnitRef(next)) = self.entry.attr_value(gimli::DW_AT_sibling)
                        && next > self.raw.next_offset()
                    {
                        self.raw = self.unit.header.entries_raw(&self.unit.abbreviations, Some(next))?;
                    }
                }
                _ => {
                    probe.skip_attributes(abbreviation.attributes())?;
                    self.raw = probe;
                }
            }
        }
        Ok(None)
    }
}

/// Direct children of an entry.
pub(super) struct Children<'u, 'a> {
    raw: EntriesRaw<'u, Bytes<'a>>,
    entry: Entry<'a>,
}

impl<'a> Children<'_, 'a> {
    pub(super) fn next(&mut self, budget: &mut Budget) -> Result<Option<&Entry<'a>>, Stop> {
        // The depth is back at 0 after the entry that ends the list.
        while self.raw.next_depth() > 0 && !self.raw.is_empty() {
            budget.take()?;
            let depth = self.raw.next_depth();
            if self.raw.read_entry(&mut self.entry)? && depth == 1 {
                return Ok(Some(&self.entry));
            }
        }
        Ok(None)
    }
}

fn is_definition(entry: &Entry<'_>) -> bool {
    matches!(
        entry.tag(),
        gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
    ) && entry.has_attr(gimli::DW_AT_byte_size)
        && !entry.has_attr(gimli::DW_AT_declaration)
}

/// `DW_AT_const_value`. GCC picks the data forms for values that are not negative, so they are not
/// sign-extended.
fn constant(entry: &Entry<'_>) -> Option<i64> {
    match entry.attr_value(gimli::DW_AT_const_value)? {
        AttributeValue::Sdata(value) => Some(value),
        other => other.udata_value().map(u64::cast_signed),
    }
}
