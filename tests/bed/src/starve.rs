//! Starving one thread of CPU time: it is pinned to one CPU at idle priority, next to a thread of ours that never
//! sleeps. No privilege is needed, and the rest of the process runs on.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};

/// The competitor; the thread stays at idle priority, but gets its CPU back when this is dropped.
#[derive(Debug)]
pub(crate) struct Starved {
    end: Arc<AtomicBool>,
    competitor: Option<JoinHandle<()>>,
}

impl Drop for Starved {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.competitor.take() {
            drop(thread.join());
        }
    }
}

/// Thread of a process whose name begins like this; the `nth` of them.
pub(crate) fn find_thread(pid: u32, name: &str, nth: usize) -> Result<i32> {
    let tasks = format!("/proc/{pid}/task");
    let mut found = Vec::new();
    for entry in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let path = entry?.path();
        let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if comm.starts_with(name) {
            found.extend(path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<i32>().ok()));
        }
    }
    found.sort_unstable();
    found.get(nth).copied().with_context(|| format!("process {pid} has no thread called {name}"))
}

/// # Errors
/// If the kernel refuses.
fn pin(tid: i32, cpu: usize) -> Result<()> {
    // SAFETY: a CPU set is plain bits, all zero is empty; the call reads it and nothing else.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(tid, size_of_val(&set), &raw const set)
    };
    ensure!(rc == 0, "sched_setaffinity: {}", std::io::Error::last_os_error());
    Ok(())
}

/// The last CPU this process may use.
fn last_cpu() -> Result<usize> {
    // SAFETY: as in `pin`; the call fills the set.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) != 0 {
            bail!("sched_getaffinity: {}", std::io::Error::last_os_error());
        }
        set
    };
    // SAFETY: every number asked for is inside the set.
    let usable = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    (0..libc::CPU_SETSIZE as usize).rev().find(usable).context("no CPU")
}

pub(crate) fn starve(tid: i32) -> Result<Starved> {
    let cpu = last_cpu()?;
    let end = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&end);
    let competitor = std::thread::Builder::new().name("bed-starve".into()).spawn(move || {
        // thread 0 is the calling one; unpinned it would compete less, not fail
        drop(pin(0, cpu));
        while !ended.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })?;
    let starved = Starved { end, competitor: Some(competitor) };
    pin(tid, cpu)?;
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameter and nothing else.
    let rc = unsafe { libc::sched_setscheduler(tid, libc::SCHED_IDLE, &raw const param) };
    ensure!(rc == 0, "sched_setscheduler: {}", std::io::Error::last_os_error());
    Ok(starved)
}
