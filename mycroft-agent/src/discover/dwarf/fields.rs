//! Places of fields within a struct.

use std::collections::BTreeMap;

use gimli::UnitOffset;

use super::unit::{Budget, Entry, MAX_DEPTH, Stop, Unit};
use super::{Bits, Field, Problem, Struct, StructSpec};

enum Lookup {
    Found(Field),
    Absent,
    /// It is there, but the reason says why its place is not known.
    Unusable(&'static str),
}

/// Layout of the struct at `target`, and what of it is not there.
pub(super) fn layout(
    unit: &Unit<'_>,
    spec: &StructSpec<'_>,
    target: UnitOffset,
    budget: &mut Budget,
) -> Result<(Struct, Vec<Problem>), Stop> {
    let mut problems = Vec::new();
    let mut fields = BTreeMap::new();
    for path in spec.fields {
        let reason = match find(unit, target, path, 0, 0, budget)? {
            Lookup::Found(field) => {
                fields.insert((*path).to_owned(), field);
                continue;
            }
            Lookup::Absent => "no such field",
            Lookup::Unusable(reason) => reason,
        };
        problems.push(Problem {
            name: spec.name.to_owned(),
            field: Some((*path).to_owned()),
            reason: reason.to_owned(),
        });
    }
    let layout = Struct {
        name: spec.name.to_owned(),
        unit: unit.name().to_owned(),
        size: number(&unit.entry(target)?, gimli::DW_AT_byte_size).unwrap_or(0),
        fields,
    };
    Ok((layout, problems))
}

/// Looks for `path` in the struct at `target`, which lies `base` bytes into the one that was asked for.
fn find(
    unit: &Unit<'_>,
    target: UnitOffset,
    path: &str,
    base: u64,
    depth: u32,
    budget: &mut Budget,
) -> Result<Lookup, Stop> {
    if depth > MAX_DEPTH {
        return Ok(Lookup::Unusable("nested too deeply"));
    }
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    let mut children = unit.children(target)?;
    while let Some(child) = children.next(budget)? {
        let named = match child.tag() {
            gimli::DW_TAG_member if is_static(child) => continue,
            gimli::DW_TAG_member => unit.own_name(child),
            gimli::DW_TAG_inheritance => None,
            _ => continue,
        };
        if named.is_some_and(|name| name.slice() != head.as_bytes()) {
            continue;
        }
        let Some(bit) = bit_position(child, base) else {
            // The place of a virtual base depends on the object.
            if named.is_none() {
                continue;
            }
            return Ok(Lookup::Unusable("its place is an expression or makes no sense"));
        };
        let kind = unit.type_of(child)?;
        // A base or a member without a name: the path continues as if it were not there.
        let inner = match (named, rest) {
            (None, _) => path,
            (Some(_), Some(rest)) => rest,
            (Some(_), None) => return field(unit, child, kind, bit, budget),
        };
        let found = match element(unit, kind, budget)? {
            Some(nested) => find(unit, nested, inner, bit / 8, depth + 1, budget)?,
            None if named.is_some() => return Ok(Lookup::Unusable("it is no struct with fields of its own")),
            None => continue,
        };
        if named.is_some() || !matches!(found, Lookup::Absent) {
            return Ok(found);
        }
    }
    Ok(Lookup::Absent)
}

fn field(
    unit: &Unit<'_>,
    member: &Entry<'_>,
    kind: Option<UnitOffset>,
    bit: u64,
    budget: &mut Budget,
) -> Result<Lookup, Stop> {
    let bits = number(member, gimli::DW_AT_bit_size).map(|size| Bits { offset: bit % 8, size });
    let Some(Extent { size, count }) = extent(unit, kind, budget)? else {
        return Ok(Lookup::Unusable("its size is not known"));
    };
    Ok(Lookup::Found(Field {
        offset: bit / 8,
        size,
        count,
        bits,
    }))
}

/// The struct that a member is, or is an array of.
fn element(unit: &Unit<'_>, kind: Option<UnitOffset>, budget: &mut Budget) -> Result<Option<UnitOffset>, Stop> {
    let mut kind = kind;
    for _ in 0..MAX_DEPTH {
        let Some(entry) = unit.strip(kind, budget)? else {
            return Ok(None);
        };
        if entry.tag() != gimli::DW_TAG_array_type {
            return unit.struct_at(entry.offset(), budget);
        }
        kind = unit.type_of(&entry)?;
    }
    Ok(None)
}

/// Bytes of a type, and elements if it is an array.
struct Extent {
    size: u64,
    count: Option<u64>,
}

fn extent(unit: &Unit<'_>, kind: Option<UnitOffset>, budget: &mut Budget) -> Result<Option<Extent>, Stop> {
    let mut kind = kind;
    let mut count: Option<u64> = None;
    for _ in 0..MAX_DEPTH {
        let Some(entry) = unit.strip(kind, budget)? else {
            return Ok(None);
        };
        let size = match entry.tag() {
            gimli::DW_TAG_array_type => {
                let Some(own) = elements(unit, &entry, budget)?.checked_mul(count.unwrap_or(1)) else {
                    return Ok(None);
                };
                count = Some(own);
                kind = unit.type_of(&entry)?;
                continue;
            }
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type
            | gimli::DW_TAG_ptr_to_member_type => {
                number(&entry, gimli::DW_AT_byte_size).or_else(|| Some(unit.address_size()))
            }
            _ => number(&entry, gimli::DW_AT_byte_size),
        };
        return Ok(size
            .and_then(|size| size.checked_mul(count.unwrap_or(1)))
            .map(|size| Extent { size, count }));
    }
    Ok(None)
}

/// Elements over all dimensions; an unbounded one counts as none.
fn elements(unit: &Unit<'_>, array: &Entry<'_>, budget: &mut Budget) -> Result<u64, Stop> {
    let mut total: u64 = 1;
    let mut children = unit.children(array.offset())?;
    while let Some(child) = children.next(budget)? {
        if child.tag() == gimli::DW_TAG_subrange_type {
            let count = number(child, gimli::DW_AT_count)
                .or_else(|| number(child, gimli::DW_AT_upper_bound)?.checked_add(1))
                .unwrap_or(0);
            total = total.saturating_mul(count);
        }
    }
    Ok(total)
}

/// Where a member starts, in bits from the start of the outermost struct, counted little-endian.
fn bit_position(member: &Entry<'_>, base: u64) -> Option<u64> {
    let base = base.checked_mul(8)?;
    // DWARF 4 and later, mostly used from 5 on.
    if let Some(bits) = number(member, gimli::DW_AT_data_bit_offset) {
        return base.checked_add(bits);
    }
    let bytes = match member.attr_value(gimli::DW_AT_data_member_location) {
        // A member of a union.
        None => 0,
        Some(value) => value.udata_value()?,
    };
    let start = base.checked_add(bytes.checked_mul(8)?)?;
    // DWARF 2 to 4 count from the highest bit of a storage unit.
    match number(member, gimli::DW_AT_bit_offset) {
        None => Some(start),
        Some(from_top) => {
            let storage = number(member, gimli::DW_AT_byte_size)?.checked_mul(8)?;
            let width = number(member, gimli::DW_AT_bit_size)?;
            start.checked_add(storage.checked_sub(from_top)?.checked_sub(width)?)
        }
    }
}

/// Before DWARF 5 a static member of a class looks like a field without a place.
fn is_static(member: &Entry<'_>) -> bool {
    member.has_attr(gimli::DW_AT_external) || member.has_attr(gimli::DW_AT_declaration)
}

fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}
