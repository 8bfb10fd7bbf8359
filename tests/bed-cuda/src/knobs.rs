//! What the harness can tell the emulated GPU at run time, through the job's control file (`BED_CONTROL`).

use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control_words as cw;

struct Control {
    base: usize,
    ranks: u64,
}

fn map() -> Option<Control> {
    let path = std::env::var_os("BED_CONTROL")?;
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    let file = opened.map_err(|e| report!("BED_CONTROL {}: {e}", path.display())).ok()?;
    let len = usize::try_from(file.metadata().ok()?.len()).ok()?;
    // SAFETY: a fresh shared mapping of a file that the harness made for this; it touches nothing that exists.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED || len < cw::RANKS_AT {
        report!("BED_CONTROL {}: cannot be mapped", path.display());
        return None;
    }
    // SAFETY: the header is inside the mapping, which stays for good; words are aligned and only accessed atomically.
    let header = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), cw::PAGE / 8) };
    let ranks = header[cw::H_RANKS].load(Ordering::Relaxed);
    let room = ((len - cw::RANKS_AT) / (cw::RANK_WORDS * 8)) as u64;
    if header[cw::H_MAGIC].load(Ordering::Relaxed) != cw::MAGIC || ranks > room {
        report!("BED_CONTROL {}: not a control file", path.display());
        return None;
    }
    Some(Control { base: at as usize, ranks })
}

/// A word of a rank's block; none without a control file.
fn word(rank: u64, word: usize) -> Option<&'static AtomicU64> {
    static CONTROL: OnceLock<Option<Control>> = OnceLock::new();
    let control = CONTROL.get_or_init(map).as_ref().filter(|c| rank < c.ranks)?;
    // SAFETY: the rank's block is inside the mapping (checked when it was made), which stays for good.
    Some(unsafe { &*((control.base + cw::rank_word(rank as usize, word)) as *const AtomicU64) })
}

fn value(rank: u64, name: usize) -> u64 {
    word(rank, name).map_or(0, |w| w.load(Ordering::Acquire))
}

/// Counts a kernel of this rank and returns its number, from 0.
pub(crate) fn count_launch(rank: u64) -> u64 {
    word(rank, cw::R_LAUNCHES).map_or(0, |w| w.fetch_add(1, Ordering::AcqRel))
}

/// Whether the emulated GPU has to stand still before this step of this collective.
pub(crate) fn stalls(rank: u64, collective: u64, step: u64) -> bool {
    let hit = value(rank, cw::R_STALL) == 1
        && collective >= value(rank, cw::R_STALL_COLLECTIVE)
        && (collective > value(rank, cw::R_STALL_COLLECTIVE) || step >= value(rank, cw::R_STALL_STEP));
    if hit && let Some(w) = word(rank, cw::R_STALLED) {
        w.store(1, Ordering::Release);
    }
    hit
}

pub(crate) fn moves_data(rank: u64) -> bool {
    value(rank, cw::R_NO_DATA) == 0
}
