//! What a library without a symbol table still tells, by its machine code (x86-64).
//!
//! No disassembler: the two things looked for, a call with a relative target and an address with a displacement, have one
//! encoding each whose four bytes are looked for at every place. That these bytes stand somewhere by chance is possible
//! once; that they do in each of several functions is not.

use std::collections::BTreeSet;

use super::{
    image::{ElfError, Image, Machine, Section},
    symbols::{Symbol, SymbolTable},
};

/// NCCL 2.32 has 3 MB of code; a library into which it was linked may have much more, and is then not searched.
const CODE_LIMIT: u64 = 512 << 20;
/// A public function's code at most.
const FUNCTION_LIMIT: u64 = 64 << 10;

/// Each calls `ncclEnqueueCheck` exactly once (2.18 to 2.32).
const COLLECTIVES: [&str; 7] =
    ["ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv"];
/// As do these, where the release has them. No other function calls it.
const LATER: [&str; 6] = ["ncclAlltoAll", "ncclGather", "ncclScatter", "ncclPutSignal", "ncclSignal", "ncclWaitSignal"];

/// Code and where it is.
struct Code {
    bytes: Vec<u8>,
    address: u64,
}

impl Code {
    fn of_section(image: &Image<'_>, section: &Section, address: u64) -> Result<Self, ElfError> {
        Ok(Self { bytes: image.section_bytes(section, CODE_LIMIT)?, address })
    }

    fn of_function(image: &Image<'_>, symbol: Symbol) -> Option<Self> {
        let offset = image.code_offset(symbol.address)?;
        let size = symbol.size.min(FUNCTION_LIMIT);
        let bytes = image.bytes_at("a function", offset, size, FUNCTION_LIMIT).ok()?;
        Some(Self { bytes, address: symbol.address })
    }

    /// Place and target of everything that looks like a call or jump with a 32-bit distance.
    fn calls(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        self.bytes.windows(5).zip(self.address..).filter(|(w, _)| w[0] == CALL || w[0] == JUMP).map(|(w, at)| {
            let distance = i32::from_le_bytes([w[1], w[2], w[3], w[4]]);
            (at, at.wrapping_add(5).wrapping_add_signed(distance.into()))
        })
    }

    /// Whether the 32-bit displacement stands anywhere.
    fn mentions(&self, displacement: u32) -> bool {
        let wanted = displacement.to_le_bytes();
        self.bytes.windows(4).any(|w| w == wanted)
    }
}

/// The one export of that name.
fn export(exports: &SymbolTable, name: &str) -> Option<Symbol> {
    exports.functions(name).next()
}

/// Address of `ncclEnqueueCheck`: what all collectives call and nobody else does.
pub(super) fn enqueue_check(image: &Image<'_>, exports: &SymbolTable) -> Option<u64> {
    if image.machine() != Machine::X86_64 {
        return None;
    }
    let text = image.section(".text")?;
    let code = Code::of_section(image, text, text.address).ok()?;
    let inside = |target: &u64| (code.address..code.address + code.bytes.len() as u64).contains(target);
    let mut common: Option<BTreeSet<u64>> = None;
    let mut callers = Vec::new();
    for name in COLLECTIVES {
        let symbol = export(exports, name)?;
        callers.push(symbol.address..symbol.address + symbol.size);
        let targets: BTreeSet<u64> =
            Code::of_function(image, symbol)?.calls().map(|(_, to)| to).filter(inside).collect();
        common = Some(common.map_or_else(|| targets.clone(), |c| &c & &targets));
    }
    let later = LATER.iter().filter_map(|name| export(exports, name));
    // From 2.31 on there is another form of most.
    let forms = COLLECTIVES.iter().chain(&LATER).filter_map(|name| export(exports, &format!("{name}Config")));
    callers.extend(later.chain(forms).map(|s| s.address..s.address + s.size));
    let mut common = common?;
    for (_, to) in code.calls().filter(|(at, _)| !callers.iter().any(|c| c.contains(at))) {
        // Called from elsewhere, so it is something that many need.
        common.remove(&to);
    }
    let mut left = common.into_iter();
    left.next().filter(|_| left.next().is_none())
}

/// A displacement that an exported function must use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub function: &'static str,
    pub field: &'static str,
    pub offset: u32,
}

/// Whether code uses these displacements; else the first that it does not.
///
/// # Errors
/// What does not fit, in words.
pub(super) fn attest(
    image: &Image<'_>,
    exports: &SymbolTable,
    marks: &[Mark],
    anywhere: &[(&'static str, u32)],
) -> Result<(), String> {
    if image.machine() != Machine::X86_64 {
        return Err("code of this machine is not understood, so a build that is not known can't be attested".to_owned());
    }
    for mark in marks {
        let code = export(exports, mark.function).and_then(|s| Code::of_function(image, s));
        let code = code.ok_or_else(|| format!("no code of {}", mark.function))?;
        if !code.mentions(mark.offset) {
            return Err(format!("{} does not use {} at {}", mark.function, mark.field, mark.offset));
        }
    }
    let text = image.section(".text").ok_or("no code")?;
    let code = Code::of_section(image, text, text.address).map_err(|e| e.to_string())?;
    match anywhere.iter().find(|(_, offset)| !code.mentions(*offset)) {
        Some((field, offset)) => Err(format!("no code uses {field} at {offset}")),
        None => Ok(()),
    }
}
