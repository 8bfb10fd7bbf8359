//! Where NCCL's fields lie in one library file.
//!
//! Owns: which of NCCL's fields matter and what must hold for them. Offsets differ between releases,
//! architectures and CUDA versions, so they come from the file's own DWARF and are never guessed.

use std::collections::BTreeMap;

use mycroft_common::layout::{KernelLayout, SEQ_ARRAY, SEQ_COMM, SEQ_FUNCS_MAX, SEQ_NONE, SEQ_SHARED};
use serde::{Deserialize, Serialize};

use super::bundle;
use super::dwarf::{DwarfError, StructSpec};
use super::elf::{NcclFile, Version};
use super::image::ElfError;

mod fields;
pub mod proxy;

use fields::Fields;
pub use proxy::{ProxyLayout, SharedLayout};

/// Why a file has no layout that could be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error(transparent)]
    Dwarf(#[from] DwarfError),
    /// Says which struct or field, and why.
    #[error("no layout for {0}")]
    Missing(String),
    /// The programs in the kernel have this offset built in.
    #[error("{field} is at {found}, expected at {expected}")]
    Offset { field: String, expected: i64, found: u64 },
    #[error("{field} has {found} bytes, expected {expected}")]
    Size { field: String, expected: u64, found: u64 },
}

/// Where a layout comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutSource {
    /// Read from the library just now.
    #[default]
    Dwarf,
    /// Read from its separate debug file.
    DebugFile,
    /// Read from a library with the same build-id before.
    Cache,
    /// From the table that comes with Mycroft: the build is known.
    Bundled,
    /// From that table: the build is not known, and its code fits the layout of its release.
    Attested,
}

impl LayoutSource {
    /// As `mycroft check` says it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Dwarf => "its own debug information",
            Self::DebugFile => "its separate debug file",
            Self::Cache => "a library of this build that was read before",
            Self::Bundled => "Mycroft's table, which has this build",
            Self::Attested => "Mycroft's table, which its code fits",
        }
    }
}

/// Layout of one library file. Offsets are bytes from the start of the struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclLayout {
    pub build_id: Option<String>,
    /// `None` if the file does not say.
    pub version: Option<Version>,
    #[serde(skip)]
    pub source: LayoutSource,
    pub comm: CommLayout,
    pub shared: Option<SharedLayout>,
    /// `ncclCommInitRankAsyncJob.comm`.
    pub job_comm: Option<u32>,
    /// `ncclFunc_t`, without the prefix `ncclFunc`.
    pub functions: BTreeMap<i32, String>,
    /// Where the proxy's state lies; `None` where some of it is not known, and then flows can't be followed.
    pub proxy: Option<ProxyLayout>,
    /// Why `proxy` is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_problem: Option<String>,
}

/// `ncclComm`, named as in the source. `None`: this release has no such field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommLayout {
    pub size: u64,
    pub comm_hash: u32,
    pub rank: u32,
    pub n_ranks: u32,
    pub cuda_dev: u32,
    pub nvml_dev: u32,
    pub bus_id: u32,
    pub node: Option<u32>,
    pub n_nodes: Option<u32>,
    pub local_rank: Option<u32>,
    pub op_count: Option<u32>,
    pub coll_op_count: Option<u32>,
    /// Offset and number of 64-bit entries.
    pub seq_number: Option<(u32, u32)>,
    pub shared_res: Option<u32>,
    pub proxy_state: Option<u32>,
    pub async_result: Option<u32>,
    pub abort_flag: Option<u32>,
    pub init_state: Option<u32>,
    /// From 2.21, `NCCL_MAGIC` at the start and the end of each living communicator.
    pub start_magic: Option<u32>,
    pub end_magic: Option<u32>,
    pub n_channels: Option<u32>,
    /// Array of `ncclChannel`.
    pub channels: Option<u32>,
    /// Pointer to an array of `ncclPeerInfo`, by rank.
    pub peer_info: Option<u32>,
    /// Pointer to the network's table, whose first word points to its name.
    pub net: Option<u32>,
    /// Pointer to the name that the caller gave (2.23 and later).
    pub name: Option<u32>,
    /// Pointer to the next communicator of the same group in this process, in a ring.
    pub intra_next: Option<u32>,
}

const SPECS: &[StructSpec<'static>] = &[
    StructSpec {
        name: "ncclComm",
        unit: None,
        fields: &[
            "commHash",
            "rank",
            "nRanks",
            "cudaDev",
            "nvmlDev",
            "busId",
            "node",
            "nNodes",
            "localRank",
            "opCount",
            "collOpCount",
            "seqNumber",
            "sharedRes",
            "proxyState",
            "asyncResult",
            "abortFlag",
            "initState",
            "startMagic",
            "endMagic",
            "nChannels",
            "channels",
            "peerInfo",
            "ncclNet",
            "config.commName",
            "commName",
            "intraNext",
        ],
    },
    StructSpec { name: "ncclCommInitRankAsyncJob", unit: None, fields: &["comm"] },
    StructSpec {
        name: "ncclInfo",
        unit: None,
        fields: &["coll", "opName", "sendbuff", "recvbuff", "count", "datatype", "op", "root", "comm", "stream"],
    },
];

/// The start of `ncclInfo`, which the programs in the kernel read at these offsets: name, offset, bytes.
/// It is the same from 2.18 to 2.32.
const INFO: [(&str, u64, u64); 10] = [
    ("coll", 0, 4),
    ("opName", 8, 8),
    ("sendbuff", 16, 8),
    ("recvbuff", 24, 8),
    ("count", 32, 8),
    ("datatype", 40, 4),
    ("op", 44, 4),
    ("root", 48, 4),
    ("comm", 56, 8),
    ("stream", 64, 8),
];

/// First release that counts in `seqNumber` whether or not a profiler plugin is loaded
/// (`ncclProfilerStartTaskEvents`, `src/plugin/profiler.cc`).
const SEQ_NUMBER_SINCE: Version = Version { major: 2, minor: 26, patch: 0 };

/// First release with `ncclComm.collOpCount` (`uploadProxyOps`, `src/enqueue.cc`).
const COMM_COUNT_SINCE: Version = Version { major: 2, minor: 24, patch: 0 };

impl NcclLayout {
    /// Reads the layout of `nccl` from its debug information.
    ///
    /// # Errors
    /// There is no debug information, a field that identifies a communicator is not there, or what the
    /// programs in the kernel rely on does not hold; the error names the field.
    pub fn from_dwarf(nccl: &NcclFile<'_>) -> Result<Self, LayoutError> {
        let dwarf = nccl.dwarf()?;
        let version = nccl.version()?;
        let specs: Vec<_> = SPECS.iter().copied().chain(proxy::specs(version)).collect();
        let found = Fields(dwarf.structs(&specs)?);
        found.check_info()?;
        let functions = dwarf.enumerators("ncclFunc_t")?.unwrap_or_default();
        let patterns = dwarf.enumerators("ncclPattern_t")?.unwrap_or_default();
        let patterns = patterns.into_iter().filter_map(|e| enumerator(e, "ncclPattern")).collect();
        let (proxy, proxy_problem) = match ProxyLayout::read(&found, version, patterns) {
            Ok(proxy) => (Some(proxy), None),
            Err(e) => (None, Some(e.to_string())),
        };
        let layout = Self {
            build_id: nccl.build_id().map(str::to_owned),
            version,
            source: if nccl.has_debug_file() { LayoutSource::DebugFile } else { LayoutSource::Dwarf },
            comm: found.comm()?,
            shared: SharedLayout::read(&found, SharedLayout::SPEC.name).ok(),
            job_comm: found.optional("ncclCommInitRankAsyncJob", "comm", 8)?,
            functions: functions.into_iter().filter_map(|e| enumerator(e, "ncclFunc")).collect(),
            proxy,
            proxy_problem,
        };
        layout.check()?;
        Ok(layout)
    }

    /// The layout of `nccl`: from its debug information, else from the table that comes with Mycroft.
    ///
    /// # Errors
    /// Neither gives one; says why.
    pub fn of(nccl: &NcclFile<'_>) -> Result<Self, LayoutError> {
        Self::from_dwarf(nccl).or_else(|error| {
            bundle::find(nccl).map_err(|why| LayoutError::Missing(format!("this build: {error}; {why}")))
        })
    }

    /// What the programs in the kernel take for granted.
    ///
    /// # Errors
    /// The field that is not where they expect it.
    pub fn check(&self) -> Result<(), LayoutError> {
        let comm = &self.comm;
        for (field, offset, distance) in [
            ("ncclComm.commHash", comm.comm_hash, -8),
            ("ncclComm.nRanks", comm.n_ranks, 4),
            ("ncclComm.cudaDev", comm.cuda_dev, 8),
            ("ncclComm.nvmlDev", comm.nvml_dev, 12),
        ] {
            let expected = i64::from(comm.rank) + distance;
            if i64::from(offset) != expected {
                return Err(LayoutError::Offset { field: field.to_owned(), expected, found: offset.into() });
            }
        }
        Ok(())
    }

    /// The part that the programs in the kernel need.
    ///
    /// # Errors
    /// As for [`Self::check`].
    pub fn to_kernel(&self) -> Result<KernelLayout, LayoutError> {
        self.check()?;
        let (seq_kind, seq_offset, seq_extra) = self.sequence();
        Ok(KernelLayout {
            comm_rank: self.comm.rank,
            comm_bus_id: self.comm.bus_id,
            seq_kind,
            seq_offset,
            seq_extra,
            job_comm: self.job_comm.unwrap_or(0),
        })
    }

    /// The counter that tells how many collectives a communicator has seen: kind, offset, extra.
    ///
    /// A field that is there need not be kept up to date, so the release decides; one that does not say its
    /// release is only believed to be old if it lacks what came with 2.23.
    fn sequence(&self) -> (u32, u32, u32) {
        let comm = &self.comm;
        let before = |version: Version| match self.version {
            Some(own) => own < version,
            None => comm.seq_number.is_none(),
        };
        if before(COMM_COUNT_SINCE) {
            if let (Some(pointer), Some(shared)) = (comm.shared_res, &self.shared) {
                return (SEQ_SHARED, pointer, shared.coll_op_count);
            }
        } else if before(SEQ_NUMBER_SINCE) {
            if let Some(count) = comm.coll_op_count {
                return (SEQ_COMM, count, 0);
            }
        } else if self.version.is_some()
            && let Some((offset, entries)) = comm.seq_number
        {
            return (SEQ_ARRAY, offset, entries.min(SEQ_FUNCS_MAX as u32));
        }
        (SEQ_NONE, 0, 0)
    }
}

/// An enumerator without its prefix; those without it only count the others.
fn enumerator((name, value): (String, i64), prefix: &str) -> Option<(i32, String)> {
    let name = name.strip_prefix(prefix)?;
    Some((i32::try_from(value).ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests;
