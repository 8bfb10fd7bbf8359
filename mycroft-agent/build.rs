//! Compiles `mycroft-ebpf` to a BPF object in OUT_DIR.
//!
//! rustc compiles the crate for the *host* as LLVM bitcode (`-C linker-plugin-lto`, stable), using the host's
//! precompiled `core`, which carries bitcode; bpf-linker then generates BPF code from it. So no nightly, no
//! rust-src and no build-std are needed. The linker must be built against rustc's own LLVM: `cargo xtask
//! setup` does that.
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    let krate = root.join("mycroft-ebpf");
    for p in ["src", "Cargo.toml", "Cargo.lock", "../mycroft-common/src"] {
        println!("cargo:rerun-if-changed={}", krate.join(p).display());
    }
    for v in ["BPF_LINKER", "MYCROFT_CACHE", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo:rerun-if-env-changed={v}");
    }
    let linker = bpf_linker()?;
    println!("cargo:rerun-if-changed={}", linker.display());

    let target = env::var("TARGET")?;
    let target_dir = out.join("ebpf");
    run(Command::new(env::var_os("CARGO").context("CARGO is not set")?)
        .args(["build", "--release", "--lib", "--locked", "--target", &target])
        .arg("--manifest-path")
        .arg(krate.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Clinker-plugin-lto\x1f-Cforce-unwind-tables=no")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_BUILD_RUSTC_WRAPPER"))?;

    let obj = out.join("mycroft.bpf.o");
    run(Command::new(&linker)
        .args(["--target=bpfel", "--btf", "-O3", "--export", &mycroft_common::EXPORTS.join(",")])
        .arg(target_dir.join(&target).join("release/libmycroft_ebpf.a"))
        .arg("-o")
        .arg(&obj))?;
    check(&obj)
}

/// `$BPF_LINKER`, else what `cargo xtask setup` left in the cache.
fn bpf_linker() -> Result<PathBuf> {
    if let Some(linker) = env::var_os("BPF_LINKER") {
        return Ok(linker.into());
    }
    let cache = if let Some(dir) = env::var_os("MYCROFT_CACHE") {
        PathBuf::from(dir)
    } else if let Some(dir) = env::var_os("XDG_CACHE_HOME") {
        PathBuf::from(dir).join("mycroft")
    } else {
        PathBuf::from(env::var_os("HOME").context("neither MYCROFT_CACHE nor HOME is set")?).join(".cache/mycroft")
    };
    let linker = cache.join("bin/bpf-linker");
    if !linker.exists() {
        bail!("bpf-linker not found at {}: run `cargo xtask setup` once", linker.display());
    }
    Ok(linker)
}

fn check(obj: &Path) -> Result<()> {
    const EM_BPF: u8 = 247;
    let bytes = std::fs::read(obj)?;
    if bytes.get(18) != Some(&EM_BPF) {
        bail!("{} is not a BPF object", obj.display());
    }
    Ok(())
}

fn run(cmd: &mut Command) -> Result<()> {
    let status = cmd.status().with_context(|| format!("{cmd:?}"))?;
    if !status.success() {
        bail!("{cmd:?}: {status}");
    }
    Ok(())
}
