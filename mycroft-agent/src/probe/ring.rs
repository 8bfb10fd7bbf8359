//! The ring buffer's reading end.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::unix::AsyncFd;

/// Events as the kernel wrote them.
pub struct Ring(AsyncFd<RingBuf<MapData>>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    /// Must be called within a tokio runtime.
    pub(super) fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        // SAFETY: the ring buffer owns its file descriptor and keeps it open until it is dropped, and the
        // `AsyncFd` owns the ring buffer.
        unsafe { AsyncFd::register(ring) }.map(Self).map_err(Into::into)
    }

    /// Waits until the kernel wakes us: it does so when much is waiting, not at every event, so the caller
    /// also looks every few ms.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn woken(&mut self) -> io::Result<()> {
        let mut guard = self.0.readable_mut().await?;
        guard.clear_ready();
        Ok(())
    }

    /// Hands every waiting event, at most `most`, to `take`, and returns their number.
    pub fn drain(&mut self, most: usize, mut take: impl FnMut(&[u8])) -> usize {
        let ring = self.0.get_mut();
        let mut n = 0;
        while n < most {
            let Some(item) = ring.next() else { break };
            take(&item);
            n += 1;
        }
        n
    }
}
