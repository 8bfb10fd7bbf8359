//! How a class makes the scenario of a seed and a size.

use super::*;

impl Maker {
    pub(super) fn new(seed: u64, ranks: u32) -> Self {
        let mut config = Config::healthy(seed, ranks, 0);
        let step = config.workload.step;
        let mut random = Rand64::new(u128::from(seed) | 1 << 64);
        // A communicator's habits are known after some steps.
        let at = BEGIN + 9 * SECOND + 12 * step + random.rand_range(0..2 * step);
        config.length = at - BEGIN + 20 * SECOND + 2 * step;
        Self { config, truth: Truth { exact: true, at, ..Truth::default() }, random }
    }

    pub(super) fn layout(&self) -> Layout {
        self.config.layout
    }

    pub(super) fn rank(&mut self) -> u32 {
        let world = u64::from(self.layout().world());
        self.random.rand_range(0..world) as u32
    }

    /// A rank whose ring neighbour is on another host.
    pub(super) fn at_edge(&mut self, group: Group) -> u32 {
        let layout = self.layout();
        let mut rank = self.rank();
        while layout.host(layout.next(group, rank)) == layout.host(rank) {
            rank = (rank + layout.tp) % layout.world();
        }
        rank
    }

    /// The job is watched for so many more steps: what is slow shows over time.
    pub(super) fn steps_more(&mut self, steps: u64) {
        self.config.length += steps * self.config.workload.step;
    }

    pub(super) fn fault(&mut self, kind: Kind, rules: &'static [&'static str], culprits: Vec<u32>) {
        self.config.faults.push(Fault { at: self.truth.at, until: None, kind });
        self.truth.rules = rules;
        self.truth.culprits.push(culprits);
    }

    pub(super) fn blocked(&mut self, idle: Idle) {
        let rank = self.rank();
        self.fault(Kind::HostBlocked { rank, idle }, &["MYC001"], vec![rank]);
    }

    pub(super) fn dies(&mut self, exit: Exit) {
        let rank = self.rank();
        self.fault(Kind::Dies { rank, exit }, &["MYC002"], vec![rank]);
    }

    pub(super) fn stopped(&mut self, debugger: bool) {
        let rank = self.rank();
        self.fault(Kind::Stopped { rank, debugger }, &["MYC003"], vec![rank]);
    }

    pub(super) fn differs(&mut self, group: Group, what: Differs) {
        let rank = self.rank();
        self.fault(Kind::Differs { rank, group, what }, &["MYC004"], vec![rank]);
    }

    /// A rank that can be late in every step.
    pub(super) fn slow(&mut self, kind: Kind, culprits: Vec<u32>) {
        self.steps_more(30);
        self.fault(kind, LATE, culprits);
    }

    pub(super) fn slow_net(&mut self, kind: Kind, culprits: Vec<u32>) {
        self.steps_more(30);
        self.fault(kind, SLOW_LINK, culprits);
        self.truth.exact = false;
    }

    pub(super) fn on_host(&self, host: u32) -> Vec<u32> {
        let layout = self.layout();
        (0..layout.world()).filter(|r| layout.host(*r) == host).collect()
    }

    /// A rank and the one that it sends to in its data parallel ring, on another host.
    pub(super) fn link(&mut self) -> (u32, u32) {
        let from = self.at_edge(Group::Dp);
        (from, self.layout().next(Group::Dp, from))
    }

    /// Two ranks that are in no communicator together but the one of all.
    pub(super) fn two_apart(&mut self) -> (u32, u32) {
        let (layout, a) = (self.layout(), self.rank());
        let together = |b: u32| {
            Group::ALL.iter().filter(|g| **g != Group::World).any(|g| layout.comm(*g, a).0 == layout.comm(*g, b).0)
        };
        let mut b = self.rank();
        while together(b) || layout.host(a) == layout.host(b) {
            b = (b + 1) % layout.world();
        }
        (a, b)
    }

    pub(super) fn nothing(&mut self) {
        self.truth.rules = &[];
    }
}
