//! Where things that are built or downloaded once are kept, outside the repository so that every worktree shares them.
//!
//! Owns the layout of the cache and the two ways to change it without breaking a second `cargo xtask` at work in it:
//! a lock file per tool, and replacing a name by `rename`.
//! `mycroft-agent/build.rs` and the tests look the same directory up by the same three rules.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, Result, bail};

#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$MYCROFT_CACHE`, else `$XDG_CACHE_HOME/mycroft`, else `$HOME/.cache/mycroft`.
    pub(crate) fn open() -> Result<Self> {
        let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = set("MYCROFT_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("mycroft")))
            .or_else(|| set("HOME").map(|d| d.join(".cache/mycroft")))
            .context("no place for the cache: set MYCROFT_CACHE to a directory")?;
        if root.is_relative() {
            // a build script, whose current directory is another, would look elsewhere
            bail!("the cache {} must be an absolute path", root.display());
        }
        Self::at(&root)
    }

    pub(crate) fn at(root: &Path) -> Result<Self> {
        fs::create_dir_all(root)
            .with_context(|| format!("cannot create the cache {}: set MYCROFT_CACHE to a directory", root.display()))?;
        // Canonical, since paths inside it end up in the run path of bpf-linker and in symlinks.
        Ok(Self { root: root.canonicalize()? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Holds the lock of that name until the guard is dropped; says so when it has to wait.
    pub(crate) fn lock(&self, name: &str) -> Result<Lock> {
        let locks = self.path("locks");
        fs::create_dir_all(&locks).with_context(|| format!("cannot create {}", locks.display()))?;
        let path = locks.join(name);
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if file.try_lock().is_err() {
            crate::progress::note(&format!("waiting for another cargo xtask that is at work on {name}"));
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(Lock { _file: file })
    }

    /// A fresh empty directory in the cache, so on the same file system as what it will be renamed to.
    pub(crate) fn scratch(&self, name: &str) -> Result<Scratch> {
        let dir = self.path(format!(".tmp-{name}-{}", process::id()));
        remove_dir_if_there(&dir)?;
        fs::create_dir_all(&dir)?;
        Ok(Scratch { dir })
    }

    /// Points `bin/NAME` at `to`; a reader sees the old or the new program, never neither.
    pub(crate) fn link_bin(&self, name: &str, to: &Path) -> Result<()> {
        let bin = self.path("bin");
        fs::create_dir_all(&bin)?;
        let link = bin.join(name);
        if fs::read_link(&link).is_ok_and(|old| old == to) {
            return Ok(());
        }
        let temp = bin.join(format!(".{name}-{}", process::id()));
        if temp.symlink_metadata().is_ok() {
            fs::remove_file(&temp)?;
        }
        symlink(to, &temp)?;
        fs::rename(&temp, &link).with_context(|| format!("cannot replace {}", link.display()))
    }
}

/// An advisory lock; the kernel lets go of it when the process dies, so a stale one cannot be left behind.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing to do about a failure here: the next scratch of that name clears it.
        remove_dir_if_there(&self.dir).ok();
    }
}

pub(crate) fn remove_dir_if_there(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
