//! bpf-linker, built against the very libLLVM that rustc loads.
//!
//! The linker reads bitcode that rustc wrote, so both must be of one LLVM version, and no distribution packages the
//! one that rustc is built with. rustup ships it as a shared library, so no LLVM package is needed.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use super::space;
use crate::{
    cache::{self, Cache},
    exec,
    toolchain::{self, Rustc},
};

const VERSION: &str = "0.13.0";
const NEEDED_MB: u64 = 500;
/// How cargo tells that it cannot download.
const NO_NETWORK: [&str; 3] = ["Could not connect to server", "Could not resolve host", "failed to download"];

pub(crate) fn install(cache: &Cache, rustc: &Rustc) -> Result<String> {
    let home = cache.path("bpf-linker").join(key(rustc));
    let linker = home.join("bin/bpf-linker");
    let _lock = cache.lock("bpf-linker")?;
    let known = works(&linker);
    if !known {
        space::check(cache.root(), NEEDED_MB, "bpf-linker")?;
        build(rustc, &home)?;
    }
    cache.link_bin("bpf-linker", &linker)?;
    let state = if known { "was built before" } else { "is built" };
    Ok(format!("bpf-linker {VERSION} for rustc {}, LLVM {}, {state}", rustc.release, rustc.llvm))
}

/// Names one build; a change of toolchain changes it, so that an older build is never taken for a fitting one.
fn key(rustc: &Rustc) -> String {
    let commit = rustc.commit.get(..12).unwrap_or(&rustc.commit);
    format!("{VERSION}-rustc-{}-{commit}-llvm-{}", rustc.release, rustc.llvm)
}

/// Also says no when rustup has removed the toolchain whose libLLVM the linker loads.
fn works(linker: &Path) -> bool {
    exec::output(Command::new(linker).arg("--version")).is_ok_and(|v| v.contains(VERSION))
}

/// In place rather than by rename: the path of `llvm/lib` goes into the run path of the linker.
fn build(rustc: &Rustc, home: &Path) -> Result<()> {
    let library = rustc.shared_llvm()?;
    let soname = library.file_name().context("libLLVM has no file name")?;
    cache::remove_dir_if_there(home)?;
    let lib = home.join("llvm/lib");
    fs::create_dir_all(&lib).with_context(|| format!("cannot create {}", lib.display()))?;
    symlink(&library, lib.join(soname))?;
    symlink(soname, lib.join("libLLVM.so"))?;

    let target = home.join("target");
    let mut install = toolchain::cargo();
    install
        .args(["install", "bpf-linker", "--version", VERSION, "--locked", "--force", "--no-default-features"])
        .arg("--features")
        .arg(format!("llvm-{}", rustc.llvm_major()))
        .arg("--root")
        .arg(home)
        .env("LLVM_PREFIX", home.join("llvm"))
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_TERM_COLOR", "never")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    let ended = exec::logged(&mut install, &home.join("build.log"), str::to_owned)?;
    if !ended.success && NO_NETWORK.iter().any(|w| ended.output.contains(w)) {
        bail!("the Rust package registry cannot be reached, and bpf-linker comes from it: check the network");
    }
    ended.ok().context("cannot build bpf-linker")?;
    cache::remove_dir_if_there(&target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_tells_toolchains_apart() {
        let rustc = |release: &str, commit: &str, llvm: &str| {
            key(&Rustc { release: release.into(), commit: commit.into(), llvm: llvm.into(), sysroot: "/".into() })
        };
        let one = rustc("1.95.0", "59807616e1fa2540", "22.1.2");
        assert_eq!(one, "0.13.0-rustc-1.95.0-59807616e1fa-llvm-22.1.2");
        assert_ne!(one, rustc("1.95.0", "unknown", "22.1.2"));
        assert_ne!(one, rustc("1.95.0", "59807616e1fa2540", "22.1.3"));
    }
}
