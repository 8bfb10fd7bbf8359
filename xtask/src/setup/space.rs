//! Free disk space, asked before a download rather than found lacking in the middle of it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::sys::statvfs::statvfs;

pub(crate) fn check(dir: &Path, needed_mb: u64, purpose: &str) -> Result<()> {
    let disk = statvfs(dir).with_context(|| format!("cannot ask for the free space of {}", dir.display()))?;
    let free_mb = disk.blocks_available() * disk.fragment_size() / 1_000_000;
    if free_mb < needed_mb {
        bail!(
            "{purpose} needs {needed_mb} MB for a while and {} has {free_mb} MB free: \
             free some space, or set MYCROFT_CACHE to a directory on another disk",
            dir.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_the_way_out() {
        check(Path::new("/"), 0, "nothing").unwrap();
        let error = check(Path::new("/"), 1_000_000_000_000, "all").unwrap_err().to_string();
        assert!(error.starts_with("all needs") && error.contains("MYCROFT_CACHE"), "{error}");
    }
}
