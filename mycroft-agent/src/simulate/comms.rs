//! All communicators: which collectives their ranks have come to, and what became of those.

use std::collections::VecDeque;

use super::{
    fault::Fate,
    layout::{CommIx, Group, Layout},
    rank::NEVER,
};
use crate::event::{Nanos, Signature};

/// Steps that a chunk of a ring is cut into.
pub(super) const CHUNK: u64 = 4;

/// One collective over all ranks of a communicator.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub signature: Signature,
    /// A rank called something else.
    pub differs: bool,
    arrived: u32,
    /// Last arrival.
    pub start: Nanos,
    pub takes: Nanos,
    pub fate: Option<Fate>,
    /// A rank that slows it down.
    pub slow: Option<u32>,
    /// Steps on each connection, and the first in the connection's count.
    pub steps: u64,
    pub base: u64,
    /// When each rank launched it and when its GPU came to it; kept where transfers are looked at.
    pub launched: Vec<Nanos>,
    pub reached: Vec<Nanos>,
}

#[derive(Clone, Debug)]
pub(super) struct Comm {
    pub id: CommIx,
    pub ranks: u32,
    /// Some of its connections go over the network, and are looked at.
    pub watched: bool,
    /// Number of the first instance kept.
    pub first: u64,
    pub instances: VecDeque<Instance>,
    /// Steps of all collectives so far.
    steps: u64,
    joined: u32,
    /// When the last rank joined.
    pub latest: Nanos,
    /// Ranks whose creation of it has ended.
    pub made: Option<Nanos>,
}

#[derive(Debug)]
pub(super) struct Comms {
    list: Vec<Comm>,
    /// Where each kind begins.
    offsets: [usize; Group::COUNT],
}

impl Comms {
    pub(super) fn new(layout: &Layout, watched: impl Fn(CommIx) -> bool) -> Self {
        let mut list = Vec::new();
        let mut offsets = [0; Group::COUNT];
        for group in Group::ALL {
            offsets[group.index()] = list.len();
            for ix in 0..layout.count(group) {
                let id = CommIx { group, ix };
                list.push(Comm {
                    id,
                    ranks: layout.size(group),
                    watched: watched(id),
                    first: 0,
                    instances: VecDeque::new(),
                    steps: 0,
                    joined: 0,
                    latest: 0,
                    made: None,
                });
            }
        }
        Self { list, offsets }
    }

    pub(super) fn get(&self, id: CommIx) -> &Comm {
        &self.list[self.offsets[id.group.index()] + id.ix as usize]
    }

    pub(super) fn get_mut(&mut self, id: CommIx) -> &mut Comm {
        &mut self.list[self.offsets[id.group.index()] + id.ix as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Comm> {
        self.list.iter()
    }
}

impl Comm {
    /// A rank joins its creation. When all have, the time at which it is made.
    pub(super) fn join(&mut self, t: Nanos, takes: Nanos) -> Option<Nanos> {
        self.joined += 1;
        self.latest = self.latest.max(t);
        if self.joined == self.ranks {
            self.made = Some(self.latest + takes);
        }
        self.made
    }

    /// A rank launches collective `number`.
    pub(super) fn launch(&mut self, member: u32, number: u64, signature: Signature, takes: Nanos, t: Nanos) {
        while self.first + self.instances.len() as u64 <= number {
            let steps = steps(self.ranks, takes);
            let kept = if self.watched { self.ranks as usize } else { 0 };
            self.instances.push_back(Instance {
                signature,
                differs: false,
                arrived: 0,
                start: 0,
                takes,
                fate: None,
                slow: None,
                steps,
                base: self.steps,
                launched: vec![NEVER; kept],
                reached: vec![NEVER; kept],
            });
            self.steps += steps;
        }
        if let Some(instance) = self.instance_mut(number) {
            instance.differs |= instance.signature != signature;
            if let Some(at) = instance.launched.get_mut(member as usize) {
                *at = t;
            }
        }
    }

    pub(super) fn instance_mut(&mut self, number: u64) -> Option<&mut Instance> {
        let ix = number.checked_sub(self.first)?;
        self.instances.get_mut(usize::try_from(ix).ok()?)
    }

    /// A rank's GPU comes to it. Whether all are there now.
    pub(super) fn reach(&mut self, member: u32, number: u64, t: Nanos) -> bool {
        let ranks = self.ranks;
        let Some(instance) = self.instance_mut(number) else { return false };
        instance.arrived += 1;
        instance.start = instance.start.max(t);
        if let Some(at) = instance.reached.get_mut(member as usize) {
            *at = t;
        }
        instance.arrived == ranks
    }

    /// Forgets what had ended at `now`.
    pub(super) fn forget(&mut self, now: Nanos) {
        while let Some(Fate::Ends(end)) = self.instances.front().and_then(|i| i.fate) {
            if end > now {
                break;
            }
            self.instances.pop_front();
            self.first += 1;
        }
    }

    /// Number of collectives that had ended at `t`.
    pub(super) fn ended(&self, t: Nanos) -> u64 {
        let ended = |i: &&Instance| matches!(i.fate, Some(Fate::Ends(end)) if end <= t);
        self.first + self.instances.iter().take_while(ended).count() as u64
    }

    /// Steps given to a rank's connections by `t`.
    pub(super) fn steps_given(&self, member: u32, t: Nanos) -> u64 {
        let launched = |i: &&Instance| i.launched.get(member as usize).is_some_and(|at| *at <= t);
        match self.instances.iter().find(|i| !launched(i)) {
            Some(next) => next.base,
            None => self.steps,
        }
    }
}

/// Steps of a collective that takes so long: a ring's rounds, as often as its data needs.
fn steps(ranks: u32, takes: Nanos) -> u64 {
    let round = CHUNK * u64::from(ranks.max(2) - 1);
    let rounds = (takes / 100_000 / round).clamp(1, 8) + 1;
    rounds * round
}
