//! The file, pipe or socket that a thread's system call waits on.

use std::{fs, path::Path};

use super::Suspect;
use crate::event::{Fact, fact::Blocked};

pub(super) fn collect(suspect: Suspect) -> Option<Fact> {
    blocked(Path::new("/proc"), suspect).map(Fact::Blocked)
}

fn blocked(proc_root: &Path, suspect: Suspect) -> Option<Blocked> {
    let dir = proc_root.join(suspect.pid.to_string());
    let line = fs::read_to_string(dir.join(format!("task/{}/syscall", suspect.tid))).ok()?;
    let fd = descriptor(&line)?;
    let target = fs::read_link(dir.join(format!("fd/{fd}"))).ok()?;
    Some(Blocked { tid: suspect.tid, target: target.to_string_lossy().into_owned() })
}

/// The descriptor of a call whose first argument is one.
fn descriptor(line: &str) -> Option<u32> {
    const TAKES_ONE: [i64; 15] = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_flock,
        libc::SYS_ioctl,
        libc::SYS_connect,
    ];
    let mut words = line.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let fd = u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    TAKES_ONE.contains(&number).then_some(fd)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_read_that_does_not_end_names_what_it_reads() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let suspect = Suspect { pid: child.id(), tid: child.id() };
        let mut found = None;
        for _ in 0..500 {
            found = blocked(Path::new("/proc"), suspect).filter(|b| b.target.starts_with("pipe:["));
            if found.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.is_some());
        assert_eq!(blocked(Path::new("/proc"), suspect), None, "gone");
    }

    #[test]
    fn other_calls_name_no_descriptor() {
        assert_eq!(descriptor(&format!("{} 0x5 0x0", libc::SYS_read)), Some(5));
        assert_eq!(descriptor(&format!("{} 0x5 0x0", libc::SYS_futex)), None);
        for line in ["running", "-1 0x7ffc 0x7f", "", "0"] {
            assert_eq!(descriptor(line), None, "{line}");
        }
    }
}
