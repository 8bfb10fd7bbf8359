//! Words of the control file that the stand-in CUDA library reads and writes too (`tests/bed-cuda` includes this file).
//!
//! The file is words of eight bytes, all accessed atomically: a header of one page, a page with NCCL's unique ids,
//! then a block per rank.

/// Page that holds the header.
pub(crate) const PAGE: usize = 4096;
/// Where the ranks' blocks begin, and how many words one has.
pub(crate) const RANKS_AT: usize = 2 * PAGE;
pub(crate) const RANK_WORDS: usize = 64;

/// Header words.
pub(crate) const H_MAGIC: usize = 0;
pub(crate) const H_RANKS: usize = 1;
pub(crate) const MAGIC: u64 = 0x6d79_6372_6f66_7401;

/// Kernels that the emulated GPU has begun.
pub(crate) const R_LAUNCHES: usize = 6;
/// GPU stall: armed, collective number, step; the emulation writes 1 to the last once it stands still.
pub(crate) const R_STALL: usize = 40;
pub(crate) const R_STALL_COLLECTIVE: usize = 41;
pub(crate) const R_STALL_STEP: usize = 42;
pub(crate) const R_STALLED: usize = 43;
/// Set to 1: the emulated GPU moves no data (used to show that the data check can fail).
pub(crate) const R_NO_DATA: usize = 44;

/// Byte offset of a word of a rank's block.
pub(crate) const fn rank_word(rank: usize, word: usize) -> usize {
    RANKS_AT + (rank * RANK_WORDS + word) * 8
}
