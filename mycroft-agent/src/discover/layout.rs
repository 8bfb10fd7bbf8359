//! Where NCCL's fields lie in one build of it.

use std::{fs, io, path::Path};

use mycroft_common::layout::{KernelLayout, SEQ_ARRAY, SEQ_COMM, SEQ_FUNCS_MAX, SEQ_SHARED};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    dwarf::{DwarfError, Struct, StructSpec},
    elf::NcclFile,
};

/// Raised when what is cached changes.
const SCHEMA: u32 = 1;

/// `ncclInfo`, on which the eBPF program relies without a layout (`mycroft_common::memory::InfoPrefix`).
const INFO: [(&str, u64, u64); 9] = [
    ("coll", 0, 4),
    ("sendbuff", 16, 8),
    ("recvbuff", 24, 8),
    ("count", 32, 8),
    ("datatype", 40, 4),
    ("op", 44, 4),
    ("root", 48, 4),
    ("comm", 56, 8),
    ("stream", 64, 8),
];

/// Why a library has no layout.
#[derive(Debug, Error)]
pub enum LayoutError {
    #[error(transparent)]
    Dwarf(#[from] DwarfError),
    #[error("NCCL {version}: {what} is not in its DWARF")]
    Missing { version: String, what: String },
    #[error("NCCL {version}: {field} lies at {found}, {expected} was expected: this build is not known to Mycroft")]
    Moved { version: String, field: String, found: u64, expected: u64 },
}

/// Offsets in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclLayout {
    schema: u32,
    pub build_id: String,
    pub version: String,
    pub comm_rank: u32,
    pub comm_bus_id: u32,
    /// Offset and length of `seqNumber`.
    pub seq_number: Option<(u32, u32)>,
    pub coll_op_count: Option<u32>,
    /// `ncclComm.sharedRes` and `ncclSharedResources.collOpCount`.
    pub shared_coll_op_count: Option<(u32, u32)>,
    pub job_comm: Option<u32>,
}

impl NcclLayout {
    /// Reads the layout from the library's DWARF.
    ///
    /// # Errors
    /// Without DWARF, or where a field that the kernel side relies on is missing or has moved; names it.
    pub fn from_dwarf(file: &NcclFile) -> Result<Self, LayoutError> {
        let info: Vec<&str> = INFO.iter().map(|(name, ..)| *name).collect();
        let specs = [
            StructSpec::new(
                "ncclComm",
                &["commHash", "rank", "nRanks", "cudaDev", "nvmlDev", "busId", "collOpCount", "seqNumber", "sharedRes"],
            ),
            StructSpec::new("ncclSharedResources", &["collOpCount"]),
            StructSpec::new("ncclCommInitRankAsyncJob", &["comm"]),
            StructSpec::new("ncclInfo", &info),
        ];
        let found = file.structs(&specs)?;
        let [comm, shared, job, info] = found.as_slice() else {
            return Err(missing(file, "ncclComm"));
        };
        let comm = comm.as_ref().ok_or_else(|| missing(file, "ncclComm"))?;
        let info = info.as_ref().ok_or_else(|| missing(file, "ncclInfo"))?;
        check_info(file, info)?;
        check_neighbours(file, comm)?;
        let optional = |s: &Option<Struct>, name: &str| s.as_ref().and_then(|s| offset(s, name));
        let seq_number = comm.fields.get("seqNumber").and_then(|f| {
            Some((u32::try_from(f.offset).ok()?, u32::try_from(f.count?).ok()?.min(SEQ_FUNCS_MAX as u32)))
        });
        Ok(Self {
            schema: SCHEMA,
            build_id: file.build_id.clone(),
            version: file.version.clone(),
            comm_rank: need(file, comm, "ncclComm", "rank")?,
            comm_bus_id: need(file, comm, "ncclComm", "busId")?,
            seq_number,
            coll_op_count: offset(comm, "collOpCount"),
            shared_coll_op_count: offset(comm, "sharedRes").zip(optional(shared, "collOpCount")),
            job_comm: optional(job, "comm"),
        })
    }

    /// What the kernel side needs of it.
    #[must_use]
    pub fn to_kernel(&self) -> KernelLayout {
        // 2.23 to 2.25 have seqNumber too, but count there only with a profiler plugin; 2.24 and 2.25 have a
        // counter of the communicator's own, which later releases advance only for plans with proxy work.
        let (seq_kind, seq_offset, seq_extra) = match (minor(&self.version), self.seq_number, self.coll_op_count) {
            (26.., Some((at, n)), _) => (SEQ_ARRAY, at, n),
            (24 | 25, _, Some(at)) => (SEQ_COMM, at, 0),
            (0..=23, ..) => match self.shared_coll_op_count {
                Some((at, inner)) => (SEQ_SHARED, at, inner),
                None => (0, 0, 0),
            },
            _ => (0, 0, 0),
        };
        KernelLayout {
            comm_rank: self.comm_rank,
            comm_bus_id: self.comm_bus_id,
            seq_kind,
            seq_offset,
            seq_extra,
            job_comm: self.job_comm.unwrap_or(0),
        }
    }

    /// Reads a cached layout. A file that is absent, corrupt or of another schema is no layout.
    #[must_use]
    pub fn load(dir: &Path, build_id: &str) -> Option<Self> {
        if build_id.is_empty() {
            return None;
        }
        let text = fs::read_to_string(dir.join(format!("{build_id}.json"))).ok()?;
        let layout: Self = serde_json::from_str(&text).ok()?;
        (layout.schema == SCHEMA && layout.build_id == build_id).then_some(layout)
    }

    /// Writes the layout to the cache, in one step.
    ///
    /// # Errors
    /// If the directory can't be made or written.
    pub fn store(&self, dir: &Path) -> io::Result<()> {
        if self.build_id.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(dir)?;
        let text = serde_json::to_string_pretty(self)?;
        let temporary = dir.join(format!(".{}.{}", self.build_id, std::process::id()));
        fs::write(&temporary, text)?;
        fs::rename(&temporary, dir.join(format!("{}.json", self.build_id)))
    }
}

/// The second number of `2.27.5`; all known releases are of the second major version.
fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|m| m.parse().ok()).unwrap_or(0)
}

fn offset(s: &Struct, name: &str) -> Option<u32> {
    s.fields.get(name).and_then(|f| u32::try_from(f.offset).ok())
}

fn missing(file: &NcclFile, what: &str) -> LayoutError {
    LayoutError::Missing { version: file.version.clone(), what: what.to_owned() }
}

fn need(file: &NcclFile, s: &Struct, name: &str, field: &str) -> Result<u32, LayoutError> {
    offset(s, field).ok_or_else(|| missing(file, &format!("{name}.{field}")))
}

fn check_info(file: &NcclFile, info: &Struct) -> Result<(), LayoutError> {
    for (name, expected, size) in INFO {
        let field = info.fields.get(name).ok_or_else(|| missing(file, &format!("ncclInfo.{name}")))?;
        if (field.offset, field.size) != (expected, size) {
            return Err(moved(file, format!("ncclInfo.{name}"), field.offset, expected));
        }
    }
    Ok(())
}

/// The kernel side reads hash, rank, size and devices as one block.
fn check_neighbours(file: &NcclFile, comm: &Struct) -> Result<(), LayoutError> {
    let rank = u64::from(need(file, comm, "ncclComm", "rank")?);
    for (name, at) in
        [("commHash", rank.wrapping_sub(8)), ("nRanks", rank + 4), ("cudaDev", rank + 8), ("nvmlDev", rank + 12)]
    {
        let found = u64::from(need(file, comm, "ncclComm", name)?);
        if found != at {
            return Err(moved(file, format!("ncclComm.{name}"), found, at));
        }
    }
    Ok(())
}

fn moved(file: &NcclFile, field: String, found: u64, expected: u64) -> LayoutError {
    LayoutError::Moved { version: file.version.clone(), field, found, expected }
}
