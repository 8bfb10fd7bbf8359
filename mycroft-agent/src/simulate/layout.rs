//! Which ranks form which communicator, and which host each runs on.
//!
//! Ranks are numbered as Megatron numbers them: tensor parallel innermost, then data, then pipeline. Everything is
//! computed from the number, so that 16,384 ranks need no tables.

/// A kind of communicator; every rank is in one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Tensor parallel: within a host.
    Tp,
    /// Pipeline parallel: sends and receives between stages.
    Pp,
    /// Data parallel: gradients and parameters, across hosts.
    Dp,
    /// Experts or context: a part of the data parallel group.
    Ep,
    /// All ranks.
    World,
    /// The ranks of `Dp` once more: a small operation a step for which nobody waits.
    Coord,
}

impl Group {
    pub const ALL: [Self; 6] = [Self::Tp, Self::Pp, Self::Dp, Self::Ep, Self::World, Self::Coord];
    pub const COUNT: usize = Self::ALL.len();

    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What the fourth dimension is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fourth {
    /// Expert parallel: all to all, as grouped sends and receives.
    Experts,
    /// Context parallel: AllGather.
    Context,
}

/// How a job is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub tp: u32,
    pub pp: u32,
    pub dp: u32,
    /// Divides `dp`.
    pub ep: u32,
    pub fourth: Fourth,
    pub per_host: u32,
}

/// A communicator: its kind and its number within the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommIx {
    pub group: Group,
    pub ix: u32,
}

impl Layout {
    /// Usual cuts for a number of ranks (a power of two, 8 to 16,384).
    #[must_use]
    pub fn of(ranks: u32) -> Self {
        let (tp, pp, ep, per_host, fourth) = match ranks {
            0..=8 => (2, 2, 2, 2, Fourth::Experts),
            9..=16 => (2, 2, 2, 4, Fourth::Context),
            17..=64 => (4, 4, 2, 8, Fourth::Experts),
            65..=256 => (8, 4, 4, 8, Fourth::Context),
            257..=1024 => (8, 8, 4, 8, Fourth::Experts),
            1025..=4096 => (8, 8, 8, 8, Fourth::Context),
            _ => (8, 16, 8, 8, Fourth::Context),
        };
        let dp = (ranks / (tp * pp)).max(ep);
        Self { tp, pp, dp, ep, fourth, per_host }
    }

    #[must_use]
    pub const fn world(&self) -> u32 {
        self.tp * self.pp * self.dp
    }

    #[must_use]
    pub const fn hosts(&self) -> u32 {
        self.world().div_ceil(self.per_host)
    }

    #[must_use]
    pub const fn host(&self, rank: u32) -> u32 {
        rank / self.per_host
    }

    #[must_use]
    pub const fn stage(&self, rank: u32) -> u32 {
        rank / (self.tp * self.dp)
    }

    /// Ranks in a communicator of this kind.
    #[must_use]
    pub const fn size(&self, group: Group) -> u32 {
        match group {
            Group::Tp => self.tp,
            Group::Pp => self.pp,
            Group::Dp | Group::Coord => self.dp,
            Group::Ep => self.ep,
            Group::World => self.world(),
        }
    }

    /// Communicators of this kind.
    #[must_use]
    pub const fn count(&self, group: Group) -> u32 {
        self.world() / self.size(group)
    }

    /// The communicator of this kind that a rank is in, and its rank there.
    #[must_use]
    pub const fn comm(&self, group: Group, rank: u32) -> (CommIx, u32) {
        let (t, d, p) = (rank % self.tp, rank / self.tp % self.dp, self.stage(rank));
        let (ix, member) = match group {
            Group::Tp => (rank / self.tp, t),
            Group::Pp => (t + self.tp * d, p),
            Group::Dp | Group::Coord => (t + self.tp * p, d),
            Group::Ep => ((t + self.tp * p) * (self.dp / self.ep) + d / self.ep, d % self.ep),
            Group::World => (0, rank),
        };
        (CommIx { group, ix }, member)
    }

    /// The job's number of a communicator's rank.
    #[must_use]
    pub const fn rank(&self, comm: CommIx, member: u32) -> u32 {
        match comm.group {
            Group::Tp => comm.ix * self.tp + member,
            Group::Pp => comm.ix + self.tp * self.dp * member,
            Group::Dp | Group::Coord => self.at(comm.ix % self.tp, member, comm.ix / self.tp),
            Group::Ep => {
                let blocks = self.dp / self.ep;
                let (block, rest) = (comm.ix % blocks, comm.ix / blocks);
                self.at(rest % self.tp, block * self.ep + member, rest / self.tp)
            }
            Group::World => member,
        }
    }

    const fn at(&self, t: u32, d: u32, p: u32) -> u32 {
        t + self.tp * (d + self.dp * p)
    }

    pub fn members(&self, comm: CommIx) -> impl Iterator<Item = u32> {
        let layout = *self;
        (0..self.size(comm.group)).map(move |m| layout.rank(comm, m))
    }

    /// The next rank of a rank in the ring of its communicator.
    #[must_use]
    pub const fn next(&self, group: Group, rank: u32) -> u32 {
        let (comm, member) = self.comm(group, rank);
        self.rank(comm, (member + 1) % self.size(group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_where_its_communicator_says() {
        for ranks in [8, 16, 64, 256, 1024] {
            let layout = Layout::of(ranks);
            assert_eq!(layout.world(), ranks);
            for group in Group::ALL {
                let mut seen = vec![0; layout.count(group) as usize];
                for rank in 0..ranks {
                    let (comm, member) = layout.comm(group, rank);
                    assert_eq!(layout.rank(comm, member), rank, "{group:?} of {ranks}");
                    seen[comm.ix as usize] += 1;
                }
                assert!(seen.iter().all(|n| *n == layout.size(group)), "{group:?} of {ranks}");
            }
        }
    }

    #[test]
    fn tensor_parallel_stays_within_a_host_and_data_parallel_leaves_it() {
        for ranks in [8, 16, 64, 256, 1024, 4096, 16384] {
            let layout = Layout::of(ranks);
            for rank in (0..ranks).step_by(7) {
                assert_eq!(layout.host(layout.next(Group::Tp, rank)), layout.host(rank));
                let (dp, _) = layout.comm(Group::Dp, rank);
                assert!(layout.members(dp).any(|r| layout.host(r) != layout.host(rank)), "{ranks}");
            }
        }
    }
}
