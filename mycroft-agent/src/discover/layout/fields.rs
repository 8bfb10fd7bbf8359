//! Fields out of a library's debug information, by name and size.

use super::{CommLayout, INFO, LayoutError};
use crate::discover::dwarf::{Field, Problem, Structs};

/// Fields that DWARF told, with their sizes checked.
pub(super) struct Fields(pub(super) Structs);

impl Fields {
    pub(super) fn comm(&self) -> Result<CommLayout, LayoutError> {
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
            start_magic: optional("startMagic", 8)?,
            end_magic: optional("endMagic", 8)?,
            n_channels: optional("nChannels", 4)?,
            channels: self.0.field(COMM, "channels").and_then(|f| u32::try_from(f.offset).ok()),
            peer_info: optional("peerInfo", 8)?,
            net: optional("ncclNet", 8)?,
            name: match optional("config.commName", 8)? {
                Some(name) => Some(name),
                None => optional("commName", 8)?,
            },
            intra_next: optional("intraNext", 8)?,
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

    /// Bytes of a struct; 0 if it is not there.
    pub(super) fn size(&self, name: &str) -> Result<u32, LayoutError> {
        let size = self.0.get(name).map_or(0, |s| s.size);
        u32::try_from(size).map_err(|_| LayoutError::Missing(format!("{name} of {size} bytes")))
    }

    /// Offset of an array and bytes of an element; `None` if there is no such field.
    pub(super) fn array(&self, name: &str, path: &str, entries: u32) -> Result<Option<(u32, u32)>, LayoutError> {
        let Some(field) = self.0.field(name, path) else {
            return Ok(None);
        };
        let wrong =
            || LayoutError::Missing(format!("{name}.{path}, {} bytes in {:?} entries", field.size, field.count));
        if field.count != Some(entries.into()) {
            return Err(wrong());
        }
        let element = u32::try_from(field.size / u64::from(entries)).map_err(|_| wrong())?;
        Ok(Some((u32::try_from(field.offset).map_err(|_| wrong())?, element)))
    }

    pub(super) fn check_info(&self) -> Result<(), LayoutError> {
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

    pub(super) fn required(&self, name: &str, path: &str, size: u64) -> Result<u32, LayoutError> {
        self.optional(name, path, size)?.ok_or_else(|| {
            let problem = |p: &&Problem| p.name == name && p.field.as_deref().is_none_or(|f| f == path);
            let reason = self.0.problems.iter().find(problem);
            LayoutError::Missing(reason.map_or_else(|| format!("{name}.{path}"), ToString::to_string))
        })
    }

    pub(super) fn optional(&self, name: &str, path: &str, size: u64) -> Result<Option<u32>, LayoutError> {
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
