//! GPUs: each does what it was given in order, and an operation ends for all its ranks together.

use super::{
    Simulation,
    fault::{Fate, Hold},
    layout::Group,
    rank::{Item, NEVER, Stream, Wait, Work},
};
use crate::event::Nanos;

impl Simulation {
    /// Gives a GPU something to do.
    pub(super) fn launch(&mut self, r: u32, stream: Stream, work: Work, t: Nanos) {
        let rank = &mut self.ranks[r as usize];
        let compute = if stream == Stream::Main { std::mem::take(&mut rank.compute) } else { 0 };
        let queue = rank.queue(stream);
        queue.items.push_back(Item { work, launched: t, compute });
        if queue.items.len() == 1 {
            self.reach(r, stream);
        }
        self.settle();
    }

    /// Lets all GPUs go on that can.
    fn settle(&mut self) {
        while let Some((r, stream, end)) = self.ended.pop() {
            let rank = &mut self.ranks[r as usize];
            let queue = rank.queue(stream);
            queue.items.pop_front();
            queue.free = end;
            let more = !queue.items.is_empty();
            let goes_on = match rank.wait {
                Wait::Sync => stream == Stream::Main && !more,
                Wait::Room(which) => which == stream,
                _ => false,
            };
            if more {
                self.reach(r, stream);
            }
            if goes_on {
                self.wake(r, end);
            }
        }
    }

    /// A GPU comes to its next operation.
    fn reach(&mut self, r: u32, stream: Stream) {
        let queue = self.ranks[r as usize].queue(stream);
        let Some(item) = queue.items.front().copied() else { return };
        let t = item.launched.max(queue.free) + item.compute;
        match item.work {
            Work::Collective(group, number) => self.reach_collective(r, stream, group, number, t),
            Work::Batch(group, number) => self.reach_batch(r, group, number, t),
        }
    }

    fn reach_collective(&mut self, r: u32, stream: Stream, group: Group, number: u64, t: Nanos) {
        let (id, member) = self.layout.comm(group, r);
        let now = self.now;
        let comm = self.comms.get_mut(id);
        if !comm.reach(member, number, t) {
            return;
        }
        let Some(instance) = comm.instance_mut(number) else { return };
        let (start, takes, differs) = (instance.start, instance.takes, instance.differs);
        let mut fate = Fate::Ends(start + takes);
        let mut slow = None;
        if differs {
            fate = Fate::Stuck { since: start, member: 0, hold: Hold::Whole };
        }
        for fault in &self.config.faults {
            let Fate::Ends(end) = fate else { break };
            if let Some(other) = fault.collective(&self.layout, id, start, end) {
                fate = other;
                slow = slow.or_else(|| fault.slows(&self.layout, id));
            }
        }
        instance.fate = Some(fate);
        instance.slow = slow;
        comm.forget(now);
        if let Fate::Ends(end) = fate {
            self.ended.extend(self.layout.members(id).map(|other| (other, stream, end)));
        }
    }

    fn reach_batch(&mut self, r: u32, group: Group, number: u64, t: Nanos) {
        let Some(batch) = self.ranks[r as usize].batch_mut(group, number) else { return };
        batch.arrived = t;
        for i in 0..batch.transfers.len() {
            self.meet(r, group, number, i, t);
        }
    }

    /// One of a batch's messages has ended.
    pub(super) fn message_ended(&mut self, r: u32, group: Group, number: u64, end: Nanos) {
        let Some(batch) = self.ranks[r as usize].batch_mut(group, number) else { return };
        batch.pending -= 1;
        batch.end = batch.end.max(end);
        if batch.pending == 0 && batch.arrived != NEVER {
            let end = batch.end;
            self.ended.push((r, Stream::Main, end));
        }
    }
}
