//! Where the libraries lie that `cargo xtask setup` has fetched.

use std::fmt;
use std::path::PathBuf;

/// A release whose library is not in the cache.
#[derive(Debug)]
pub struct NotSetUp(String);

impl fmt::Display for NotSetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} is not set up: run `cargo xtask setup`", self.0)
    }
}

impl std::error::Error for NotSetUp {}

fn cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("MYCROFT_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|d| d.join("mycroft")))
        .or_else(|| variable("HOME").map(|d| d.join(".cache/mycroft")))
}

/// The library of a release, like `2.27.5`.
pub fn library(version: &str) -> Result<PathBuf, NotSetUp> {
    let path = cache().map(|c| c.join("nccl").join(version).join("libnccl.so.2"));
    path.filter(|p| p.is_file()).ok_or_else(|| NotSetUp(version.to_owned()))
}
