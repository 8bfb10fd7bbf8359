//! Where the bed's own programs and libraries were built.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const BUILD: &str = "cargo build --release -p mycroft-bed -p mycroft-bed-cuda -p mycroft-bed-nvml";

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
