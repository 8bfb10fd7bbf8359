//! Where the fields of NCCL's device structures lie, from the library's own debug information.
//!
//! The emulated GPU reads and writes these structures. None of their layouts is assumed: each field is looked up in
//! the library that is used, and one that is missing or has an unexpected size is an error that names it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail, ensure};

/// A structure by NCCL's name (or names: the first that is there), the name the bed gives it, and its fields.
struct Struct {
    names: &'static [&'static str],
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

/// Structures of every release.
const COMMON: &[Struct] = &[
    Struct {
        names: &["ncclKernelComm", "ncclDevComm"],
        short: "comm",
        fields: &[
            ("rank", Bytes(4)),
            ("nRanks", Bytes(4)),
            ("buffSizes", Bytes(12)),
            ("abortFlag", PTR),
            ("channels", PTR),
        ],
    },
    Struct {
        names: &["ncclDevChannelPeer"],
        short: "peer",
        fields: &[("send", Any), ("recv", Any)],
    },
    Struct {
        names: &["ncclConnInfo"],
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
        names: &["ncclConnFifo"],
        short: "fifo",
        fields: &[("mode", Bytes(4)), ("offset", Either(4, 8)), ("size", Bytes(8))],
    },
];

const CHANNEL: &[(&str, Want)] = &[
    ("peers", PTR),
    ("ring.prev", Bytes(4)),
    ("ring.next", Bytes(4)),
    ("ring.userRanks", PTR),
    ("ring.index", Bytes(4)),
];

/// From 2.22 on.
const BATCHES: &[Struct] = &[
    Struct {
        names: &["ncclDevChannel"],
        short: "channel",
        fields: &[("workCounter", Bytes(8))],
    },
    Struct {
        names: &["ncclDevKernelArgs"],
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
        names: &["ncclDevWorkBatch"],
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
        names: &["ncclDevWorkColl"],
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
        names: &["ncclDevWorkP2p"],
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

/// Up to 2.21.
const OLD_WORKS: &[Struct] = &[
    Struct {
        names: &["ncclDevChannel"],
        short: "channel",
        fields: &[("workFifoDone", PTR)],
    },
    Struct {
        names: &["ncclWork"],
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
    Struct {
        names: &["ncclWorkElem"],
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
        names: &["ncclWorkElemP2p"],
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

/// First release with batches.
const FIRST_BATCHES: u32 = 22300;

/// Place of a field: byte offset, size of the field or of its storage, and for a bitfield where it lies in there.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: u64,
    size: u64,
    bits: Option<(u64, u64)>,
}

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
    let mut known = KNOWN
        .get_or_init(Known::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = known.get(library) {
        return Ok(Arc::clone(text));
    }
    let works = if code(version)? >= FIRST_BATCHES {
        BATCHES
    } else {
        OLD_WORKS
    };
    let channel = Struct {
        names: &["ncclDevChannel"],
        short: "channel",
        fields: CHANNEL,
    };
    let structs: Vec<&Struct> = COMMON.iter().chain([&channel]).chain(works).collect();
    let text: Arc<str> = describe(library, version, &structs)?.into();
    known.insert(library.to_owned(), Arc::clone(&text));
    Ok(text)
}

/// Reads the structures with gdb.
struct Debug(HashMap<String, (u64, HashMap<String, Found>)>);

const SCRIPT: &str = r"
import gdb, os
def find(t, parts, base=0):
    for f in t.fields():
        inner = f.type.strip_typedefs()
        if not f.name:
            r = find(inner, parts, base + f.bitpos)
            if r: return r
        elif f.name == parts[0]:
            if len(parts) == 1: return base + f.bitpos, f
            return find(inner, parts[1:], base + f.bitpos)
for line in open(os.environ['BED_SPEC']):
    name, *fields = line.split()
    try: t = gdb.lookup_type('struct ' + name)
    except gdb.error: continue
    print('S', name, t.sizeof)
    for path in fields:
        r = find(t, path.split('.'))
        if not r: continue
        pos, f = r
        size = f.type.strip_typedefs().sizeof
        at = pos // 8
        if f.bitsize: at = at // size * size
        print('F', name, path, at, size, pos - at * 8, f.bitsize)
";

impl Debug {
    fn read(library: &Path, structs: &[&Struct]) -> Result<Debug> {
        let dir = tempfile::tempdir()?;
        let (spec, script) = (dir.path().join("spec"), dir.path().join("script.py"));
        let mut lines = String::new();
        for s in structs {
            let fields: Vec<_> = s.fields.iter().map(|(f, _)| *f).collect();
            for name in s.names {
                writeln!(lines, "{name} {}", fields.join(" "))?;
            }
        }
        std::fs::write(&spec, lines)?;
        std::fs::write(&script, SCRIPT)?;
        let out = std::process::Command::new("gdb")
            .args(["-batch", "-q", "-x"])
            .arg(&script)
            .arg(library)
            .env("BED_SPEC", &spec)
            .output()?;
        let mut all: HashMap<String, (u64, HashMap<String, Found>)> = HashMap::new();
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["S", name, size] => all.entry(name.to_owned()).or_default().0 = size.parse()?,
                ["F", name, path, at, size, low, width] => {
                    let width: u64 = width.parse()?;
                    let bits = (width > 0).then(|| low.parse().map(|low| (low, width))).transpose()?;
                    let found = Found {
                        at: at.parse()?,
                        size: size.parse()?,
                        bits,
                    };
                    all.entry(name.to_owned()).or_default().1.insert(path.to_owned(), found);
                }
                _ => {}
            }
        }
        Ok(Debug(all))
    }

    fn size(&self, name: &str) -> Option<u64> {
        self.0.get(name).map(|s| s.0)
    }

    fn field(&self, name: &str, path: &str) -> Option<Found> {
        self.0.get(name)?.1.get(path).copied()
    }
}

fn describe(library: &Path, version: &str, structs: &[&Struct]) -> Result<String> {
    let debug = Debug::read(library, structs)?;
    let mut text = format!("nccl {}\n", code(version)?);
    for s in structs {
        let Some((name, size)) = s.names.iter().find_map(|n| Some((n, debug.size(n)?))) else {
            bail!("NCCL {version}: struct {} not found in DWARF", s.names.join(" or "));
        };
        let size = format!("size {} {size}\n", s.short);
        if !text.contains(&size) {
            text += &size;
        }
        for (path, want) in s.fields {
            let Some(found) = debug.field(name, path) else {
                bail!("NCCL {version}: {name}.{path} not found in DWARF");
            };
            text += &item(&format!("{}.{path}", s.short), *want, found)
                .map_err(|e| e.context(format!("NCCL {version}: {name}.{path}")))?;
        }
    }
    Ok(text)
}

/// One line for the emulated GPU, if the field is what it has to be.
fn item(name: &str, want: Want, found: Found) -> Result<String> {
    let Found { at, size, bits } = found;
    let expected = match want {
        Bytes(n) => size == n && bits.is_none(),
        Either(a, b) => (size == a || size == b) && bits.is_none(),
        Bits => bits.is_some(),
        Any => true,
    };
    ensure!(expected, "has an unexpected size: {found:?}");
    Ok(match bits {
        Some((low, width)) => format!("bits {name} {at} {size} {low} {width}\n"),
        None => format!("field {name} {at} {size}\n"),
    })
}
