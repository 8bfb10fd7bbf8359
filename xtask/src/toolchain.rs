//! The rustc in use, and the LLVM inside it.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::exec;

#[derive(Debug)]
pub(crate) struct Rustc {
    pub(crate) release: String,
    pub(crate) commit: String,
    pub(crate) llvm: String,
    pub(crate) sysroot: PathBuf,
}

impl Rustc {
    pub(crate) fn in_use() -> Result<Self> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let facts = exec::output(Command::new(&rustc).arg("-vV"))?;
        let fact = |name: &str| {
            facts
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
                .map(str::to_owned)
                .with_context(|| format!("rustc -vV names no {name}"))
        };
        let sysroot = exec::output(Command::new(&rustc).args(["--print", "sysroot"]))?;
        Ok(Self {
            release: fact("release")?,
            // A distribution's rustc may say "unknown"; its release and LLVM version then stand alone.
            commit: fact("commit-hash")?,
            llvm: fact("LLVM version")?,
            sysroot: PathBuf::from(sysroot.trim()),
        })
    }

    pub(crate) fn llvm_major(&self) -> &str {
        self.llvm.split('.').next().unwrap_or(&self.llvm)
    }

    /// The shared libLLVM that rustc loads: beside librustc_driver in a rustup toolchain, elsewhere for a
    /// distribution's rustc.
    pub(crate) fn shared_llvm(&self) -> Result<PathBuf> {
        let no_llvm = || {
            format!(
                "the rustc in {} has no shared libLLVM to build bpf-linker with: \
                 use the toolchain that rust-toolchain.toml names, from rustup",
                self.sysroot.display()
            )
        };
        let lib = self.sysroot.join("lib");
        if let Some(found) = find(&lib, |name| name.starts_with("libLLVM.so.")) {
            return found.canonicalize().with_context(no_llvm);
        }
        let driver = [lib.clone(), lib.join("x86_64-linux-gnu")]
            .iter()
            .find_map(|dir| find(dir, |name| name.starts_with("librustc_driver")))
            .with_context(no_llvm)?;
        let loaded = exec::output(Command::new("ldd").arg(&driver))?;
        let path = loaded
            .lines()
            .filter(|l| l.contains("libLLVM"))
            .find_map(|l| l.split_once("=> ")?.1.split(' ').next())
            .with_context(no_llvm)?;
        PathBuf::from(path).canonicalize().with_context(no_llvm)
    }
}

/// The cargo that runs this xtask, so that the children use the same toolchain.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(repository());
    command
}

pub(crate) fn repository() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

fn find(dir: &Path, matches: impl Fn(&str) -> bool) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.flatten().find(|e| matches(&e.file_name().to_string_lossy())).map(|e| e.path())
}
