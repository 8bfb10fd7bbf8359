//! From a mapped file to what is attached to it.

use std::{fs::File, path::Path, sync::Arc};

use mycroft_common::layout::KernelLayout;

use crate::{
    discover::{elf::NcclFile, layout::NcclLayout, layout_cache::LayoutCache, process::LibraryRef},
    probe::{Plan, plan::Entry},
    sample::find::List,
};

/// A file, whatever its name: device and inode.
pub(super) type FileKey = (u64, u64);

/// An NCCL library file and its plan.
#[derive(Debug)]
pub struct Library {
    pub(super) key: FileKey,
    pub file: Arc<File>,
    pub path: String,
    /// In hex; empty if the file has none.
    pub build_id: String,
    /// Such as `2.27.5`; empty if the file does not say.
    pub version: String,
    pub plan: Plan,
    /// `None` where the file does not tell.
    pub layout: Option<Arc<NcclLayout>>,
    /// Where it lists its communicators.
    pub list: Option<List>,
    /// See [`NcclFile::code_bias`].
    pub code_bias: Option<u64>,
    /// What it does not allow, and the way out.
    pub problems: Vec<String>,
}

impl Library {
    /// Reads a library: its build, functions and layout.
    ///
    /// # Errors
    /// If the file is no sound NCCL library; the message says why.
    pub fn read(library: &LibraryRef, layouts: &mut LayoutCache) -> Result<Self, String> {
        let debug;
        let mut nccl = NcclFile::open(&library.file)
            .map_err(|e| chain(&e))?
            .ok_or("exports no ncclGetVersion and ncclCommUserRank: not NCCL")?;
        if !nccl.has_dwarf() {
            debug = debug_file(nccl.build_id(), library.root.as_deref());
            if let Some(Err(error)) = debug.as_ref().map(|file| nccl.add_debug_file(file)) {
                tracing::info!(path = library.path, %error, "its debug file is of no use");
            }
        }
        let mut problems = Vec::new();
        let (layout, kernel) = match layouts.layout(&nccl).and_then(|l| Ok((l.to_kernel()?, l))) {
            Ok((kernel, layout)) => (Some(layout), kernel),
            Err(e) => {
                problems.push(format!("no identity of communicators: {}", chain(&e)));
                (None, KernelLayout::default())
            }
        };
        if let Some(why) = layout.as_ref().and_then(|l| l.proxy_problem.as_deref()) {
            problems.push(format!("flows can't be followed: {why}"));
        }
        let plan = Plan::new(kernel, |name| match nccl.function(name) {
            Ok(f) => f.map(|f| Entry { file_offset: f.file_offset, skip: f.entry_skip }),
            Err(e) => {
                problems.push(chain(&e));
                None
            }
        });
        if !plan.sees_operations() {
            let why = if nccl.has_symbols() {
                "has no ncclEnqueueCheck"
            } else {
                "is stripped, and its code does not tell where it is"
            };
            problems.push(format!(
                "operations can't be traced: this build {why}; use NVIDIA's wheel or an unstripped build"
            ));
        } else if !plan.missing.is_empty() {
            problems.push(format!("without {}", plan.missing.join(", ")));
        }
        let version = nccl.version().ok().flatten().map(|v| v.to_string()).unwrap_or_default();
        Ok(Self {
            key: (library.dev, library.ino),
            file: library.file.clone(),
            path: library.path.clone(),
            build_id: nccl.build_id().unwrap_or_default().to_owned(),
            version,
            plan,
            layout,
            list: List::of(&nccl),
            code_bias: nccl.code_bias(),
            problems,
        })
    }
}

/// The debug file of a build, as distributions install it, in the process's file system and in ours.
fn debug_file(build_id: Option<&str>, root: Option<&Path>) -> Option<File> {
    let (first, rest) = build_id?.split_at_checked(2)?;
    let path = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
    [root, Some(Path::new("/"))].into_iter().flatten().find_map(|root| File::open(root.join(&path)).ok())
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
