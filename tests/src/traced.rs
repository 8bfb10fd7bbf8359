//! A tracer that runs inside the test, so that its state can be looked at.

use std::time::{Duration, Instant};

use mycroft_agent::{
    app::{Notice, Options, Tracer},
    model::{Comm, CommId, State},
    rules::{Change, Verdict},
};

/// A tracer and all that it has told.
#[derive(Debug)]
pub struct Traced {
    pub tracer: Tracer,
    pub notices: Vec<Notice>,
    runtime: tokio::runtime::Runtime,
}

impl Traced {
    /// Starts one and waits until it has looked at all processes.
    ///
    /// # Panics
    /// Without root, or where the kernel refuses.
    #[must_use]
    pub fn start(options: Options) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let tracer = {
            let _inside = runtime.enter();
            Tracer::start(options).expect("these tests need root and BPF")
        };
        let mut traced = Self { tracer, notices: Vec::new(), runtime };
        traced.until(10.0, "the first search", |t| t.tracer.searched());
        traced.run(0.2);
        traced
    }

    #[must_use]
    pub fn state(&self) -> &State {
        self.tracer.state()
    }

    /// Runs the loop for this many seconds.
    ///
    /// # Panics
    /// If the loop fails.
    pub fn run(&mut self, seconds: f64) {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            self.step();
        }
    }

    /// Runs the loop until `done`, which it must be within `seconds`.
    ///
    /// # Panics
    /// If it takes longer.
    pub fn until(&mut self, seconds: f64, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while !done(self) {
            assert!(Instant::now() < end, "{what}: not within {seconds} s; told so far: {:#?}", self.notices);
            self.step();
        }
    }

    fn step(&mut self) {
        let Self { tracer, notices, runtime } = self;
        notices.extend(runtime.block_on(tracer.next()).expect("the loop goes on"));
    }

    /// Communicators of the load library: other NCCL jobs may run on this host, and their hashes are random
    /// 64-bit numbers.
    pub fn comms(&self) -> impl Iterator<Item = &Comm> {
        self.state().comms.values().filter(|c| is_load(c.id))
    }

    /// Operations seen of the load library.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.comms().flat_map(|c| c.members.values()).map(|m| m.launches + m.pending.len() as u64).sum()
    }

    /// Verdicts raised so far on communicators of the load library.
    #[must_use]
    pub fn raised(&self) -> Vec<&Verdict> {
        self.notices
            .iter()
            .filter_map(|n| match n {
                Notice::Verdict(c) => match &**c {
                    Change::Raised(v) if is_load(v.comm) => Some(v),
                    Change::Raised(_) | Change::Updated(_) | Change::Cleared(_) => None,
                },
                _ => None,
            })
            .collect()
    }

    /// Whether a process has been found and its library's probes are in.
    #[must_use]
    pub fn knows(&self, pid: u32) -> bool {
        self.state().processes.values().any(|p| p.id.pid == pid && !p.nccl.is_empty())
    }

    /// Whether a process has ended.
    #[must_use]
    pub fn saw_end_of(&self, pid: u32) -> bool {
        self.notices.iter().any(|n| matches!(n, Notice::Ended { pid: p, .. } if *p == pid))
    }
}

fn is_load(id: CommId) -> bool {
    id.hash < 1 << 24
}
