//! The end of processes, told by pidfds within milliseconds.

use std::os::fd::OwnedFd;

use tokio::{io::Interest, io::unix::AsyncFd, sync::mpsc, task::JoinHandle};

use crate::{discover::exit, model::Exit};

/// A process ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub pid: u32,
    pub exit: Exit,
}

/// Watches processes and sends their ends.
#[derive(Debug)]
pub(super) struct Exits {
    sender: mpsc::UnboundedSender<Ended>,
}

impl Exits {
    /// The channel is unbounded on purpose: it holds at most one message a watched process.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Ended>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender }, receiver)
    }

    /// Watches `pid`. If it is gone already, that is what is sent.
    pub(super) fn watch(&self, pid: u32) -> Option<JoinHandle<()>> {
        match exit::watch_exit(pid) {
            Ok(fd) => Some(tokio::spawn(wait(pid, fd, self.sender.clone()))),
            Err(e) => {
                tracing::debug!(pid, error = %e, "gone before it could be watched");
                // The receiver lives as long as the tracer.
                self.sender.send(Ended { pid, exit: Exit::Unknown }).ok();
                None
            }
        }
    }
}

async fn wait(pid: u32, fd: OwnedFd, sender: mpsc::UnboundedSender<Ended>) {
    // SAFETY: the `AsyncFd` owns the pidfd and keeps it open until it is dropped.
    let fd = match unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) } {
        Ok(fd) => fd,
        Err(e) => {
            tracing::warn!(pid, error = ?e, "can't watch for its end");
            return;
        }
    };
    if let Err(e) = fd.readable().await {
        tracing::warn!(pid, error = %e, "can't watch for its end");
        return;
    }
    let exit = match exit::exit_status(fd.get_ref(), pid) {
        Some(s) => match s.signal {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(s.code),
        },
        None => Exit::Unknown,
    };
    // No receiver: the tracer is gone, and nobody wants to know.
    sender.send(Ended { pid, exit }).ok();
}
