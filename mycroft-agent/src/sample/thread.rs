//! From a thread's handle to its number.

use super::memory::{ReadError, Remote};

/// The number lies in this part of glibc's `struct pthread` (at 720 with glibc 2.36 on x86-64), behind the header.
const FROM: usize = 64;
const SIZE: usize = 2304;

/// Which of the process's threads the handle (`pthread_t`, the address of glibc's `struct pthread`) stands for.
///
/// The place of the number depends on glibc's release, so it is not assumed: it is the first word that is the number of
/// one of the process's threads. The main thread's is the process's own, which old releases also note in every thread,
/// so it is left out.
///
/// # Errors
/// If the memory can't be read.
pub fn number(memory: &impl Remote, handle: u64, pid: u32, tids: &[u32]) -> Result<Option<u32>, ReadError> {
    let mut bytes = [0u8; SIZE];
    memory.bytes(handle, &mut bytes)?;
    let words = bytes[FROM..].chunks_exact(4).filter_map(|w| Some(u32::from_ne_bytes(w.try_into().ok()?)));
    Ok(words.into_iter().find(|w| *w != pid && tids.contains(w)))
}
