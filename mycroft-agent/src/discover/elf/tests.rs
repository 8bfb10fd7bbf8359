use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::discover::testing::{VERSIONS, compile, nccl_library, nccl_path};

/// What must be there in all releases that we probe in full.
const PROBED: [&str; 8] = [
    "ncclEnqueueCheck",
    "ncclLaunchKernel",
    "hostStreamPlanCallback",
    "ncclCommInitRankFunc",
    "ncclProxyProgress",
    "ncclGroupEnd",
    "ncclCommAbort",
    "ncclAllReduce",
];

#[test]
fn nvidias_libraries_are_understood() {
    let ids = [
        "55c87fca1d9f74d7e92f74e81eb04555219c8e3c",
        "2e87d0e7f2a98a3fc40945c13c095f8b7e5ef72b",
        "3c098e0640c8b4936323d594852079dac2cde793",
        "51943fef80521fbce0dafcd0e685cabf68fbd538",
        "855c15bcfbac035d484e5b6c3348bffa19387e0e",
    ];
    for (version, id) in VERSIONS.into_iter().zip(ids) {
        let file = nccl_library(version);
        let nccl = NcclFile::open(&file).unwrap().expect("it is NCCL");
        assert_eq!(nccl.machine(), Machine::X86_64);
        assert_eq!(nccl.build_id(), Some(id));
        assert_eq!(nccl.version().unwrap().unwrap().to_string(), version);
        assert!(nccl.has_symbols() && nccl.has_dwarf());
        for name in PROBED {
            let function = nccl.function(name).unwrap().unwrap_or_else(|| panic!("{version}: no {name}"));
            assert!(function.size > 16, "{version}: {name}");
        }
        assert!(nccl.function("ncclNoSuchFunction").unwrap().is_none());
        // One in transport/net.cc, one in transport/coll_net.cc.
        let error = nccl.function("sendProxyProgress").unwrap_err();
        assert_eq!(error.to_string(), "2 functions are named sendProxyProgress");
    }
}

/// Binutils agree on where a function is and how it starts.
#[test]
fn functions_are_where_readelf_sees_them() {
    let file = nccl_library("2.32.3");
    let nccl = NcclFile::open(&file).unwrap().expect("it is NCCL");
    let out = Command::new("readelf").arg("-sW").arg(nccl_path("2.32.3")).output().unwrap();
    let listing = String::from_utf8(out.stdout).unwrap();
    for (name, symbol) in [
        ("ncclEnqueueCheck", "_Z16ncclEnqueueCheckP8ncclInfo"),
        ("hostStreamPlanCallback", "_ZL22hostStreamPlanCallbackPv"),
        ("ncclGroupEnd", "ncclGroupEnd"),
    ] {
        let line = listing.lines().find(|l| l.ends_with(&format!(" {symbol}"))).unwrap();
        let mut words = line.split_whitespace().skip(1);
        let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        let size: u64 = words.next().unwrap().parse().unwrap();
        let function = nccl.function(name).unwrap().unwrap();
        assert_eq!((function.address, function.size), (address, size), "{name}");
        // The first segment of these files is mapped from offset 0 to address 0.
        assert_eq!(function.file_offset, address);
        assert_eq!(function.entry_skip, 0, "GCC 8.5 was not told to emit endbr64");
    }
}

const FIXTURE: &str = r#"
extern "C" {
__attribute__((visibility("default"))) int ncclGetVersion(int *v) { *v = 22105; return 0; }
__attribute__((visibility("default"))) int ncclCommUserRank(void *, int *r) { *r = 7; return 0; }
}
struct ncclInfo;
int ncclEnqueueCheck(ncclInfo *i) { return i != nullptr; }
namespace other { int ncclEnqueueCheck(ncclInfo *) { return 2; } }
__attribute__((section(".text.far"))) int far(int x) { return x + 1; }
static __attribute__((noinline, used)) int hidden(int x) { return x * 3; }
const char text[] = "NCCL version 2.99.1+cuda12.0";
"#;

fn fixture(dir: &Path, flags: &[&str]) -> File {
    let (source, library) = (dir.join("fixture.cc"), dir.join("fixture.so"));
    std::fs::write(&source, FIXTURE).unwrap();
    let all = [&["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,--build-id=sha1"], flags].concat();
    compile("g++", &source, &library, &all);
    File::options().read(true).write(true).open(&library).unwrap()
}

/// A page between code and data in the file, so that addresses are not offsets, and code that starts with
/// `endbr64`.
#[test]
fn addresses_become_offsets_past_the_endbr() {
    let dir = tempfile::tempdir().unwrap();
    let file = fixture(dir.path(), &["-fcf-protection=full", "-Wl,-Ttext-segment=0x200000"]);
    let nccl = NcclFile::open(&file).unwrap().expect("it is NCCL");
    for name in ["ncclEnqueueCheck", "hidden", "far", "ncclGetVersion"] {
        let function = nccl.function(name).unwrap().unwrap();
        assert_eq!(function.entry_skip, 4, "{name}");
        assert_ne!(function.address, function.file_offset, "{name}");
        let mut start = [0; 4];
        file.read_exact_at(&mut start, function.file_offset).unwrap();
        assert_eq!(start, [0xf3, 0x0f, 0x1e, 0xfa], "{name}");
    }
    let version = nccl.version().unwrap().unwrap();
    assert_eq!(version, Version { major: 2, minor: 99, patch: 1 });
    assert!(!nccl.has_dwarf());
}

#[test]
fn stripped_files_still_have_their_exports() {
    let dir = tempfile::tempdir().unwrap();
    let file = fixture(dir.path(), &["-s", "-fcf-protection=none"]);
    let nccl = NcclFile::open(&file).unwrap().expect("it is NCCL");
    assert!(!nccl.has_symbols());
    assert!(nccl.build_id().is_some_and(|id| id.len() == 40));
    assert!(nccl.function("ncclEnqueueCheck").unwrap().is_none());
    let export = nccl.function("ncclCommUserRank").unwrap().unwrap();
    assert_eq!(export.entry_skip, 0);
}

#[test]
fn other_files_are_told_apart_from_broken_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("other.c"), dir.path().join("other.so"));
    std::fs::write(&source, "int ncclGetVersion(int *v) { return *v; }").unwrap();
    compile("gcc", &source, &library, &["-shared", "-fPIC"]);
    let file = File::open(&library).unwrap();
    assert!(NcclFile::open(&file).unwrap().is_none());

    let error = NcclFile::open(&File::open(&source).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "not an ELF file");

    let file = fixture(dir.path(), &[]);
    for (offset, byte, message) in [
        (4, 1, "not a 64-bit little-endian ELF file"),
        (18, 3, "machine 3 is neither x86-64 nor aarch64"),
        (45, 0xff, "section table at 0x"),
        (54, 9, "program header table (entries of 9 bytes) is malformed"),
    ] {
        let mut was = [0];
        file.read_exact_at(&mut was, offset).unwrap();
        file.write_all_at(&[byte], offset).unwrap();
        let error = NcclFile::open(&file).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
        file.write_all_at(&was, offset).unwrap();
    }
}

/// A text that straddles two pieces is found, and one that does not end is not believed.
#[test]
fn versions_are_read_whole() {
    let all = |text: &str| versions(text.as_bytes()).map(|v| v.to_string()).collect::<Vec<_>>();
    assert_eq!(all("x NCCL version 2.27.5+cuda12.9\0"), ["2.27.5"]);
    assert_eq!(all("NCCL version 2.27.5 compiled with"), ["2.27.5"]);
    assert!(all("NCCL version 2.27.1").is_empty());
    assert!(all("NCCL version %d NCCL version mismatch, NCCL version 2.3 NCCL version 2.3.4.5 ").is_empty());
}
