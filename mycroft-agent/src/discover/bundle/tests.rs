use std::{fs::File, process::Command};

use super::*;
use crate::discover::testing::{VERSIONS, nccl_library, nccl_path};

fn stripped(version: &str, dir: &std::path::Path, options: &[&str]) -> std::path::PathBuf {
    let to = dir.join(format!("stripped-{version}.so"));
    let status = Command::new("strip").args(options).arg("-o").arg(&to).arg(nccl_path(version)).status();
    assert!(status.expect("binutils").success());
    to
}

/// The table is that of the wheels, by their own debug information.
#[test]
fn the_table_agrees_with_the_libraries() {
    for version in VERSIONS {
        let file = nccl_library(version);
        let nccl = NcclFile::open(&file).unwrap().unwrap();
        let own = NcclLayout::from_dwarf(&nccl).unwrap();
        let ours = find(&nccl).unwrap();
        assert_eq!(ours.source, LayoutSource::Bundled, "{version}");
        assert_eq!(NcclLayout { source: own.source, ..ours }, own, "{version}");
    }
}

/// Without symbols and debug information: known by its build-id, and without that by its code.
#[test]
fn stripped_libraries_are_known_by_build_and_by_code() {
    let dir = tempfile::tempdir().unwrap();
    for version in VERSIONS {
        let whole = nccl_library(version);
        let whole = NcclFile::open(&whole).unwrap().unwrap();
        let expected = whole.function("ncclEnqueueCheck").unwrap().unwrap();
        for (options, source) in
            [(&["-s"][..], LayoutSource::Bundled), (&["-s", "-R", ".note.gnu.build-id"], LayoutSource::Attested)]
        {
            let path = stripped(version, dir.path(), options);
            let file = File::open(&path).unwrap();
            let nccl = NcclFile::open(&file).unwrap().unwrap();
            assert!(!nccl.has_symbols() && !nccl.has_dwarf());
            let begin = std::time::Instant::now();
            let layout = NcclLayout::of(&nccl).unwrap();
            assert_eq!(layout.source, source, "{version}");
            assert_eq!(layout.comm, NcclLayout::from_dwarf(&whole).unwrap().comm, "{version}");
            assert!(layout.proxy.is_some(), "{version}");
            let found = nccl.function("ncclEnqueueCheck").unwrap().unwrap();
            assert_eq!((found.address, found.file_offset), (expected.address, expected.file_offset), "{version}");
            println!("{version} {source:?}: {:?}", begin.elapsed());
        }
        std::fs::remove_file(dir.path().join(format!("stripped-{version}.so"))).unwrap();
    }
}

/// A fork that moved a field is not taken for the release that it says it is.
#[test]
fn code_that_does_not_fit_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = stripped("2.21.5", dir.path(), &["-s", "-R", ".note.gnu.build-id"]);
    let rank = entries()
        .iter()
        .find(|e| e.builds.iter().any(|b| b.version == "2.21.5" && b.machine == "x86_64" && b.package == "cu12"))
        .unwrap()
        .layout
        .comm
        .rank;
    let mut bytes = std::fs::read(&path).unwrap();
    let wanted = rank.to_le_bytes();
    for at in 0..bytes.len() - 4 {
        if bytes[at..at + 4] == wanted {
            bytes[at] ^= 0x40;
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let file = File::open(&path).unwrap();
    let nccl = NcclFile::open(&file).unwrap().unwrap();
    let error = NcclLayout::of(&nccl).unwrap_err().to_string();
    assert!(error.contains("ncclCommUserRank does not use ncclComm.rank"), "{error}");
}

#[test]
fn the_table_is_whole() {
    assert!(entries().len() >= 10, "{} layouts", entries().len());
    for entry in entries() {
        entry.layout.check().unwrap();
        assert!(entry.layout.proxy.is_some(), "{:?}", entry.builds[0]);
    }
}

/// What `strip` took away is in a file of its own, as distributions do it.
#[test]
fn a_separate_debug_file_is_as_good_as_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let debug = dir.path().join("debug");
    let status = Command::new("objcopy").arg("--only-keep-debug").arg(nccl_path("2.21.5")).arg(&debug).status();
    assert!(status.expect("binutils").success());
    let debug = File::open(debug).unwrap();
    let file = File::open(stripped("2.21.5", dir.path(), &["-s"])).unwrap();
    let mut nccl = NcclFile::open(&file).unwrap().unwrap();
    assert!(nccl.add_debug_file(&debug).unwrap());
    let layout = NcclLayout::of(&nccl).unwrap();
    assert_eq!(layout.source, LayoutSource::DebugFile);
    let whole = nccl_library("2.21.5");
    let whole = NcclFile::open(&whole).unwrap().unwrap();
    assert_eq!(nccl.function("ncclLaunchKernel").unwrap(), whole.function("ncclLaunchKernel").unwrap());
    let other = nccl_library("2.27.5");
    assert!(!nccl.add_debug_file(&other).unwrap(), "another build");
}
