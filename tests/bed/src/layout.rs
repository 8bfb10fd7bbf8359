//! Where the fields of NCCL's device structures lie, from the library's own debug information.
//!
//! The emulated GPU reads and writes these structures. None of their layouts is assumed: each field is looked up in
//! the library that is used, and one that is missing or has an unexpected size is an error that names it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use mycroft_agent::discover::dwarf::{Field, StructSpec, read_structs};

/// A structure by NCCL's name, the name the bed gives it, and its fields.
#[derive(Clone, Copy)]
struct Struct {
    name: &'static str,
    short: &'static str,
    fields: &'static [(&'static str, Want)],
}

/// What a field has to be.
#[derive(Clone, Copy)]
enum Want {
    /// So many bytes.
    Bytes(u64),
    /// Either of two sizes.
    Either(u64, u64),
    /// A bitfield, which NCCL may resize.
    Bits,
    /// Anything: only the place matters.
    Any,
}
use Want::{Any, Bits, Bytes, Either};

const PTR: Want = Bytes(8);

/// The communicator as kernels see it, and its name from 2.28 on.
const COMM: Struct = Struct {
    name: "ncclDevComm",
    short: "comm",
    fields: &[
        ("rank", Bytes(4)),
        ("nRanks", Bytes(4)),
        ("buffSizes", Bytes(12)),
        ("abortFlag", PTR),
        ("channels", PTR),
    ],
};
const LATER_COMM: Struct = Struct { name: "ncclKernelComm", ..COMM };
const FIRST_LATER_COMM: u32 = 22800;

/// Of every release.
const PEER: Struct = Struct { name: "ncclDevChannelPeer", short: "peer", fields: &[("send", Any), ("recv", Any)] };

/// How kernel and proxy talk about a connection's slots: in records.
const RECORDS: &[Struct] = &[
    Struct {
        name: "ncclConnInfo",
        short: "conn",
        fields: &[
            ("buffs", Bytes(24)),
            ("tail", PTR),
            ("head", PTR),
            ("stepSize", Bytes(4)),
            ("connFifo", PTR),
            ("step", Bytes(8)),
        ],
    },
    Struct {
        name: "ncclConnFifo",
        short: "fifo",
        fields: &[("mode", Bytes(4)), ("offset", Either(4, 8)), ("size", Bytes(8))],
    },
];

/// Up to 2.19, in an array of sizes and one of offsets.
const ARRAYS: &[Struct] = &[Struct {
    name: "ncclConnInfo",
    short: "conn",
    fields: &[
        ("buffs", Bytes(24)),
        ("tail", PTR),
        ("head", PTR),
        ("sizesFifo", PTR),
        ("offsFifo", PTR),
        ("step", Bytes(8)),
    ],
}];

/// From 2.22 on.
const BATCHES: &[Struct] = &[
    Struct {
        name: "ncclDevChannel",
        short: "channel",
        fields: &[
            ("peers", PTR),
            ("ring.prev", Bytes(4)),
            ("ring.next", Bytes(4)),
            ("ring.userRanks", PTR),
            ("ring.index", Bytes(4)),
            ("tree.up", Bytes(4)),
            ("tree.down", Bytes(12)),
            ("workCounter", Bytes(8)),
        ],
    },
    Struct {
        name: "ncclDevKernelArgs",
        short: "args",
        fields: &[
            ("comm", PTR),
            ("channelMask", Bytes(8)),
            ("workStorageType", Bytes(1)),
            ("workMask", Bytes(4)),
            ("workBuf", PTR),
        ],
    },
    Struct {
        name: "ncclDevWorkBatch",
        short: "batch",
        fields: &[
            ("nextJump", Bits),
            ("nextExtends", Bits),
            ("workType", Bits),
            ("funcId", Bits),
            ("offsetBase", Bytes(4)),
            ("offsetBitset", Bytes(8)),
        ],
    },
    Struct {
        name: "ncclDevWorkColl",
        short: "coll",
        fields: &[
            ("channelLo", Bits),
            ("channelHi", Bits),
            ("redOpArgIsPtr", Bits),
            ("regUsed", Bits),
            ("netRegUsed", Bits),
            ("root", Bytes(4)),
            ("recvbuff", PTR),
            ("sendbuff", PTR),
            ("cbd.countLo", Bytes(8)),
            ("cbd.countMid", Bytes(8)),
            ("cbd.countHi", Bytes(8)),
            ("cbd.chunkGrainsLo", Bits),
            ("cbd.chunkGrainsMid", Bits),
            ("cbd.chunkGrainsHi", Bits),
            ("redOpArg", Bytes(8)),
        ],
    },
    Struct {
        name: "ncclDevWorkP2p",
        short: "p2p",
        fields: &[
            ("sendAddr", PTR),
            ("recvAddr", PTR),
            ("sendBytes", Bytes(8)),
            ("recvBytes", Bytes(8)),
            ("sendRank", Bytes(4)),
            ("recvRank", Bytes(4)),
            ("nP2pChannels", Bytes(1)),
            ("channelBase", Bytes(1)),
            ("nSendChannels", Bytes(1)),
            ("nRecvChannels", Bytes(1)),
            ("sendChunkSize_u32fp8", Bytes(1)),
            ("recvChunkSize_u32fp8", Bytes(1)),
            ("sendProtoLL", Bits),
            ("recvProtoLL", Bits),
            ("sendNetReg", Bits),
            ("recvNetReg", Bits),
            ("sendIpcReg", Bits),
            ("recvIpcReg", Bits),
        ],
    },
];

/// The channel and the works of up to 2.21.
const OLD_WORKS: &[Struct] = &[
    Struct {
        name: "ncclDevChannel",
        short: "channel",
        fields: &[
            ("peers", PTR),
            ("ring.prev", Bytes(4)),
            ("ring.next", Bytes(4)),
            ("ring.userRanks", PTR),
            ("ring.index", Bytes(4)),
            ("tree.up", Bytes(4)),
            ("tree.down", Bytes(12)),
            ("workFifoDone", PTR),
        ],
    },
    Struct {
        name: "ncclWork",
        short: "work",
        fields: &[
            ("header.workNext", Bytes(4)),
            ("header.funcIndex", Bytes(2)),
            ("header.isLast", Bits),
            ("header.inFifo", Bits),
            ("header.type", Bytes(1)),
            ("elems", Any),
            ("p2pElems", Any),
        ],
    },
];

/// From 2.20 to 2.21: a work says which part is the channel's.
const PARTS: &[Struct] = &[
    Struct {
        name: "ncclWorkElem",
        short: "elem",
        fields: &[
            ("isUsed", Bits),
            ("redOpArgIsPtr", Bits),
            ("root", Bytes(4)),
            ("sendbuff", PTR),
            ("recvbuff", PTR),
            ("count", Bytes(8)),
            ("redOpArg", Bytes(8)),
            ("chunkCount", Bits),
            ("workCount", Bits),
            ("lastChunkCount", Bits),
            ("workOffset", Bits),
        ],
    },
    Struct {
        name: "ncclWorkElemP2p",
        short: "p2pelem",
        fields: &[
            ("peer", Bits),
            ("proto", Bits),
            ("p2pType", Bytes(1)),
            ("reg", Bits),
            ("ngroups", Bytes(1)),
            ("buffHi32", Bytes(4)),
            ("buffLo32", Bytes(4)),
            ("countHi32", Bytes(4)),
            ("countLo32", Bytes(4)),
            ("chunkSize", Bytes(4)),
        ],
    },
];

/// Up to 2.19: every channel works out its part.
const SHARES: &[Struct] = &[
    Struct {
        name: "ncclWorkElem",
        short: "elem",
        fields: &[
            ("isUsed", Bits),
            ("redOpArgIsPtr", Bits),
            ("regUsed", Bits),
            ("nWarps", Bytes(1)),
            ("root", Bytes(4)),
            ("sendbuff", PTR),
            ("recvbuff", PTR),
            ("count", Bytes(8)),
            ("redOpArg", Bytes(8)),
            ("lastChunkSize", Bytes(8)),
            ("bid", Bytes(1)),
            ("nChannels", Bytes(1)),
        ],
    },
    Struct {
        name: "ncclWorkElemP2p",
        short: "p2pelem",
        fields: &[
            ("peer", Bits),
            ("proto", Bits),
            ("p2pType", Bytes(1)),
            ("ngroups", Bytes(1)),
            ("buffHi32", Bytes(4)),
            ("buffLo32", Bytes(4)),
            ("countHi32", Bytes(4)),
            ("countLo32", Bytes(4)),
            ("chunkSize", Bytes(4)),
        ],
    },
];

/// First release with batches, and the first with records of slots and with parts.
const FIRST_BATCHES: u32 = 22300;
const FIRST_RECORDS: u32 = 22000;

/// `2.27.5` as NCCL numbers it: 22705.
fn code(version: &str) -> Result<u32> {
    let parts: Result<Vec<u32>, _> = version.split('.').map(str::parse).collect();
    match parts.as_deref() {
        Ok([major, minor, patch]) => Ok(major * 10000 + minor * 100 + patch),
        _ => bail!("{version} is no version of NCCL"),
    }
}

/// The layout of a library as the emulated GPU reads it; worked out once per library.
pub fn of_library(library: &Path, version: &str) -> Result<Arc<str>> {
    type Known = Mutex<HashMap<PathBuf, Arc<str>>>;
    static KNOWN: OnceLock<Known> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Known::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = known.get(library) {
        return Ok(Arc::clone(text));
    }
    let text: Arc<str> = describe(library, version, &structs(code(version)?))?.into();
    known.insert(library.to_owned(), Arc::clone(&text));
    Ok(text)
}

/// What the emulation needs of a release.
fn structs(code: u32) -> Vec<Struct> {
    let comm = if code >= FIRST_LATER_COMM { LATER_COMM } else { COMM };
    let rest: &[&[Struct]] = match code {
        FIRST_BATCHES.. => &[RECORDS, BATCHES],
        FIRST_RECORDS.. => &[RECORDS, OLD_WORKS, PARTS],
        _ => &[ARRAYS, OLD_WORKS, SHARES],
    };
    [comm, PEER].iter().chain(rest.iter().copied().flatten()).copied().collect()
}

fn describe(library: &Path, version: &str, structs: &[Struct]) -> Result<String> {
    let paths: Vec<Vec<&str>> = structs.iter().map(|s| s.fields.iter().map(|(path, _)| *path).collect()).collect();
    let specs: Vec<_> =
        structs.iter().zip(&paths).map(|(s, fields)| StructSpec { name: s.name, unit: None, fields }).collect();
    let file = File::open(library).with_context(|| library.display().to_string())?;
    let read = read_structs(&file, &specs).with_context(|| format!("debug information of NCCL {version}"))?;
    let mut text = format!("nccl {}\n", code(version)?);
    for (s, found) in structs.iter().zip(&read.found) {
        let Some(found) = found else {
            bail!("NCCL {version}: struct {} not found in DWARF", s.name);
        };
        writeln!(text, "size {} {}", s.short, found.size)?;
        for (path, want) in s.fields {
            let Some(field) = found.fields.get(*path) else {
                bail!("NCCL {version}: {}.{path} not found in DWARF", s.name);
            };
            text += &line(&format!("{}.{path}", s.short), *want, field)
                .with_context(|| format!("NCCL {version}: {}.{path}", s.name))?;
        }
    }
    Ok(text)
}

/// One line for the emulated GPU, if the field is what it has to be.
fn line(name: &str, want: Want, field: &Field) -> Result<String> {
    let Field { offset, size, bits, .. } = *field;
    let expected = match want {
        Bytes(n) => size == n && bits.is_none(),
        Either(a, b) => (size == a || size == b) && bits.is_none(),
        Bits => bits.is_some(),
        Any => true,
    };
    ensure!(expected, "has an unexpected size: {field:?}");
    Ok(match bits {
        // as many bytes as the bits are spread over
        Some(b) => format!("bits {name} {offset} {} {} {}\n", (b.offset + b.size).div_ceil(8), b.offset, b.size),
        None => format!("field {name} {offset} {size}\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(structs: &[Struct]) -> String {
        let library = crate::library("2.27.5").unwrap();
        format!("{:#}", describe(&library, "2.27.5", structs).unwrap_err())
    }

    #[test]
    fn a_struct_that_is_gone_is_named() {
        let gone = Struct { name: "ncclDevComet", ..COMM };
        assert_eq!(error(&[gone]), "NCCL 2.27.5: struct ncclDevComet not found in DWARF");
    }

    #[test]
    fn a_field_that_is_gone_is_named() {
        let renamed = Struct { fields: &[("rank", Bytes(4)), ("abortFlags", PTR)], ..COMM };
        assert_eq!(error(&[renamed]), "NCCL 2.27.5: ncclDevComm.abortFlags not found in DWARF");
    }

    #[test]
    fn a_field_of_another_size_is_named() {
        let grown = Struct { fields: &[("rank", Bytes(8))], ..COMM };
        assert!(error(&[grown]).starts_with("NCCL 2.27.5: ncclDevComm.rank: has an unexpected size"));
        let packed = Struct { fields: &[("rank", Bits)], ..COMM };
        assert!(error(&[packed]).starts_with("NCCL 2.27.5: ncclDevComm.rank: has an unexpected size"));
    }

    #[test]
    fn a_release_that_is_not_set_up_is_named() {
        let missing = crate::library("1.2.3").unwrap_err().to_string();
        assert_eq!(missing, "NCCL 1.2.3 is not set up: run `cargo xtask setup`");
    }
}
