//! The ring collectives: in which order a rank takes, combines and passes on its chunks.

use super::block::{Aborted, Block};
use super::combine::Reduction;
use super::conn::{End, Way};
use super::func::{Coll, Function};
use super::place::Field;
use super::rounds::Round;
use super::step::{Cut, Step};

/// A channel's part of a collective, in elements.
pub(super) struct Part {
    pub(super) send: *const u8,
    pub(super) recv: *mut u8,
    pub(super) root: i32,
    /// Elements of the whole collective, per rank.
    pub(super) count: usize,
    pub(super) rounds: Vec<Round>,
    pub(super) op: Reduction,
}

struct Ring<'b, 'a> {
    block: &'b Block<'a>,
    part: &'b Part,
    cut: Cut,
    from: [End<'a>; 1],
    to: [End<'a>; 1],
}

/// Does one rank's side of `part`.
pub(super) fn run(block: &Block<'_>, function: Function, part: &Part) -> Result<(), Aborted> {
    let layout = block.layout;
    let in_two = !matches!(function.coll, Coll::Broadcast | Coll::Reduce);
    let (proto, cut) = (function.proto, Cut::new(block, function.proto, in_two));
    let prev = block.channel.get(layout.channel.prev);
    let next = block.channel.get(layout.channel.next);
    let mut ring = Ring {
        block,
        part,
        cut,
        from: [End::open(block, prev, Way::Recv, 0, proto, cut.unit())],
        to: [End::open(block, next, Way::Send, 0, proto, cut.unit())],
    };
    // SAFETY: the launch's buffers are valid for its counts, as NCCL requires of its caller.
    let result = unsafe {
        if function.coll == Coll::AllReduce { ring.all_reduce() } else { ring.chunk_by_chunk(function.coll) }
    };
    ring.from.into_iter().chain(ring.to).for_each(End::close);
    result
}

impl Ring<'_, '_> {
    fn input(&self, at: usize) -> *const u8 {
        self.part.send.wrapping_add(at * self.part.op.elem.size())
    }

    fn output(&self, at: usize) -> *mut u8 {
        self.part.recv.wrapping_add(at * self.part.op.elem.size())
    }

    /// The user's rank `distance` places on in the ring.
    fn user_rank(&self, distance: usize) -> usize {
        let ranks = self.block.channel.follow(self.block.layout.channel.user_ranks);
        ranks.get(Field::<i32>::new(0).nth(distance)) as usize
    }

    /// One step: `arrive` and `pass` say whether it takes from the previous and gives to the next rank.
    ///
    /// # Safety
    /// The buffers are valid for `n` elements.
    unsafe fn step(
        &mut self,
        arrive: bool,
        pass: bool,
        input: Option<*const u8>,
        output: Option<*mut u8>,
        n: usize,
    ) -> Result<(), Aborted> {
        let finish = arrive && input.is_some() && output.is_some();
        let from = if arrive { &mut self.from[..] } else { &mut [] };
        let to = if pass { &mut self.to[..] } else { &mut [] };
        let step = Step { from, to, input, output, finish };
        // SAFETY: by this function's contract.
        unsafe { step.run(self.block, &self.part.op, self.cut, n) }
    }

    /// # Safety
    /// The part's buffers are valid for its counts.
    unsafe fn all_reduce(&mut self) -> Result<(), Aborted> {
        let ranks = self.block.ranks as usize;
        let index = self.block.channel.get(self.block.layout.channel.index) as usize;
        for round in &self.part.rounds {
            // where the chunk lies that has come `hops` ranks, and how long it is
            let locate = |hops: usize| round.chunk((index + ranks - hops) % ranks);
            // SAFETY: `locate` stays inside the part.
            unsafe {
                let (at, n) = locate(1);
                self.step(false, true, Some(self.input(at)), None, n)?;
                for hops in 2..ranks {
                    let (at, n) = locate(hops);
                    self.step(true, true, Some(self.input(at)), None, n)?;
                }
                let (at, n) = locate(0);
                self.step(true, true, Some(self.input(at)), Some(self.output(at)), n)?;
                for hops in 1..ranks - 1 {
                    let (at, n) = locate(hops);
                    self.step(true, true, None, Some(self.output(at)), n)?;
                }
                let (at, n) = locate(ranks - 1);
                self.step(true, false, None, Some(self.output(at)), n)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// The part's buffers are valid for its counts.
    unsafe fn chunk_by_chunk(&mut self, coll: Coll) -> Result<(), Aborted> {
        for round in &self.part.rounds {
            let (at, n) = round.chunk(0);
            // SAFETY: the chunk lies inside the part.
            unsafe {
                match coll {
                    Coll::AllGather => self.all_gather(at, n)?,
                    Coll::ReduceScatter => self.reduce_scatter(at, n)?,
                    Coll::Broadcast => self.broadcast(at, n)?,
                    Coll::Reduce => self.reduce(at, n)?,
                    Coll::AllReduce | Coll::SendRecv => super::unsupported("this is no collective in chunks"),
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The buffers are valid for the chunk, in every rank's share.
    unsafe fn all_gather(&mut self, at: usize, n: usize) -> Result<(), Aborted> {
        let ranks = self.block.ranks as usize;
        let share = |ring: &Self, distance: usize| ring.output(at + ring.user_rank(distance) * ring.part.count);
        let (input, own) = (self.input(at), share(self, 0));
        // SAFETY: by this function's contract.
        unsafe {
            self.step(false, true, Some(input), (input != own.cast_const()).then_some(own), n)?;
            for hops in 1..ranks - 1 {
                let output = share(self, ranks - hops);
                self.step(true, true, None, Some(output), n)?;
            }
            let output = share(self, 1);
            self.step(true, false, None, Some(output), n)
        }
    }

    /// # Safety
    /// The buffers are valid for the chunk, in every rank's share.
    unsafe fn reduce_scatter(&mut self, at: usize, n: usize) -> Result<(), Aborted> {
        let ranks = self.block.ranks as usize;
        let share = |ring: &Self, distance: usize| ring.input(at + ring.user_rank(distance) * ring.part.count);
        // SAFETY: by this function's contract.
        unsafe {
            let input = share(self, ranks - 1);
            self.step(false, true, Some(input), None, n)?;
            for hops in 2..ranks {
                let input = share(self, ranks - hops);
                self.step(true, true, Some(input), None, n)?;
            }
            let (input, output) = (share(self, 0), self.output(at));
            self.step(true, false, Some(input), Some(output), n)
        }
    }

    /// # Safety
    /// The buffers are valid for the chunk.
    unsafe fn broadcast(&mut self, at: usize, n: usize) -> Result<(), Aborted> {
        let (input, output, root) = (self.input(at), self.output(at), self.part.root);
        // SAFETY: by this function's contract.
        unsafe {
            if self.block.rank == root {
                self.step(false, true, Some(input), (input != output.cast_const()).then_some(output), n)
            } else {
                let last = self.user_rank(1) == root as usize;
                self.step(true, !last, None, Some(output), n)
            }
        }
    }

    /// # Safety
    /// The buffers are valid for the chunk.
    unsafe fn reduce(&mut self, at: usize, n: usize) -> Result<(), Aborted> {
        let (input, root) = (self.input(at), self.part.root);
        // SAFETY: by this function's contract.
        unsafe {
            if self.block.rank == root {
                let output = self.output(at);
                self.step(true, false, Some(input), Some(output), n)
            } else {
                let first = self.user_rank(self.block.ranks as usize - 1) == root as usize;
                self.step(!first, true, Some(input), None, n)
            }
        }
    }
}
