use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;
use crate::discover::testing::{VERSIONS, compile, nccl_library};

const FIXTURE: &str = r#"
#include <stdint.h>
typedef enum { Zero, Two = 2, Big = 200, Minus = -3 } Kind_t;
typedef struct { int inside; } Anonymous_t;
struct Base { long first; };
struct Outer; // a declaration comes first
struct Inner { char pad[3]; short deep[2][5]; };
struct Outer : Base {
    static int everywhere;
    int plain;
    unsigned low : 3, high : 7;
    union { int64_t one; double other; };
    struct { uint16_t x; struct Inner inner; } named;
    struct Inner many[4];
    volatile Anonymous_t aliased;
    void (*call)(int);
    Outer *next;
    Kind_t kind;
    char tail[];
};
namespace other { struct Hidden; }
struct other::Hidden { int place; long value; };
int Outer::everywhere;
Outer outer; const Outer *constant; Kind_t kind; other::Hidden hidden; Anonymous_t anonymous;
long f(void *p) {
    struct Local { int a; } local{1};
    return local.a + ((Outer *)p)->plain;
}
"#;

const SPECS: &[StructSpec<'static>] = &[
    StructSpec {
        name: "Outer",
        unit: None,
        fields: &[
            "first",
            "plain",
            "low",
            "high",
            "one",
            "other",
            "named.x",
            "named.inner.deep",
            "many",
            "many.deep",
            "aliased.inside",
            "call",
            "next",
            "kind",
            "tail",
            "everywhere",
            "plain.x",
            "next.plain",
            "absent",
        ],
    },
    StructSpec { name: "Anonymous_t", unit: None, fields: &["inside"] },
    StructSpec { name: "Hidden", unit: Some("fixture"), fields: &["value"] },
    StructSpec { name: "Nowhere", unit: None, fields: &["x"] },
    StructSpec { name: "Inner", unit: Some("another.cc"), fields: &[] },
];

/// The fixture's library, compiled with `flags`.
fn fixture(flags: &[&str]) -> (tempfile::TempDir, File) {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("fixture.cc"), dir.path().join("fixture.so"));
    std::fs::write(&source, FIXTURE).unwrap();
    compile("g++", &source, &library, &[&["-shared", "-fPIC", "-w"], flags].concat());
    let file = File::options().read(true).write(true).open(&library).unwrap();
    (dir, file)
}

fn plain(offset: u64, size: u64) -> Field {
    Field { offset, size, count: None, bits: None }
}

fn array(offset: u64, size: u64, count: u64) -> Field {
    Field { count: Some(count), ..plain(offset, size) }
}

fn bits(offset: u64, at: u64, size: u64) -> Field {
    Field { bits: Some(Bits { offset: at, size }), ..plain(offset, 4) }
}

#[test]
fn layouts_are_those_of_the_compiler() {
    for flags in [["-g", "-gdwarf-4"], ["-g", "-gdwarf-5"], ["-g3", "-gdwarf64"], ["-g", "-gdwarf-3"]] {
        let (_dir, file) = fixture(&flags);
        let got = read_structs(&file, SPECS).unwrap();
        let outer = got.get("Outer").unwrap();
        assert!(outer.unit.ends_with("fixture.cc"), "{flags:?} {}", outer.unit);
        assert_eq!(outer.size, 176, "{flags:?}");
        let expected = BTreeMap::from(
            [
                ("first", plain(0, 8)),
                ("plain", plain(8, 4)),
                ("low", bits(12, 0, 3)),
                ("high", bits(12, 3, 7)),
                ("one", plain(16, 8)),
                ("other", plain(16, 8)),
                ("named.x", plain(24, 2)),
                ("named.inner.deep", array(30, 20, 10)),
                ("many", array(50, 96, 4)),
                ("many.deep", array(54, 20, 10)),
                ("aliased.inside", plain(148, 4)),
                ("call", plain(152, 8)),
                ("next", plain(160, 8)),
                ("kind", plain(168, 4)),
                ("tail", array(172, 0, 0)),
            ]
            .map(|(path, field)| (path.to_owned(), field)),
        );
        assert_eq!(outer.fields, expected, "{flags:?}");
        assert_eq!(got.field("Anonymous_t", "inside"), Some(plain(0, 4)));
        assert_eq!(got.field("Hidden", "value"), Some(plain(8, 8)));
        let problems: Vec<_> = got.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "Outer.everywhere: no such field",
                "Outer.plain.x: it is no struct with fields of its own",
                "Outer.next.plain: it is no struct with fields of its own",
                "Outer.absent: no such field",
                "Nowhere: no definition",
                "Inner: no definition in a unit named *another.cc*",
            ],
            "{flags:?}"
        );
    }
}

#[test]
fn enumerators_keep_their_sign() {
    let (_dir, file) = fixture(&["-g"]);
    let dwarf = Dwarf::open(&file).unwrap();
    let expected = [("Zero", 0), ("Two", 2), ("Big", 200), ("Minus", -3)].map(|(n, v)| (n.to_owned(), v));
    assert_eq!(dwarf.enumerators("Kind_t").unwrap().unwrap(), expected);
    assert_eq!(dwarf.enumerators("Outer").unwrap(), None);
}

#[test]
fn what_cannot_be_read_is_named() {
    let (_dir, file) = fixture(&[]);
    let error = read_structs(&file, SPECS).unwrap_err();
    assert_eq!(error.to_string(), "the file has no .debug_info section, so no debug information");

    let (_dir, file) = fixture(&["-g", "-gz=zlib"]);
    let error = read_structs(&file, SPECS).unwrap_err();
    assert_eq!(error.to_string(), "section .debug_info is compressed, which is not supported");

    file.set_len(100).unwrap();
    let error = read_structs(&file, SPECS).unwrap_err();
    assert!(error.to_string().starts_with("program header table at 0x40"), "{error}");
}

/// Reading damaged input ends, in an answer or an error, and never in a panic.
#[test]
fn damaged_sections_do_no_harm() {
    let (dir, file) = fixture(&["-g", "-gdwarf-4"]);
    let pieces: Vec<(u64, u64)> = {
        let image = Image::open(&file).unwrap();
        [".debug_info", ".debug_info", ".debug_abbrev", ".debug_str"]
            .iter()
            .map(|name| image.section(name).map(|s| (s.offset, s.size)).unwrap())
            .chain([(0, 64)])
            .collect()
    };
    let whole = std::fs::read(dir.path().join("fixture.so")).unwrap();
    // In memory: thousands of rewrites would keep a disk busy.
    let file = File::from(memfd_create("damaged", MFdFlags::MFD_CLOEXEC).unwrap());
    let mut random = Random(0x6d79_6372_6f66_7421);
    let mut answers = 0;
    for round in 0..4000 {
        let (offset, size) = pieces[random.below(pieces.len() as u64) as usize];
        let mut damaged = whole.clone();
        for _ in 0..=random.below(4) {
            damaged[(offset + random.below(size)) as usize] = random.below(256) as u8;
        }
        if round % 16 == 0 {
            damaged.truncate(random.below(whole.len() as u64) as usize);
        }
        file.set_len(damaged.len() as u64).unwrap();
        file.write_all_at(&damaged, 0).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _values = Dwarf::open(&file).and_then(|d| d.enumerators("Kind_t"));
            read_structs(&file, SPECS)
        }));
        let Ok(result) = outcome else {
            panic!("round {round}");
        };
        answers += u32::from(result.is_ok());
    }
    assert!(answers > 1000, "only {answers} inputs got far enough to test anything");
}

/// xorshift64, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Names that two units give to different types are told apart.
#[test]
fn nccl_units_are_told_apart() {
    for version in VERSIONS {
        let file = nccl_library(version);
        let specs = ["transport/net.cc", "transport/coll_net.cc"].map(|unit| StructSpec {
            name: "connectMap",
            unit: Some(unit),
            fields: &["offsets"],
        });
        let got = read_structs(&file, &specs).unwrap();
        let sizes: Vec<_> = got.found.iter().flatten().map(|s| (s.unit.as_str(), s.size)).collect();
        assert_eq!(sizes.len(), 2, "{version} {:?}", got.problems);
        assert_ne!(sizes[0], sizes[1], "{version}");
    }
}
