//! `mycroft check`: what this machine offers, and what to do about what is missing.

#![expect(clippy::print_stdout, reason = "the command's output")]

use std::{collections::BTreeMap, fs::File, os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

use anyhow::Result;

use super::{FINDING, HEALTHY, UNKNOWN, args::Check};
use crate::{
    app::Library,
    discover::{
        layout_cache::LayoutCache,
        process::{LibraryRef, Scanner},
    },
    probe::{
        Features, Prober, Settings,
        features::{Finding, Grade},
    },
    report::json::{CheckRecord, Line, Record},
};

/// Exit code 0: all is there; 1: works with less; 2: tracing can't work.
pub(super) fn run(args: &Check) -> Result<u8> {
    let mut findings = Features::probe(Path::new("/")).findings;
    findings.push(programs());
    let mut libraries = mapped()?;
    for path in &args.library {
        libraries.push((open(path), "not mapped".to_owned()));
    }
    if libraries.is_empty() {
        findings.push(Finding {
            what: "NCCL",
            grade: Grade::Good,
            found: "no process maps a libnccl now; Mycroft attaches when one does".to_owned(),
            remedy: None,
        });
    }
    for (library, users) in libraries {
        findings.push(match library {
            Ok(library) => describe(&library, &users),
            Err(why) => Finding {
                what: "NCCL",
                grade: Grade::Degraded,
                found: why,
                remedy: Some("this library can't be traced".to_owned()),
            },
        });
    }
    for f in &findings {
        print(f, args.json);
    }
    Ok(match findings.iter().map(|f| f.grade).max() {
        Some(Grade::Missing) => UNKNOWN,
        Some(Grade::Degraded) => FINDING,
        _ => HEALTHY,
    })
}

/// Whether the kernel takes our programs.
fn programs() -> Finding {
    // The ring buffer wants a runtime to wait in.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let loaded = match runtime {
        Ok(rt) => rt.block_on(async { Prober::load(Settings::default()).map(|_| ()).map_err(|e| e.to_string()) }),
        Err(e) => Err(e.to_string()),
    };
    match loaded {
        Ok(()) => Finding {
            what: "programs",
            grade: Grade::Good,
            found: "the kernel accepts all eBPF programs".to_owned(),
            remedy: None,
        },
        Err(why) => Finding {
            what: "programs",
            grade: Grade::Missing,
            found: why,
            remedy: Some("mend what is said above this line".to_owned()),
        },
    }
}

type Found = (Result<Library, String>, String);

/// Every library file that a process maps, with how many map it.
fn mapped() -> Result<Vec<Found>> {
    let report = Scanner::new(Path::new("/proc")).scan()?;
    let mut files: BTreeMap<(u64, u64), (LibraryRef, Vec<u32>)> = BTreeMap::new();
    for p in report.appeared {
        files.entry((p.library.dev, p.library.ino)).or_insert_with(|| (p.library, Vec::new())).1.push(p.pid);
    }
    let mut layouts = LayoutCache::new(None);
    let mut list: Vec<Found> = files
        .into_values()
        .map(|(library, pids)| {
            let read = Library::read(&library, &mut layouts).map_err(|why| format!("{}: {why}", library.path));
            (read, format!("mapped by {} processes", pids.len()))
        })
        .collect();
    list.extend(report.closed.into_iter().map(|(_, why)| (Err(why), String::new())));
    Ok(list)
}

fn open(path: &Path) -> Result<Library, String> {
    let named = |e: String| format!("{}: {e}", path.display());
    let file = File::open(path).map_err(|e| named(e.to_string()))?;
    let meta = file.metadata().map_err(|e| named(e.to_string()))?;
    let library = LibraryRef {
        path: path.display().to_string(),
        dev: meta.dev(),
        ino: meta.ino(),
        file: Arc::new(file),
        root: None,
    };
    Library::read(&library, &mut LayoutCache::new(None)).map_err(named)
}

fn describe(library: &Library, users: &str) -> Finding {
    let version = if library.version.is_empty() { "of unknown version" } else { &library.version };
    let found = format!(
        "NCCL {version}, {}, build id {}, {users}; {} of {} probes have a place{}",
        library.path,
        if library.build_id.is_empty() { "none" } else { &library.build_id },
        library.plan.points.len(),
        crate::probe::Program::TABLE.len(),
        library.layout.as_ref().map_or_else(String::new, |l| format!(", layout from {}", l.source.label())),
    );
    let grade = if library.problems.is_empty() { Grade::Good } else { Grade::Degraded };
    let remedy = (!library.problems.is_empty()).then(|| library.problems.join("; "));
    Finding { what: "NCCL", grade, found, remedy }
}

fn print(f: &Finding, json: bool) {
    if json {
        println!(
            "{}",
            Line::text(Record::Check(CheckRecord {
                what: f.what.to_owned(),
                grade: f.grade.label().to_owned(),
                found: f.found.clone(),
                remedy: f.remedy.clone(),
            }))
        );
        return;
    }
    println!("{:<9} {:<14} {}", f.grade.label(), f.what, f.found);
    if let Some(remedy) = &f.remedy {
        println!("{:<24} -> {remedy}", "");
    }
}
