//! What is made to go wrong, and what it does to launches and transfers.

use super::layout::{CommIx, Group, Layout};
use crate::event::{Exit, Nanos};

/// Something goes wrong at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub at: Nanos,
    /// `None`: for ever.
    pub until: Option<Nanos>,
    pub kind: Kind,
}

/// What a rank's host does instead of launching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Sleeps in a system call.
    Sleeps,
    /// Waits for storage.
    Disk,
    /// Computes.
    Busy,
}

/// In what a rank's call differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differs {
    Function,
    Count,
    Datatype,
    Root,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The host of the rank launches nothing.
    HostBlocked {
        rank: u32,
        idle: Idle,
    },
    Dies {
        rank: u32,
        exit: Exit,
    },
    /// By a signal, or by a debugger.
    Stopped {
        rank: u32,
        debugger: bool,
    },
    /// The rank's next collective of this kind is another than the others'.
    Differs {
        rank: u32,
        group: Group,
        what: Differs,
    },
    /// The rank calls two communicators in another order than the others.
    Swapped {
        rank: u32,
    },
    /// The rank leaves out one operation of this kind in each step.
    Drifts {
        rank: u32,
        group: Group,
    },
    /// The rank leaves out its next receive.
    NoRecv {
        rank: u32,
    },
    /// The rank's next send goes to another rank.
    WrongPeer {
        rank: u32,
    },
    /// The rank's next receive expects more than was sent.
    WrongSize {
        rank: u32,
    },
    /// The rank's GPU does not go on: in operations of this kind, or in any.
    GpuStill {
        rank: u32,
        group: Option<Group>,
    },
    /// The rank's proxy thread gets no CPU.
    ProxyStarved {
        rank: u32,
    },
    /// What `from` sends to `to` does not arrive.
    LinkCut {
        from: u32,
        to: u32,
        both: bool,
    },
    /// The rank's network card is down: nothing leaves, nothing arrives.
    NicDown {
        rank: u32,
    },
    /// Transfers from `from` to `to` take so many times as long.
    SlowLink {
        from: u32,
        to: u32,
        factor: u32,
    },
    SlowNic {
        rank: u32,
        factor: u32,
    },
    /// The rank's GPU needs so much longer in every step.
    SlowGpu {
        rank: u32,
        extra: Nanos,
    },
    /// The rank's host needs so much longer in every step.
    SlowHostThread {
        rank: u32,
        extra: Nanos,
    },
    /// The GPUs of all ranks of a host need so much longer in every step.
    SlowMachine {
        host: u32,
        extra: Nanos,
    },
    /// The network of a host is so many times slower.
    SlowMachineNet {
        host: u32,
        factor: u32,
    },
    /// The rank's proxy stands still for so long, once a step.
    ProxyDelay {
        rank: u32,
        extra: Nanos,
    },
    /// Everybody's GPU needs so many percent of the usual time.
    JobSlow {
        percent: u32,
    },
    /// NCCL reports an error on the rank; the others follow.
    Errors {
        rank: u32,
    },
    /// The rank does not join the creation of this communicator.
    InitAbsent {
        rank: u32,
        group: Group,
    },
}

/// Where a transfer hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Gpu,
    Proxy,
    /// The edge to the next rank of the ring, or the message itself.
    Edge,
    /// The edges to and from the rank.
    Edges,
    /// Nothing of it moves, wherever one looks.
    Whole,
}

/// What becomes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Ends(Nanos),
    /// Stuck since then at this rank of the communicator.
    Stuck {
        since: Nanos,
        member: u32,
        hold: Hold,
    },
}

impl Fault {
    /// The rank at which a transfer among the ranks of `comm` is held, if this fault touches it: by what, how many times
    /// longer it takes, and how much.
    fn touch(&self, layout: &Layout, comm: CommIx) -> Option<Touch> {
        let member = |rank: u32| {
            let (own, member) = layout.comm(comm.group, rank);
            (own == comm).then_some(member)
        };
        let net = |rank: u32| {
            let before = {
                let n = layout.size(comm.group);
                layout.rank(comm, (member(rank)? + n - 1) % n)
            };
            let host = layout.host(rank);
            (layout.host(layout.next(comm.group, rank)) != host || layout.host(before) != host).then_some(())
        };
        let edge = |from: u32, to: u32| (layout.next(comm.group, from) == to).then(|| member(from)).flatten();
        let stop = |member, hold| Some(Touch { member, hold, factor: 0, extra: 0 });
        let slow = |member, factor| Some(Touch { member, hold: Hold::Edge, factor, extra: 0 });
        match self.kind {
            Kind::GpuStill { group: Some(group), .. } if group != comm.group => None,
            Kind::Dies { rank, .. } | Kind::GpuStill { rank, .. } => stop(member(rank)?, Hold::Gpu),
            Kind::Errors { rank } => stop(member(rank)?, Hold::Gpu).filter(|_| net(rank).is_some()),
            Kind::Stopped { rank, .. } | Kind::ProxyStarved { rank } => {
                let at = member(rank)?;
                net(rank)?;
                stop(at, Hold::Proxy)
            }
            Kind::LinkCut { from, to, both } => {
                let forth = edge(from, to);
                let back = if both { edge(to, from) } else { None };
                stop(forth.or(back)?, Hold::Edge)
            }
            Kind::NicDown { rank } => {
                let at = member(rank)?;
                net(rank)?;
                stop(at, Hold::Edges)
            }
            Kind::SlowLink { from, to, factor } => slow(edge(from, to)?, factor),
            Kind::SlowNic { rank, factor } => {
                let at = member(rank)?;
                net(rank)?;
                slow(at, factor)
            }
            Kind::SlowMachineNet { host, factor } => {
                let on_host = layout.members(comm).find(|r| layout.host(*r) == host)?;
                net(on_host)?;
                slow(member(on_host)?, factor)
            }
            Kind::ProxyDelay { rank, extra } => {
                let at = member(rank)?;
                net(rank)?;
                // Once a step: the operation that moves most.
                (comm.group == Group::Dp).then_some(Touch { member: at, hold: Hold::Proxy, factor: 1, extra })
            }
            _ => None,
        }
    }

    /// What this fault makes of a collective that would move from `start` to `end`.
    #[must_use]
    pub fn collective(&self, layout: &Layout, comm: CommIx, start: Nanos, end: Nanos) -> Option<Fate> {
        if end <= self.at || self.until.is_some_and(|u| u <= start) {
            return None;
        }
        let touch = self.touch(layout, comm)?;
        Some(touch.apply(self, start, end))
    }

    /// The same for a message between two ranks.
    #[must_use]
    pub fn message(&self, layout: &Layout, ends: [u32; 2], start: Nanos, end: Nanos) -> Option<Fate> {
        if end <= self.at || self.until.is_some_and(|u| u <= start) {
            return None;
        }
        let [src, dst] = ends;
        let net = layout.host(src) != layout.host(dst);
        let one_of = |rank: u32| rank == src || rank == dst;
        // In a message the sender is 0 and the receiver 1.
        let place = |rank: u32| u32::from(rank == dst);
        let touch = |member, hold, factor| Touch { member, hold, factor, extra: 0 };
        let touch = match self.kind {
            Kind::Dies { rank, .. } | Kind::GpuStill { rank, group: None } if one_of(rank) => {
                touch(place(rank), Hold::Gpu, 0)
            }
            Kind::Stopped { rank, .. } | Kind::ProxyStarved { rank } if net && one_of(rank) => {
                touch(place(rank), Hold::Proxy, 0)
            }
            Kind::Errors { rank } if net && one_of(rank) => touch(place(rank), Hold::Gpu, 0),
            Kind::LinkCut { from, to, both } if (from, to) == (src, dst) || both && (to, from) == (src, dst) => {
                touch(0, Hold::Edge, 0)
            }
            Kind::NicDown { rank } if net && one_of(rank) => touch(0, Hold::Edge, 0),
            Kind::SlowLink { from, to, factor } if (from, to) == (src, dst) => touch(0, Hold::Edge, factor),
            Kind::SlowNic { rank, factor } if net && one_of(rank) => touch(0, Hold::Edge, factor),
            Kind::SlowMachineNet { host, factor } if net && [src, dst].iter().any(|r| layout.host(*r) == host) => {
                touch(0, Hold::Edge, factor)
            }
            _ => return None,
        };
        Some(touch.apply(self, start, end))
    }

    /// The rank at whose connection to the next a collective is slowed down, if this fault does that.
    #[must_use]
    pub fn slows(&self, layout: &Layout, comm: CommIx) -> Option<u32> {
        self.touch(layout, comm).filter(|t| t.factor > 1).map(|t| t.member)
    }

    #[must_use]
    pub const fn active(&self, t: Nanos) -> bool {
        let over = match self.until {
            Some(until) => until <= t,
            None => false,
        };
        self.at <= t && !over
    }
}

/// How a fault meets a transfer. `factor` 0: it stops it.
#[derive(Clone, Copy, Debug)]
struct Touch {
    member: u32,
    hold: Hold,
    factor: u32,
    extra: Nanos,
}

impl Touch {
    fn apply(&self, fault: &Fault, start: Nanos, end: Nanos) -> Fate {
        let since = start.max(fault.at);
        if self.factor > 0 {
            let rest = end - since;
            let longer = rest.saturating_mul(u64::from(self.factor) - 1) + self.extra;
            return Fate::Ends(end + longer);
        }
        match fault.until {
            Some(until) => Fate::Ends(end + until.saturating_sub(since)),
            None => Fate::Stuck { since, member: self.member, hold: self.hold },
        }
    }
}
