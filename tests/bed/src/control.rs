//! The control file: how a job's harness and its ranks see each other while they run.
//!
//! Every rank and the harness map it; words are accessed atomically. What the emulated GPU needs of it is in
//! `control_words`, the rest is here.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use crate::control_words::{
    H_MAGIC, H_RANKS, MAGIC, PAGE, R_LAUNCHES, R_NO_DATA, R_STALL, R_STALL_COLLECTIVE, R_STALL_STEP, R_STALLED,
    RANK_WORDS, RANKS_AT, rank_word,
};

/// How many unique ids rank 0 has published, and the iteration before which every rank ends (0: none).
const H_IDS: usize = 2;
const H_STOP_AT: usize = 3;
const ID_LEN: usize = 128;
/// Communicators a job may have.
pub const MAX_COMMS: usize = PAGE / ID_LEN;

const R_PHASE: usize = 0;
const R_ENTERED: usize = 1;
const R_COMPLETED: usize = 2;
const R_WRONG: usize = 3;
const R_INIT_US: usize = 4;
const R_WORKS_DONE: usize = 5;
/// Fault slots: kind, iteration, argument.
const R_FAULTS: usize = 16;
const FAULT_WORDS: usize = 3;
const FAULT_SLOTS: usize = 8;

/// NCCL's unique id.
pub type UniqueId = [u8; ID_LEN];

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Starting,
    Connecting,
    Running,
    /// Done with its iterations, waiting for the others.
    Finished,
    /// Its communicators are destroyed.
    Left,
    Failed,
}

impl Phase {
    fn from_word(word: u64) -> Phase {
        use Phase::*;
        [Starting, Connecting, Running, Finished, Left].get(word as usize).copied().unwrap_or(Failed)
    }
}

/// A fault as a rank sees it: a number for its kind, the iteration it strikes at, and an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub kind: u64,
    pub at: u64,
    pub arg: u64,
}

/// A mapped control file.
#[derive(Debug)]
pub struct Control {
    base: usize,
    len: usize,
    ranks: usize,
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing that borrows from it outlives this value.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) };
    }
}

impl Control {
    pub(crate) fn create(path: &Path, ranks: usize) -> Result<Control> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        file.set_len((RANKS_AT + ranks * RANK_WORDS * 8) as u64)?;
        drop(file);
        let mut control = Control::map(path)?;
        control.ranks = ranks;
        control.header(H_RANKS).store(ranks as u64, Ordering::Relaxed);
        control.header(H_MAGIC).store(MAGIC, Ordering::Release);
        Ok(control)
    }

    /// Maps the file of a job that is there.
    pub fn open(path: &Path) -> Result<Control> {
        let mut control = Control::map(path).with_context(|| path.display().to_string())?;
        ensure!(control.header(H_MAGIC).load(Ordering::Acquire) == MAGIC, "{} is no control file", path.display());
        control.ranks = usize::try_from(control.header(H_RANKS).load(Ordering::Relaxed))?;
        ensure!(control.len >= rank_word(control.ranks, 0), "{} is cut short", path.display());
        Ok(control)
    }

    fn map(path: &Path) -> Result<Control> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = usize::try_from(file.metadata()?.len())?;
        ensure!(len >= RANKS_AT, "too short");
        let how = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a whole file touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, how, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            bail!("cannot map: {}", std::io::Error::last_os_error());
        }
        Ok(Control { base: at as usize, len, ranks: 0 })
    }

    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len, "word outside the control file");
        // SAFETY: inside the mapping, aligned, and every process accesses it atomically.
        unsafe { &*((self.base + offset) as *const AtomicU64) }
    }

    fn header(&self, word: usize) -> &AtomicU64 {
        self.at(word * 8)
    }

    pub(crate) fn word(&self, rank: usize, word: usize) -> &AtomicU64 {
        self.at(rank_word(rank, word))
    }

    fn get(&self, rank: usize, word: usize) -> u64 {
        self.word(rank, word).load(Ordering::Acquire)
    }

    fn put(&self, rank: usize, word: usize, value: u64) {
        self.word(rank, word).store(value, Ordering::Release);
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Publishes the next communicator's id.
    pub fn publish_id(&self, id: &UniqueId) {
        let index = self.header(H_IDS).load(Ordering::Acquire) as usize;
        for (i, word) in id.chunks_exact(8).enumerate() {
            let value = word.iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
            self.at(PAGE + index * ID_LEN + i * 8).store(value, Ordering::Relaxed);
        }
        self.header(H_IDS).store(index as u64 + 1, Ordering::Release);
    }

    /// Waits for a communicator's id.
    pub fn await_id(&self, index: usize) -> UniqueId {
        while self.header(H_IDS).load(Ordering::Acquire) as usize <= index {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut id = [0; ID_LEN];
        for (i, word) in id.chunks_exact_mut(8).enumerate() {
            let value = self.at(PAGE + index * ID_LEN + i * 8).load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_le_bytes());
        }
        id
    }

    pub fn phase(&self, rank: usize) -> Phase {
        Phase::from_word(self.get(rank, R_PHASE))
    }

    pub fn set_phase(&self, rank: usize, phase: Phase) {
        self.put(rank, R_PHASE, phase as u64);
    }

    /// Iterations whose collective the rank has called or is about to call.
    pub fn entered(&self, rank: usize) -> u64 {
        self.get(rank, R_ENTERED)
    }

    pub fn set_entered(&self, rank: usize, iterations: u64) {
        self.put(rank, R_ENTERED, iterations);
    }

    /// Iterations that the rank has completed.
    pub fn completed(&self, rank: usize) -> u64 {
        self.get(rank, R_COMPLETED)
    }

    pub fn set_completed(&self, rank: usize, iterations: u64) {
        self.put(rank, R_COMPLETED, iterations);
    }

    /// Elements that were wrong so far.
    pub fn wrong(&self, rank: usize) -> u64 {
        self.get(rank, R_WRONG)
    }

    pub fn add_wrong(&self, rank: usize, elements: u64) {
        self.word(rank, R_WRONG).fetch_add(elements, Ordering::AcqRel);
    }

    pub fn init_time(&self, rank: usize) -> Duration {
        Duration::from_micros(self.get(rank, R_INIT_US))
    }

    pub fn set_init_time(&self, rank: usize, time: Duration) {
        self.put(rank, R_INIT_US, time.as_micros() as u64);
    }

    /// Works that the watchdog of a job like PyTorch has found done.
    pub fn works_done(&self, rank: usize) -> u64 {
        self.get(rank, R_WORKS_DONE)
    }

    pub fn add_works_done(&self, rank: usize, works: u64) {
        self.word(rank, R_WORKS_DONE).fetch_add(works, Ordering::AcqRel);
    }

    /// Kernels that the emulated GPU has begun.
    pub fn launches(&self, rank: usize) -> u64 {
        self.get(rank, R_LAUNCHES)
    }

    pub fn stop_at(&self) -> Option<u64> {
        Some(self.header(H_STOP_AT).load(Ordering::Acquire)).filter(|at| *at > 0)
    }

    pub(crate) fn set_stop_at(&self, iteration: u64) {
        self.header(H_STOP_AT).store(iteration, Ordering::Release);
    }

    /// The faults a rank has to apply itself.
    pub fn faults(&self, rank: usize) -> impl Iterator<Item = Slot> {
        (0..FAULT_SLOTS).filter_map(move |i| {
            let word = R_FAULTS + i * FAULT_WORDS;
            let kind = self.get(rank, word);
            (kind != 0).then(|| Slot { kind, at: self.get(rank, word + 1), arg: self.get(rank, word + 2) })
        })
    }

    pub(crate) fn add_fault(&self, rank: usize, slot: Slot) -> Result<()> {
        let free = (0..FAULT_SLOTS).map(|i| R_FAULTS + i * FAULT_WORDS).find(|w| self.get(rank, *w) == 0);
        let word = free.with_context(|| format!("rank {rank} has {FAULT_SLOTS} faults already"))?;
        self.put(rank, word + 1, slot.at);
        self.put(rank, word + 2, slot.arg);
        self.put(rank, word, slot.kind);
        Ok(())
    }

    pub(crate) fn stall_gpu(&self, rank: usize, collective: u64, step: u64) {
        self.put(rank, R_STALL_COLLECTIVE, collective);
        self.put(rank, R_STALL_STEP, step);
        self.put(rank, R_STALL, 1);
    }

    pub(crate) fn resume_gpu(&self, rank: usize) {
        self.put(rank, R_STALL, 0);
        self.put(rank, R_STALLED, 0);
    }

    pub(crate) fn stalled(&self, rank: usize) -> bool {
        self.get(rank, R_STALLED) == 1
    }

    pub(crate) fn move_no_data(&self, rank: usize) {
        self.put(rank, R_NO_DATA, 1);
    }
}
