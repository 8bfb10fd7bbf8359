//! Where NCCL's fields lie in one library file.
//!
//! Owns: which of NCCL's fields matter and what must hold for them. Offsets differ between releases,
//! architectures and CUDA versions, so they come from the file's own DWARF and are never guessed.

use std::collections::BTreeMap;

use mycroft_common::layout::{KernelLayout, SEQ_ARRAY, SEQ_COMM, SEQ_FUNCS_MAX, SEQ_NONE, SEQ_SHARED};
use serde::{Deserialize, Serialize};

use super::dwarf::{DwarfError, Field, Problem, StructSpec, Structs};
use super::elf::{NcclFile, Version};
use super::image::ElfError;

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
    /// Read from a library with the same build-id before.
    Cache,
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
    /// `ncclSharedResources.collOpCount`.
    pub shared_coll_op_count: Option<u32>,
    /// `ncclCommInitRankAsyncJob.comm`.
    pub job_comm: Option<u32>,
    /// `ncclFunc_t`, without the prefix `ncclFunc`.
    pub functions: BTreeMap<i32, String>,
}

/// `ncclComm`, named as in the source. `None`: this release has no such field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        ],
    },
    StructSpec { name: "ncclSharedResources", unit: None, fields: &["collOpCount"] },
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
        let found = Fields(dwarf.structs(SPECS)?);
        found.check_info()?;
        let functions = dwarf.enumerators("ncclFunc_t")?.unwrap_or_default();
        let layout = Self {
            build_id: nccl.build_id().map(str::to_owned),
            version: nccl.version()?,
            source: LayoutSource::Dwarf,
            comm: found.comm()?,
            shared_coll_op_count: found.optional("ncclSharedResources", "collOpCount", 8)?,
            job_comm: found.optional("ncclCommInitRankAsyncJob", "comm", 8)?,
            functions: functions.into_iter().filter_map(function).collect(),
        };
        layout.check()?;
        Ok(layout)
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
            if let (Some(pointer), Some(count)) = (comm.shared_res, self.shared_coll_op_count) {
                return (SEQ_SHARED, pointer, count);
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

/// An enumerator without its prefix; the last one only counts the others.
fn function((name, value): (String, i64)) -> Option<(i32, String)> {
    let name = name.strip_prefix("ncclFunc")?;
    Some((i32::try_from(value).ok()?, name.to_owned()))
}

/// Fields that DWARF told, with their sizes checked.
struct Fields(Structs);

impl Fields {
    fn comm(&self) -> Result<CommLayout, LayoutError> {
        const COMM: &str = "ncclComm";
        let required = |name, size| self.required(COMM, name, size);
        let optional = |name, size| self.optional(COMM, name, size);
        Ok(CommLayout {
            comm_hash: required("commHash", 8)?,
            rank: required("rank", 4)?,
            n_ranks: required("nRanks", 4)?,
            cuda_dev: required("cudaDev", 4)?,
            nvml_dev: required("nvmlDev", 4)?,
            bus_id: required("busId", 8)?,
            node: optional("node", 4)?,
            n_nodes: optional("nNodes", 4)?,
            local_rank: optional("localRank", 4)?,
            op_count: optional("opCount", 8)?,
            coll_op_count: optional("collOpCount", 8)?,
            seq_number: self.seq_number()?,
            shared_res: optional("sharedRes", 8)?,
            proxy_state: optional("proxyState", 8)?,
            async_result: optional("asyncResult", 4)?,
            abort_flag: optional("abortFlag", 8)?,
            init_state: optional("initState", 4)?,
            size: self.0.get(COMM).map_or(0, |s| s.size),
        })
    }

    fn seq_number(&self) -> Result<Option<(u32, u32)>, LayoutError> {
        const NAME: &str = "ncclComm.seqNumber";
        let Some(field) = self.0.field("ncclComm", "seqNumber") else {
            return Ok(None);
        };
        let count = field.count.unwrap_or(0);
        if count.checked_mul(8) != Some(field.size) || count == 0 {
            return Err(LayoutError::Missing(format!("{NAME}, {} bytes in {count} entries", field.size)));
        }
        let small = |n| u32::try_from(n).map_err(|_| LayoutError::Missing(format!("{NAME} at {n}")));
        Ok(Some((small(field.offset)?, small(count)?)))
    }

    fn check_info(&self) -> Result<(), LayoutError> {
        for (name, expected, size) in INFO {
            let found = self.required("ncclInfo", name, size)?;
            if u64::from(found) != expected {
                return Err(LayoutError::Offset {
                    field: format!("ncclInfo.{name}"),
                    expected: expected.cast_signed(),
                    found: found.into(),
                });
            }
        }
        Ok(())
    }

    fn required(&self, name: &str, path: &str, size: u64) -> Result<u32, LayoutError> {
        self.optional(name, path, size)?.ok_or_else(|| {
            let problem = |p: &&Problem| p.name == name && p.field.as_deref().is_none_or(|f| f == path);
            let reason = self.0.problems.iter().find(problem);
            LayoutError::Missing(reason.map_or_else(|| format!("{name}.{path}"), ToString::to_string))
        })
    }

    fn optional(&self, name: &str, path: &str, size: u64) -> Result<Option<u32>, LayoutError> {
        let Some(Field { offset, size: found, .. }) = self.0.field(name, path) else {
            return Ok(None);
        };
        if found != size {
            return Err(LayoutError::Size { field: format!("{name}.{path}"), expected: size, found });
        }
        let offset =
            u32::try_from(offset).map_err(|_| LayoutError::Missing(format!("{name}.{path} at 0x{offset:x}")))?;
        Ok(Some(offset))
    }
}

#[cfg(test)]
mod tests;
