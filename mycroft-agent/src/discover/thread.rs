//! A thread of a traced process, from `/proc`.

use std::{fs, path::Path};

use procfs::{
    FromRead as _,
    process::{Schedstat, Stat},
};

/// One look at a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// As in `/proc/PID/stat`.
    pub state: char,
    /// Time on a CPU, ns.
    pub ran: u64,
    /// Time that it was ready to run and waited for a CPU, ns.
    /// Grows only when it gets a CPU at last.
    pub waited: u64,
    /// Times that it was put on a CPU.
    pub slices: u64,
}

impl ThreadState {
    /// `None` if it is gone, or the kernel keeps no such times (`CONFIG_SCHED_INFO`).
    #[must_use]
    pub fn read(proc_root: &Path, pid: u32, tid: u32) -> Option<Self> {
        let dir = proc_root.join(format!("{pid}/task/{tid}"));
        let stat = Stat::from_read(fs::File::open(dir.join("stat")).ok()?).ok()?;
        let times = Schedstat::from_read(fs::File::open(dir.join("schedstat")).ok()?).ok()?;
        Some(Self { state: stat.state, ran: times.sum_exec_runtime, waited: times.run_delay, slices: times.pcount })
    }
}

/// Threads of a process; empty if it is gone.
#[must_use]
pub fn tids(proc_root: &Path, pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(proc_root.join(format!("{pid}/task"))) else { return Vec::new() };
    tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_is_seen_to() {
        let (proc, pid) = (Path::new("/proc"), std::process::id());
        let before = tids(proc, pid);
        let (send, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while wait.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        let find = || tids(proc, pid).into_iter().filter(|t| !before.contains(t)).collect::<Vec<_>>();
        let ran = |tid: u32| ThreadState::read(proc, pid, tid).map_or(0, |s| s.ran);
        let mut busy = false;
        for _ in 0..500 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            busy |= find().into_iter().any(|t| ran(t) > 1_000_000);
            if busy {
                break;
            }
        }
        drop(send);
        thread.join().unwrap();
        assert!(busy, "a spinning thread has run for a millisecond within five seconds");
        assert_eq!(ThreadState::read(proc, pid, u32::MAX), None);
    }
}
