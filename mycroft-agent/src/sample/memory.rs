//! Another process's memory, by `process_vm_readv`.
//!
//! That call only takes pages that are ordinary memory. It never asks a device driver for them, which
//! `/proc/PID/mem`, ptrace and `bpf_copy_from_user_task` do: some GPU drivers crash the kernel then.

use std::{cell::Cell, io::IoSliceMut};

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

/// Pieces that the kernel takes in one call (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// Why memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nothing is mapped there, or a device is.
    #[error("no readable memory at 0x{0:x}")]
    Unreadable(u64),
    #[error("the process is gone")]
    Gone,
    #[error("reading another process's memory is not permitted: run as root, or with CAP_SYS_PTRACE")]
    Denied,
    #[error("process_vm_readv: {0}")]
    Failed(Errno),
}

/// Bytes wanted: where they are and where they go.
#[derive(Debug)]
pub struct Piece<'b> {
    pub address: u64,
    pub into: &'b mut [u8],
}

/// Memory that can be read in pieces.
pub trait Remote {
    /// Fills every piece, or says which could not be; then the content of all is undefined.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&self, pieces: &mut [Piece<'_>]) -> Result<(), ReadError>;

    /// Fills one buffer.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn bytes(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        self.read(&mut [Piece { address, into }])
    }

    /// A 64-bit word.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn u64(&self, address: u64) -> Result<u64, ReadError> {
        let mut word = [0; 8];
        self.bytes(address, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// A 32-bit word.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn u32(&self, address: u64) -> Result<u32, ReadError> {
        let mut word = [0; 4];
        self.bytes(address, &mut word)?;
        Ok(u32::from_ne_bytes(word))
    }

    /// A text that ends with a zero byte within `limit` bytes; what is not ASCII is replaced.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn text(&self, address: u64, limit: usize) -> Result<String, ReadError> {
        let mut text = String::new();
        // In steps that stay within a page, as the text may be the last thing before a hole.
        let mut at = address;
        while text.len() < limit {
            let mut buffer = [0u8; 64];
            let room = 64 - usize::try_from(at % 64).unwrap_or(0);
            let part = &mut buffer[..room];
            self.bytes(at, part)?;
            let end = part.iter().position(|b| *b == 0);
            let visible = &part[..end.unwrap_or(part.len())];
            text.extend(visible.iter().map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' }));
            if end.is_some() {
                break;
            }
            at = at.wrapping_add(room as u64);
        }
        text.truncate(limit);
        Ok(text)
    }
}

/// The memory of a running process.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    calls: Cell<u64>,
}

impl Process {
    #[must_use]
    pub fn new(pid: u32) -> Self {
        Self { pid: Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX)), calls: Cell::new(0) }
    }

    /// System calls made so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    fn read_some(&self, pieces: &mut [Piece<'_>]) -> Result<(), ReadError> {
        let remote: Vec<_> = pieces
            .iter()
            .map(|p| RemoteIoVec { base: usize::try_from(p.address).unwrap_or(usize::MAX), len: p.into.len() })
            .collect();
        let total: usize = remote.iter().map(|r| r.len).sum();
        let mut local: Vec<_> = pieces.iter_mut().map(|p| IoSliceMut::new(p.into)).collect();
        self.calls.set(self.calls.get() + 1);
        match process_vm_readv(self.pid, &mut local, &remote) {
            Ok(n) if n == total => Ok(()),
            Ok(n) => Err(ReadError::Unreadable(stopped_at(&remote, n))),
            Err(Errno::EFAULT) => Err(ReadError::Unreadable(stopped_at(&remote, 0))),
            Err(Errno::ESRCH) => Err(ReadError::Gone),
            Err(Errno::EPERM) => Err(ReadError::Denied),
            Err(e) => Err(ReadError::Failed(e)),
        }
    }
}

impl Remote for Process {
    fn read(&self, pieces: &mut [Piece<'_>]) -> Result<(), ReadError> {
        pieces.chunks_mut(PIECES_MAX).filter(|c| !c.is_empty()).try_for_each(|c| self.read_some(c))
    }
}

/// Address of the piece that a transfer of `n` bytes did not complete.
fn stopped_at(remote: &[RemoteIoVec], n: usize) -> u64 {
    let mut left = n;
    for r in remote {
        if left < r.len {
            return r.base as u64;
        }
        left -= r.len;
    }
    remote.last().map_or(0, |r| r.base as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Process {
        Process::new(std::process::id())
    }

    fn address<T: ?Sized>(value: &T) -> u64 {
        std::ptr::from_ref(value).cast::<u8>() as u64
    }

    #[test]
    fn many_pieces_arrive_in_their_places() {
        let source: Vec<u64> = (0..3000).collect();
        let process = own();
        let mut words = vec![[0u8; 8]; source.len()];
        let mut pieces: Vec<_> =
            words.iter_mut().zip(&source).map(|(w, s)| Piece { address: address(s), into: w }).collect();
        process.read(&mut pieces).unwrap();
        assert!(words.iter().zip(&source).all(|(w, s)| u64::from_ne_bytes(*w) == *s));
        assert_eq!(process.calls(), 3, "{PIECES_MAX} pieces a call");
        assert_eq!(process.u64(address(&source[7])), Ok(7));
    }

    #[test]
    fn the_piece_that_fails_is_named() {
        let good = 5u64;
        let (mut a, mut b) = ([0; 8], [0; 8]);
        let mut pieces = [Piece { address: address(&good), into: &mut a }, Piece { address: 0x10, into: &mut b }];
        assert_eq!(own().read(&mut pieces), Err(ReadError::Unreadable(0x10)));
        assert_eq!(own().u64(u64::MAX - 3), Err(ReadError::Unreadable(u64::MAX - 3)));
    }

    #[test]
    fn texts_end_at_their_zero_or_the_limit() {
        let text = b"NCCL \xff net, and a text that is longer than one step of sixty-four bytes\0rest";
        let at = address(&text[..]);
        let read = own().text(at, 200).unwrap();
        assert_eq!(read, "NCCL ? net, and a text that is longer than one step of sixty-four bytes");
        assert_eq!(own().text(at, 4).unwrap(), "NCCL");
    }

    #[test]
    fn a_process_that_is_gone_is_told() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(Process::new(child.id()).u64(0x1000), Err(ReadError::Gone));
    }
}
