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
                    even.next_multiple_of((self.threads.saturating_sub(32) * (8 / size)).max(1))
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
            (_, Proto::Simple) => self.threads.saturating_sub(64) * 8 * (8 / size),
            (_, Proto::Ll) => self.threads * (8 / size),
            (Algo::Tree, Proto::Ll128) => self.threads * (60 / size) / 8,
            (_, Proto::Ll128) if matches!(function.coll, Coll::Broadcast | Coll::Reduce) => self.threads * (60 / size),
            (_, Proto::Ll128) => self.threads * (60 / size) / 2,
        };
        whole.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::combine::{Elem, Kind};
    use super::*;

    const RANKS: usize = 3;
    const CHANNELS: usize = 3;
    const COUNT: usize = 1_000_003;

    fn functions() -> impl Iterator<Item = Function> {
        let colls = [
            (Coll::AllReduce, Algo::Ring),
            (Coll::AllReduce, Algo::Tree),
            (Coll::AllGather, Algo::Ring),
            (Coll::Reduce, Algo::Ring),
        ];
        colls.into_iter().flat_map(|(coll, algo)| {
            let function = move |proto| Function { coll, kind: Kind::Sum, elem: Elem::F32, algo, proto };
            [Proto::Ll, Proto::Ll128, Proto::Simple].map(function)
        })
    }

    /// Every element is in one chunk of one channel.
    fn assert_covered(function: Function, rounds: impl Iterator<Item = Round>) {
        let of_round = |round: Round| (0..chunks(function, RANKS)).map(move |c| round.chunk(c));
        let mut all: Vec<_> = rounds.flat_map(of_round).filter(|(_, n)| *n > 0).collect();
        all.sort_unstable();
        let end = all.iter().fold(0, |end, (at, n)| {
            assert_eq!(*at, end, "{function:?}");
            at + n
        });
        assert_eq!(end, COUNT, "{function:?}");
    }

    #[test]
    fn shares_that_channels_work_out_make_the_whole() {
        for function in functions() {
            // as NCCL's host would set them for this count
            let (threads, slot, last_chunk) = match function.proto {
                Proto::Ll => (512, 64 << 10, 6144),
                Proto::Ll128 => (640, 600 << 10, 144_000),
                Proto::Simple => (544, 512 << 10, 128 << 10),
            };
            let channel = |nth| {
                Whole { count: COUNT, nth, channels: CHANNELS, threads, last_chunk, slot }.rounds(function, RANKS)
            };
            assert_covered(function, (0..CHANNELS).flat_map(channel));
        }
    }

    #[test]
    fn a_described_share_is_all_done() {
        for function in functions() {
            let share = |offset, len| Share { offset, len, chunk: 20_000, last_chunk: None }.rounds(function, RANKS);
            let first = 600_000 - 7;
            assert_covered(function, share(0, first).into_iter().chain(share(first, COUNT - first)));
        }
    }
}
