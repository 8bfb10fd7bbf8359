//! Files: where the bed's own programs and libraries were built, and a folder for each job.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

const BUILD: &str =
    "cargo build --release -p mycroft-bed -p mycroft-bed-cuda -p mycroft-bed-nvml -p mycroft-bed-cudart";

/// A built file by name: in `BED_BIN_DIR`, else next to this program (or above it, for a test), else in the other
/// profile's folder.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os("BED_BIN_DIR").map(PathBuf::from).into_iter().collect();
    let exe = std::env::current_exe().context("this program's own path")?;
    let here = exe.parent().unwrap_or(Path::new("/"));
    let here = if here.file_name().is_some_and(|n| n == "deps") { here.parent().unwrap_or(here) } else { here };
    folders.push(here.to_owned());
    folders.extend(["release", "debug"].map(|profile| here.with_file_name(profile)));
    let found = folders.iter().map(|f| f.join(name)).find(|p| p.is_file());
    found.with_context(|| format!("{name} is not built: run `{BUILD}`"))
}

const PREFIX: &str = "mycroft-bed-";

/// A folder for a job's files; also removes those of harnesses that were killed.
pub(crate) fn folder() -> Result<TempDir> {
    let parent = std::env::temp_dir();
    for entry in fs::read_dir(&parent)?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        // one with a mark was kept on purpose
        if owner.is_some_and(is_gone) && !entry.path().join(KEPT).exists() {
            // somebody else's, perhaps: then it stays
            drop(fs::remove_dir_all(entry.path()));
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    Ok(tempfile::Builder::new().prefix(&prefix).tempdir_in(parent)?)
}

const KEPT: &str = "kept";

/// Leaves a job's folder where it is.
pub(crate) fn keep(folder: TempDir) {
    let path = folder.keep();
    // without the mark a later harness removes it, no worse
    drop(fs::write(path.join(KEPT), ""));
}

/// Whether a text is the number of a process that is no more.
pub(crate) fn is_gone(pid: &str) -> bool {
    pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}
