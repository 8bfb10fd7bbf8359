//! Files that the tests of this module look at.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The releases whose libraries `cargo xtask setup` fetches.
pub(super) const VERSIONS: [&str; 5] = ["2.18.3", "2.21.5", "2.27.5", "2.29.7", "2.32.3"];

/// Path of NVIDIA's library of that release.
pub(super) fn nccl_path(version: &str) -> PathBuf {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("MYCROFT_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("mycroft")))
        .or_else(|| Some(set("HOME")?.join(".cache/mycroft")))
        .expect("none of MYCROFT_CACHE, XDG_CACHE_HOME and HOME is set");
    cache.join("nccl").join(version).join("libnccl.so.2")
}

/// NVIDIA's library of that release.
pub(super) fn nccl_library(version: &str) -> File {
    let path = nccl_path(version);
    File::open(&path).unwrap_or_else(|e| panic!("{}: {e}; run `cargo xtask setup`", path.display()))
}

/// Compiles `source` into `output`.
pub(super) fn compile(compiler: &str, source: &Path, output: &Path, flags: &[&str]) {
    let status = Command::new(compiler)
        .arg("-o")
        .arg(output)
        .arg(source)
        .args(flags)
        .status()
        .unwrap_or_else(|e| panic!("{compiler}: {e}; the test compiles its input with it"));
    assert!(status.success(), "{compiler} {} failed", source.display());
}
