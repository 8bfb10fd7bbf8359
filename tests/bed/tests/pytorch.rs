//! A job like PyTorch's: events are done when the GPU has got there, and probes on the runtime's functions work.

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use common::{LONG, alone, job, releases};
use mycroft_bed::{Fault, Job};
use object::{Object, ObjectSegment, ObjectSymbol};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

const RUNTIME: &str = "libcudart.so.12";

/// Where a function begins in a library's file.
fn offset(library: &Path, function: &str) -> Result<u64> {
    let bytes = std::fs::read(library)?;
    let elf = object::File::parse(&*bytes)?;
    let symbol = elf.dynamic_symbols().find(|s| s.name() == Ok(function)).context("no such function")?;
    let at = symbol.address();
    let holds = |s: &object::Segment<'_, '_>| (s.address()..s.address() + s.size()).contains(&at);
    let segment = elf.segments().find(holds).context("a function outside the file")?;
    Ok(at - segment.address() + segment.file_range().0)
}

/// Counts a thread's calls of a function in a library.
fn count(library: &Path, function: &str, tid: u32) -> Result<Counter> {
    let file = CString::new(library.as_os_str().as_bytes())?;
    // the crate's own uprobe is no event in its version 0.7
    let mut builder = Builder::new(Software::DUMMY);
    let attributes = builder.attrs_mut();
    attributes.type_ = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?.trim().parse()?;
    attributes.config = 0;
    attributes.uprobe_path = file.as_ptr() as u64;
    attributes.probe_offset = offset(library, function)?;
    let mut counter = builder.observe_pid(tid as i32).include_kernel().build()?;
    counter.enable()?;
    Ok(counter)
}

/// The watchdog's thread.
fn watchdog(job: &Job, rank: usize) -> Result<u32> {
    for task in std::fs::read_dir(format!("/proc/{}/task", job.rank(rank).pid()))? {
        let task = task?;
        if std::fs::read_to_string(task.path().join("comm"))? == "pt_nccl_watchdg\n" {
            return Ok(task.file_name().to_string_lossy().parse()?);
        }
    }
    bail!("rank {rank} has no watchdog")
}

#[test]
fn works_are_done_when_their_kernels_are() {
    let _alone = alone();
    for release in releases() {
        let job = job(&release).ranks(2).like_pytorch(true).iters(8);
        let job = job.fault(Fault::GpuStall { rank: 1, collective: 4, step: 1 }).start().unwrap();
        job.wait_iteration(4, LONG).unwrap();
        let done = || job.ranks().map(|r| r.works_done()).collect::<Vec<_>>();
        let begin = Instant::now();
        while done() != [4, 4] {
            assert!(begin.elapsed() < LONG, "NCCL {release}: {:?} {}", done(), job.describe());
            std::thread::sleep(Duration::from_millis(5));
        }
        // several looks of the watchdogs later
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(done(), [4, 4], "NCCL {release}: {}", job.describe());
        job.inject(Fault::GpuResume { rank: 1 }).unwrap();
        job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}: {e:#}"));
        assert_eq!(done(), [8, 8], "NCCL {release}: {}", job.describe());
    }
}

#[test]
fn probes_on_the_runtime_work() {
    let _alone = alone();
    let job = job(&releases()[0]).ranks(2).like_pytorch(true).pause(Duration::from_millis(5)).start().unwrap();
    job.wait_iteration(2, LONG).unwrap();
    let library = job.dir().join(RUNTIME);
    let pid = job.rank(0).pid();
    assert!(std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains(RUNTIME));
    let mut record = count(&library, "cudaEventRecord", pid).unwrap();
    let mut synchronize = count(&library, "cudaStreamSynchronize", pid).unwrap();
    let mut query = count(&library, "cudaEventQuery", watchdog(&job, 0).unwrap()).unwrap();
    let first = job.rank(0).completed();
    job.wait_iteration(first + 60, LONG).unwrap();
    // two records an iteration; the counts are read while the rank goes on
    let (records, waits, queries) = (record.read().unwrap(), synchronize.read().unwrap(), query.read().unwrap());
    assert!(records >= 118 && waits >= 58 && queries > 0, "{records} records, {waits} waits, {queries} queries");
    job.stop();
    job.wait_success(LONG).unwrap();
}
