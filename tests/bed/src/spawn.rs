//! Starting processes that die with this one.
//!
//! The kernel sends the death signal when the *thread* that started a process ends, so all are started from one thread
//! that lives as long as the harness.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

type Request = (Command, Sender<io::Result<Child>>);

fn spawner() -> io::Result<Sender<Request>> {
    static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    if SPAWNER.get().is_none() {
        let (requests, incoming) = channel::<Request>();
        std::thread::Builder::new().name("bed-spawn".into()).spawn(move || {
            for (mut command, answer) in incoming {
                if answer.send(command.spawn()).is_err() {
                    return;
                }
            }
        })?;
        // should two threads race here, one sender is dropped and its thread ends
        SPAWNER.get_or_init(|| Mutex::new(requests));
    }
    let sender = SPAWNER.get().ok_or_else(|| io::Error::other("no spawner"))?;
    Ok(sender.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Starts `command` with `SIGKILL` as its parent-death signal.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: both calls are plain system calls, allowed between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // the parent may have died before the call above
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(prepare) };
    let (answer, answered) = channel();
    let gone = |_| io::Error::other("the spawning thread is gone");
    spawner()?.send((command, answer)).map_err(|_| io::Error::other("the spawning thread is gone"))?;
    answered.recv().map_err(gone)?
}
