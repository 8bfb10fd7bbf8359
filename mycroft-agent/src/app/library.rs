//! From a mapped file to what is attached to it.

use std::{fs::File, path::Path, sync::Arc};

use mycroft_common::layout::KernelLayout;

use crate::{
    discover::{elf::NcclFile, layout::NcclLayout, process::LibraryRef},
    probe::{Plan, Program, plan::Entry},
};

/// A file, whatever its name: device and inode.
pub(super) type FileKey = (u64, u64);

/// An NCCL library file and its plan.
#[derive(Debug)]
pub struct Library {
    pub(super) key: FileKey,
    pub file: Arc<File>,
    pub path: String,
    pub build_id: String,
    pub version: String,
    pub plan: Plan,
    /// What it does not allow, and the way out.
    pub problems: Vec<String>,
}

impl Library {
    /// Reads a library: its build, functions and layout.
    ///
    /// # Errors
    /// If the file is no sound NCCL library; the message says why.
    pub fn read(library: &LibraryRef, cache: Option<&Path>) -> Result<Self, String> {
        let functions: Vec<&str> = Program::TABLE.iter().map(|(_, function)| *function).collect();
        let nccl = NcclFile::open(&library.file, &functions).map_err(|e| e.to_string())?;
        let mut problems = Vec::new();
        let layout = layout(&nccl, cache).unwrap_or_else(|why| {
            problems.push(format!("no identity of communicators: {why}"));
            KernelLayout::default()
        });
        let plan = Plan::new(layout, |name| {
            nccl.function(name).map(|f| Entry { file_offset: f.file_offset, skip: f.entry_skip })
        });
        if !plan.sees_operations() {
            let why = if nccl.has_symtab { "has no ncclEnqueueCheck" } else { "is stripped (no symbol table)" };
            problems.push(format!(
                "operations can't be traced: this build {why}; use NVIDIA's wheel or an unstripped build"
            ));
        } else if !plan.missing.is_empty() {
            problems.push(format!("without {}", plan.missing.join(", ")));
        }
        Ok(Self {
            key: (library.dev, library.ino),
            file: library.file.clone(),
            path: library.path.clone(),
            build_id: nccl.build_id,
            version: nccl.version,
            plan,
            problems,
        })
    }
}

fn layout(nccl: &NcclFile, cache: Option<&Path>) -> Result<KernelLayout, String> {
    if let Some(layout) = cache.and_then(|dir| NcclLayout::load(dir, &nccl.build_id)) {
        return Ok(layout.to_kernel());
    }
    let layout = NcclLayout::from_dwarf(nccl).map_err(|e| e.to_string())?;
    if let Some(dir) = cache
        && let Err(e) = layout.store(dir)
    {
        tracing::info!(dir = %dir.display(), error = %e, "layout not cached");
    }
    Ok(layout.to_kernel())
}
