//! Layouts that come with Mycroft: those of NVIDIA's own builds, for libraries without debug information.
//!
//! Written by `cargo xtask layouts` from the wheels of nvidia-nccl-cu11, -cu12 and -cu13 for x86_64 and aarch64.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{
    elf::{NcclFile, Version},
    image::Machine,
    layout::{LayoutSource, NcclLayout},
    stripped::Mark,
};

const TABLE: &str = include_str!("layouts.json");

/// A build of NCCL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    /// `x86_64` or `aarch64`.
    pub machine: String,
    /// Package that it came in, such as `cu12`.
    pub package: String,
    pub build_id: String,
}

/// A layout and the builds that have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub builds: Vec<Build>,
    pub layout: NcclLayout,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| serde_json::from_str(TABLE).unwrap_or_default());

/// Every entry of the table.
#[must_use]
pub fn entries() -> &'static [Entry] {
    &ENTRIES
}

/// Name of a machine in the table.
#[must_use]
pub fn machine_name(machine: Machine) -> &'static str {
    match machine {
        Machine::X86_64 => "x86_64",
        Machine::Aarch64 => "aarch64",
    }
}

/// The layout of `nccl`: the build is one of the table, or its code fits the entry of its release.
///
/// # Errors
/// Why there is none, in words.
pub fn find(nccl: &NcclFile<'_>) -> Result<NcclLayout, String> {
    let id = nccl.build_id();
    let known = ENTRIES.iter().find(|e| e.builds.iter().any(|b| Some(b.build_id.as_str()) == id));
    let version = nccl.version().ok().flatten();
    let given =
        |layout: &NcclLayout, source| NcclLayout { build_id: id.map(str::to_owned), version, source, ..layout.clone() };
    if let Some(entry) = known {
        return Ok(given(&entry.layout, LayoutSource::Bundled));
    }
    let version = version.ok_or("the file does not say its release")?;
    let mut why = format!("no layout of NCCL {version} for {} is known", machine_name(nccl.machine()));
    for entry in candidates(version, nccl.machine()) {
        match nccl.attest(&marks(&entry.layout), &fields(&entry.layout)) {
            Ok(()) => return Ok(given(&entry.layout, LayoutSource::Attested)),
            Err(reason) => why = format!("the code does not fit the layout of NCCL {version}: {reason}"),
        }
    }
    Err(why)
}

/// Entries of that release; of builds for several CUDA releases, which can differ in little, the newest first.
fn candidates(version: Version, machine: Machine) -> Vec<&'static Entry> {
    let (version, machine) = (version.to_string(), machine_name(machine));
    let package = |e: &&'static Entry| {
        let fits = e.builds.iter().filter(|b| b.version == version && b.machine == machine);
        fits.map(|b| b.package.as_str()).max()
    };
    let mut found: Vec<&Entry> = ENTRIES.iter().filter(|e| package(e).is_some()).collect();
    found.sort_by_key(|e| std::cmp::Reverse(package(e)));
    found
}

/// What public functions are known to read.
fn marks(layout: &NcclLayout) -> Vec<Mark> {
    let comm = &layout.comm;
    let mut marks = vec![
        Mark { function: "ncclCommUserRank", field: "ncclComm.rank", offset: comm.rank },
        Mark { function: "ncclCommCount", field: "ncclComm.nRanks", offset: comm.n_ranks },
        Mark { function: "ncclCommCuDevice", field: "ncclComm.cudaDev", offset: comm.cuda_dev },
    ];
    let mark = |field, offset: Option<u32>| Some(Mark { function: "ncclCommGetAsyncError", field, offset: offset? });
    marks.extend(mark("ncclComm.asyncResult", comm.async_result));
    marks
}

/// Offsets so large that code which has them has them for this.
fn fields(layout: &NcclLayout) -> Vec<(&'static str, u32)> {
    const LARGE: u32 = 4096;
    let mut fields: Vec<(&'static str, Option<u32>)> = vec![
        ("ncclComm.proxyState", layout.comm.proxy_state),
        ("ncclComm.busId", Some(layout.comm.bus_id)),
        ("ncclComm.initState", layout.comm.init_state),
        ("ncclComm.endMagic", layout.comm.end_magic),
    ];
    if let Some(proxy) = &layout.proxy {
        let args = &proxy.args;
        fields.extend([
            ("ncclProxyArgs.progress", Some(args.progress)),
            ("ncclProxyArgs.nsubs", Some(args.n_subs)),
            ("ncclProxyArgs.opCount", Some(args.op_count)),
            ("ncclProxyArgs.state", Some(args.state)),
            ("ncclProxyArgs.next", Some(args.next)),
            ("ncclProxyArgs.nextPeer", Some(args.next_peer)),
        ]);
    }
    fields.into_iter().filter_map(|(name, offset)| Some((name, offset.filter(|o| *o >= LARGE)?))).collect()
}

/// Merges equal layouts, in the order of their releases.
#[must_use]
pub fn merge(all: Vec<(Build, NcclLayout)>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (build, layout) in all {
        // What is the build's own is no part of the layout.
        let layout = NcclLayout { build_id: None, version: None, source: LayoutSource::Bundled, ..layout };
        match entries.iter_mut().find(|e| e.layout == layout) {
            Some(entry) => entry.builds.push(build),
            None => entries.push(Entry { builds: vec![build], layout }),
        }
    }
    entries
}

#[cfg(test)]
mod tests;
