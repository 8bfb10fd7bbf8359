//! The end of a process that is not our child, by pidfd.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use procfs::{FromRead as _, process::Stat};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus {
    /// The code passed to `exit`, where no signal ended it.
    pub code: i32,
    pub signal: Option<i32>,
}

impl ExitStatus {
    /// From the number that `wait` gives: the low 7 bits are the signal.
    fn from_wait(status: i32) -> Self {
        let signal = status & 0x7f;
        Self { code: (status >> 8) & 0xff, signal: (signal != 0).then_some(signal) }
    }
}

/// `PIDFD_INFO_EXIT` of `linux/pidfd.h`: ask for the exit code (Linux 6.15).
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info` of `linux/pidfd.h`, its first version (64 bytes).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    ids: [u32; 11],
    exit_code: i32,
}

// `_IOWR(0xFF, 11, struct pidfd_info)`.
nix::ioctl_readwrite!(pidfd_get_info, 0xFF, 11, PidfdInfo);

/// Opens a pidfd, which becomes readable when the process ends.
///
/// # Errors
/// ESRCH if there is no such process any more.
pub fn watch_exit(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// How the process `pid` of a readable pidfd ended; `None` where the kernel does not tell.
///
/// While it is a zombie `/proc/PID/stat` tells (its pid can't be reused yet); once its parent has reaped it,
/// the pidfd does, since Linux 6.15. Asked in this order and once more, as the reaping may fall between.
pub fn exit_status(pidfd: &impl AsFd, pid: u32) -> Option<ExitStatus> {
    reaped_status(pidfd).or_else(|| zombie_status(pid)).or_else(|| reaped_status(pidfd))
}

fn zombie_status(pid: u32) -> Option<ExitStatus> {
    let stat = Stat::from_read(File::open(format!("/proc/{pid}/stat")).ok()?).ok()?;
    (stat.state == 'Z').then_some(())?;
    stat.exit_code.map(ExitStatus::from_wait)
}

fn reaped_status(pidfd: &impl AsFd) -> Option<ExitStatus> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request's size, encoded in its number, is that of `PidfdInfo`, to which the pointer is
    // valid for the call.
    unsafe { pidfd_get_info(pidfd.as_fd().as_raw_fd(), &raw mut info) }.ok()?;
    if info.mask & PIDFD_INFO_EXIT == 0 {
        return None;
    }
    Some(ExitStatus::from_wait(info.exit_code))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// Waits for the end of `sh -c script` by pidfd alone; reaped before it is asked, if `reap`.
    fn ended(script: &str, reap: bool) -> Option<ExitStatus> {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let fd = watch_exit(child.id()).unwrap();
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(10_000u16)).unwrap(), 1, "becomes readable");
        if reap {
            child.wait().unwrap();
        }
        let status = exit_status(&fd, child.id());
        child.wait().unwrap();
        status
    }

    #[test]
    fn a_zombie_tells_code_and_signal() {
        assert_eq!(ended("kill -9 $$", false).and_then(|s| s.signal), Some(9));
        assert_eq!(ended("exit 3", false), Some(ExitStatus { code: 3, signal: None }));
    }

    #[test]
    fn a_reaped_process_too_where_the_kernel_can() {
        let killed = ended("kill -9 $$", true);
        let failed = ended("exit 3", true);
        // Kernels before 6.15 can't tell; then nothing is claimed for either.
        if killed.is_some() || failed.is_some() {
            assert_eq!(killed.and_then(|s| s.signal), Some(9));
            assert_eq!(failed, Some(ExitStatus { code: 3, signal: None }));
        }
    }

    #[test]
    fn no_such_process() {
        assert_eq!(watch_exit(0x3fff_fffe).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
