//! What a process is doing at this moment, from `/proc`.

use std::{fs, path::Path};

use procfs::{FromRead as _, process::Stat};

/// One look at a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessState {
    /// State letter of the thread looked at; T and t if any thread says so, as a stop is the process's.
    pub state: char,
    pub tid: u32,
    /// Kernel function in which the thread sleeps.
    pub wchan: Option<String>,
    /// System call in which the thread is; `None` in user space.
    pub syscall: Option<String>,
    /// User and system time of the process in clock ticks.
    pub cpu_ticks: u64,
    pub threads: u32,
}

impl ProcessState {
    /// Looks at thread `tid` of process `pid`, or at its main thread if that one is gone. `None` if the
    /// process is gone.
    #[must_use]
    pub fn read(proc_root: &Path, pid: u32, tid: u32) -> Option<Self> {
        let dir = proc_root.join(pid.to_string());
        let process = stat(&dir)?;
        let of_thread = dir.join("task").join(tid.to_string());
        let (dir, tid, thread) = match stat(&of_thread) {
            Some(s) => (of_thread, tid, s),
            None => (dir, pid, process.clone()),
        };
        let stopped = |c: char| matches!(c, 'T' | 't');
        let state = if stopped(process.state) { process.state } else { thread.state };
        Some(Self {
            state,
            tid,
            wchan: text(&dir, "wchan").filter(|w| !w.is_empty() && w != "0"),
            syscall: text(&dir, "syscall").and_then(|s| syscall(&s)),
            cpu_ticks: process.utime + process.stime,
            threads: u32::try_from(process.num_threads).unwrap_or(0),
        })
    }
}

fn stat(dir: &Path) -> Option<Stat> {
    Stat::from_read(fs::File::open(dir.join("stat")).ok()?).ok()
}

fn text(dir: &Path, name: &str) -> Option<String> {
    fs::read_to_string(dir.join(name)).ok().map(|s| s.trim().to_owned())
}

/// `/proc/PID/syscall` starts with the call's number, or is `running`, or starts with -1 outside a call.
fn syscall(line: &str) -> Option<String> {
    let number: i64 = line.split_whitespace().next()?.parse().ok()?;
    if number < 0 {
        return None;
    }
    Some(name(number).map_or_else(|| format!("system call {number}"), str::to_owned))
}

/// Names of calls that block.
fn name(number: i64) -> Option<&'static str> {
    macro_rules! names {
        ($($call:ident = $sys:ident),* $(,)?) => {
            match number { $(n if n == libc::$sys as i64 => Some(stringify!($call)),)* _ => None }
        };
    }
    names!(
        read = SYS_read,
        write = SYS_write,
        pread64 = SYS_pread64,
        pwrite64 = SYS_pwrite64,
        readv = SYS_readv,
        writev = SYS_writev,
        nanosleep = SYS_nanosleep,
        clock_nanosleep = SYS_clock_nanosleep,
        futex = SYS_futex,
        ppoll = SYS_ppoll,
        pselect6 = SYS_pselect6,
        epoll_pwait = SYS_epoll_pwait,
        recvfrom = SYS_recvfrom,
        recvmsg = SYS_recvmsg,
        sendto = SYS_sendto,
        sendmsg = SYS_sendmsg,
        accept = SYS_accept,
        accept4 = SYS_accept4,
        connect = SYS_connect,
        wait4 = SYS_wait4,
        waitid = SYS_waitid,
        fsync = SYS_fsync,
        fdatasync = SYS_fdatasync,
        openat = SYS_openat,
        flock = SYS_flock,
        ioctl = SYS_ioctl,
        sched_yield = SYS_sched_yield,
        rt_sigsuspend = SYS_rt_sigsuspend,
        rt_sigtimedwait = SYS_rt_sigtimedwait,
        mmap = SYS_mmap,
        munmap = SYS_munmap,
        madvise = SYS_madvise,
        io_getevents = SYS_io_getevents,
    )
    .or_else(|| older(number))
}

/// Calls that only x86-64 still has.
#[cfg(target_arch = "x86_64")]
fn older(number: i64) -> Option<&'static str> {
    match number {
        libc::SYS_poll => Some("poll"),
        libc::SYS_select => Some("select"),
        libc::SYS_epoll_wait => Some("epoll_wait"),
        libc::SYS_pause => Some("pause"),
        libc::SYS_open => Some("open"),
        libc::SYS_stat => Some("stat"),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: i64) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread::sleep, time::Duration};

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    use super::*;

    fn look(pid: u32) -> ProcessState {
        ProcessState::read(Path::new("/proc"), pid, pid).unwrap()
    }

    #[test]
    fn sleeping_stopped_and_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        sleep(Duration::from_millis(200));
        let state = look(child.id());
        assert_eq!(state.state, 'S');
        assert!(state.syscall.as_deref().is_some_and(|s| s.contains("nanosleep")), "{state:?}");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP).unwrap();
        sleep(Duration::from_millis(100));
        assert_eq!(look(child.id()).state, 'T');
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ProcessState::read(Path::new("/proc"), child.id(), 1), None);
    }

    #[test]
    fn syscall_lines() {
        assert_eq!(syscall("running"), None);
        assert_eq!(syscall("-1 0x7ffc 0x7f"), None);
        assert_eq!(syscall(&format!("{} 0x1", libc::SYS_futex)), Some("futex".to_owned()));
        assert_eq!(syscall("9999 0x0"), Some("system call 9999".to_owned()));
        assert_eq!(syscall(""), None);
    }
}
