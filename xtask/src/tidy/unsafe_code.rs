//! `unsafe` stands only in files that cannot do without, each with the reason.

use super::repo::{Problem, Repo};

/// A file, or a folder with its `/`, and why.
const ALLOWED: &[(&str, &str)] = &[
    ("mycroft-ebpf/", "kernel helpers take raw pointers, and the memory read is another process's"),
    ("mycroft-agent/src/discover/exit.rs", "waits for a process that is no child, by its pidfd"),
    ("mycroft-agent/src/app/exits.rs", "registers a pidfd with the runtime, which wants a promise that it stays open"),
    ("mycroft-agent/src/ingest/decode.rs", "its tests make bytes out of the kernel's structs"),
    ("mycroft-common/src/memory.rs", "makes plain values out of bytes, and promises which types are plain"),
    ("mycroft-agent/src/probe/", "map values are promised to be plain bytes, and links are made by system calls"),
    ("tests/bed-cuda/", "is a C library to NCCL"),
    ("tests/bed-nvml/", "is a C library to NCCL"),
    ("tests/bed-cudart/", "is a C library to an application"),
    (
        "tests/bed/src/",
        "calls NCCL, a C library, shares memory with its ranks, and prepares them between fork and exec",
    ),
];

pub(super) fn allowed(repo: &Repo) -> Vec<Problem> {
    let covered = |path: &str| ALLOWED.iter().any(|(a, _)| path == *a || a.ends_with('/') && path.starts_with(a));
    let mut problems = Vec::new();
    for (file, code) in repo.rust().filter(|(file, _)| !covered(&file.path)) {
        let what = "`unsafe` here: move it, or give this file and a reason in xtask/src/tidy/unsafe_code.rs";
        problems.extend(code.lines_of("unsafe").map(|n| file.problem(n, what)));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        allowed(&Repo::of(&[(path, text)])).len()
    }

    #[test]
    fn only_where_it_is_allowed() {
        assert_eq!(count("mycroft-agent/src/model/op.rs", "fn f() { unsafe { g() } }"), 1);
        assert_eq!(count("mycroft-agent/src/model/op.rs", "#[unsafe(no_mangle)] fn f() {}"), 1);
        assert_eq!(count("mycroft-agent/src/model/op.rs", "// unsafe\n#![deny(unsafe_op_in_unsafe_fn)]"), 0);
        assert_eq!(count("mycroft-ebpf/src/emit.rs", "unsafe fn f() {}"), 0);
        assert_eq!(count("mycroft-agent/src/discover/exit.rs", "unsafe { g() }"), 0);
        assert_eq!(count("mycroft-agent/src/discover/exit.rs.rs", "unsafe { g() }"), 1);
    }

    #[test]
    fn every_entry_has_a_reason() {
        assert!(ALLOWED.iter().all(|(_, reason)| reason.len() > 10));
    }
}
