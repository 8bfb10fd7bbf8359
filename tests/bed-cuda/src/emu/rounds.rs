//! How a channel cuts its share of a collective into rounds and chunks, in elements.

use super::func::{Algo, Coll, Function, Proto};

/// One pass: chunk `c` lies at `base + c * stride`, cut off at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    base: usize,
    stride: usize,
    chunk: usize,
    end: usize,
}

impl Round {
    /// Place and length of a chunk.
    pub(super) fn chunk(&self, index: usize) -> (usize, usize) {
        let at = self.base + index * self.stride;
        (at, self.end.saturating_sub(at).min(self.chunk))
    }
}

/// Chunks of a round: a ring's AllReduce has one for every rank.
fn chunks(function: Function, ranks: usize) -> usize {
    if function.coll == Coll::AllReduce && function.algo == Algo::Ring { ranks } else { 1 }
}

/// A share that the launch describes (from 2.20 on).
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Where it begins, how long it is, and how long a chunk of it.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) chunk: usize,
    /// Chunk of an AllReduce's last, short round; worked out if the launch does not say.
    pub(super) last_chunk: Option<usize>,
}

impl Share {
    pub(super) fn rounds(&self, function: Function, ranks: usize) -> Vec<Round> {
        let chunks = chunks(function, ranks);
        let end = self.offset + self.len;
        let round = |begin: usize| {
            let left = self.len - begin;
            let chunk = if chunks == 1 || left >= chunks * self.chunk {
                self.chunk
            } else {
                let grain = 16 / function.elem.size();
                self.last_chunk.unwrap_or_else(|| left.div_ceil(chunks).next_multiple_of(grain))
            };
            Round { base: self.offset + begin, stride: chunk, chunk, end }
        };
        (0..self.len).step_by((chunks * self.chunk).max(1)).map(round).collect()
    }
}

/// What a channel works its share out from (up to 2.19).
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) count: usize,
    /// This channel is the `nth` of `channels`.
    pub(super) nth: usize,
    pub(super) channels: usize,
    pub(super) threads: usize,
    pub(super) last_chunk: usize,
    /// Bytes of a connection's slot.
    pub(super) slot: usize,
}

impl Whole {
    pub(super) fn rounds(&self, function: Function, ranks: usize) -> Vec<Round> {
        let chunks = chunks(function, ranks);
        let size = function.elem.size();
        let full = self.full_chunk(function);
        let all = self.channels * chunks * full;
        let round = |begin: usize| {
            let left = self.count - begin;
            let chunk = match (function.algo, function.proto) {
                (Algo::Tree, _) if all > self.count => {
                    let least = self.channels * self.least_chunk(function);
                    self.count.div_ceil(least) * self.least_chunk(function)
                }
                (Algo::Tree, _) => full,
                (_, Proto::Simple) => {
                    let even = full.min(left.div_ceil(self.channels * chunks));
                    even.next_multiple_of((self.threads - 32) * (8 / size))
                }
                (_, Proto::Ll) if function.coll != Coll::AllReduce => {
                    if left < all {
                        self.last_chunk
                    } else {
                        full
                    }
                }
                _ => {
                    let least = self.least_chunk(function);
                    full.min(left.div_ceil(self.channels * chunks * least) * least)
                }
            };
            // with the lines protocols, the channels' chunks of a ring's AllReduce lie next to each other
            let (nth, stride) = match function.proto {
                Proto::Simple => (self.nth * chunks, chunk),
                _ => (self.nth, self.channels * chunk),
            };
            Round { base: begin + nth * chunk, stride, chunk, end: self.count }
        };
        (0..self.count).step_by(all.max(1)).map(round).collect()
    }

    fn full_chunk(&self, function: Function) -> usize {
        let size = function.elem.size();
        match (function.algo, function.proto) {
            (_, Proto::Ll) => self.slot / 2 / size,
            (Algo::Tree, _) => self.last_chunk,
            (_, Proto::Ll128) => self.slot * 15 / 16 / size,
            (_, Proto::Simple) => {
                let steps = if matches!(function.coll, Coll::Broadcast | Coll::Reduce) { 1 } else { 4 };
                self.slot / size * steps
            }
        }
    }

    /// What a chunk is a multiple of: what the block's threads do at once.
    fn least_chunk(&self, function: Function) -> usize {
        let size = function.elem.size();
        let whole = match (function.algo, function.proto) {
            (_, Proto::Simple) => (self.threads - 64) * 8 * (8 / size),
            (_, Proto::Ll) => self.threads * (8 / size),
            (Algo::Tree, Proto::Ll128) => self.threads * (60 / size) / 8,
            (_, Proto::Ll128) if matches!(function.coll, Coll::Broadcast | Coll::Reduce) => self.threads * (60 / size),
            (_, Proto::Ll128) => self.threads * (60 / size) / 2,
        };
        whole.max(1)
    }
}
