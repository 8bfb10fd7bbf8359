//! The sampling thread: reads NCCL's memory on its own, so that the loop never waits for a traced process.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::sync::mpsc;

use super::clock;
use crate::{
    discover::{
        layout::NcclLayout,
        regions::{self, PageMap},
        thread::{self, ThreadState},
    },
    model::{
        event::{CommFound, CommRef, Flow, FlowReport, Progress},
        ids::{MILLISECOND, Nanos, ProcId, SECOND},
    },
    sample::{
        find::{Found, List, Place},
        memory::{Process, ReadError},
        sampler::{Sample, SampleError, Sampler, Stats},
        thread as handle,
    },
};

/// Reports that wait for the loop; beyond it they are counted and dropped, as a newer one comes soon.
const QUEUE: usize = 1024;
/// A report without news is sent after this time, as a sign of life.
const SIGN_OF_LIFE: Nanos = SECOND;
/// Looks for communicators in a process that has shown none: at once, and after 4, 16 and 64 s.
const LOOKS: u32 = 4;
/// A stall is looked at more often for this long.
const FRESH: Nanos = 3 * SECOND;

/// Which communicator of which process.
pub(super) type Target = (ProcId, u64);

enum Order {
    Follow {
        target: Target,
        n_ranks: u32,
        layout: Arc<NcclLayout>,
    },
    Leave(Target),
    /// Read what a communicator says of itself.
    Identify {
        target: Target,
        tid: u32,
        layout: Arc<NcclLayout>,
    },
    /// Find the communicators of a process.
    Search(Box<Search>),
    /// The process is gone, or known by its calls.
    Drop(ProcId),
}

/// A process whose communicators are to be found.
pub(super) struct Search {
    pub(super) proc: ProcId,
    pub(super) layout: Arc<NcclLayout>,
    pub(super) list: Option<(List, u64)>,
    /// Looks taken.
    looks: u32,
    due: Nanos,
}

impl Search {
    pub(super) fn new(proc: ProcId, layout: Arc<NcclLayout>, list: Option<(List, u64)>) -> Box<Self> {
        Box::new(Self { proc, layout, list, looks: 0, due: 0 })
    }
}

/// What the thread found out.
#[derive(Debug)]
pub(super) enum News {
    Flows(FlowReport),
    /// A communicator in the memory of a process, and when it was read.
    Comm(Box<CommFound>, Nanos),
    /// NCCL holds an error for a communicator; told once.
    Error {
        target: Target,
        code: i32,
        at: Nanos,
    },
}

/// Sums over all communicators since the start.
#[derive(Debug, Default)]
pub(super) struct Totals {
    samples: AtomicU64,
    ops: AtomicU64,
    torn: AtomicU64,
    given_up: AtomicU64,
    broken: AtomicU64,
    /// Reports that the loop had no room for.
    dropped: AtomicU64,
    /// Communicators whose memory can't be read.
    failed: AtomicU64,
    /// CPU time of the thread, ns.
    cpu: AtomicU64,
}

/// [`Totals`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerCounts {
    pub stats: Stats,
    pub dropped: u64,
    pub failed: u64,
    pub cpu: Nanos,
}

impl Totals {
    fn add(&self, before: Stats, now: Stats) {
        for (total, n) in [
            (&self.samples, now.samples - before.samples),
            (&self.ops, now.ops - before.ops),
            (&self.torn, now.torn - before.torn),
            (&self.given_up, now.given_up - before.given_up),
            (&self.broken, now.broken - before.broken),
        ] {
            total.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> SamplerCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        SamplerCounts {
            stats: Stats {
                samples: get(&self.samples),
                ops: get(&self.ops),
                torn: get(&self.torn),
                given_up: get(&self.given_up),
                broken: get(&self.broken),
            },
            dropped: get(&self.dropped),
            failed: get(&self.failed),
            cpu: get(&self.cpu),
        }
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Sampling {
    orders: Sender<Order>,
    totals: Arc<Totals>,
}

impl Sampling {
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start(period: Duration) -> Result<(Self, mpsc::Receiver<News>)> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (orders, received) = channel();
        let totals = Arc::new(Totals::default());
        let period = Nanos::try_from(period.as_nanos()).unwrap_or(SECOND).max(MILLISECOND);
        let mut worker =
            Worker { period, followed: BTreeMap::new(), searches: BTreeMap::new(), sender, totals: totals.clone() };
        std::thread::Builder::new()
            .name("mycroft-sample".to_owned())
            .spawn(move || worker.run(&received))
            .context("cannot start the sampling thread")?;
        Ok((Self { orders, totals }, receiver))
    }

    pub(super) fn follow(&self, target: Target, n_ranks: u32, layout: Arc<NcclLayout>) {
        // The thread lives as long as this.
        self.orders.send(Order::Follow { target, n_ranks, layout }).ok();
    }

    pub(super) fn leave(&self, target: Target) {
        self.orders.send(Order::Leave(target)).ok();
    }

    /// Has a communicator read whose creation a thread has begun, and not ended.
    pub(super) fn identify(&self, target: Target, tid: u32, layout: Arc<NcclLayout>) {
        self.orders.send(Order::Identify { target, tid, layout }).ok();
    }

    pub(super) fn search(&self, search: Box<Search>) {
        self.orders.send(Order::Search(search)).ok();
    }

    pub(super) fn drop_search(&self, proc: ProcId) {
        self.orders.send(Order::Drop(proc)).ok();
    }

    pub(super) fn counts(&self) -> SamplerCounts {
        self.totals.counts()
    }
}

struct Worker {
    period: Nanos,
    followed: BTreeMap<Target, Followed>,
    searches: BTreeMap<ProcId, Search>,
    sender: mpsc::Sender<News>,
    totals: Arc<Totals>,
}

/// A communicator under watch.
struct Followed {
    memory: Process,
    layout: Arc<NcclLayout>,
    n_ranks: u32,
    /// `None` until it could be set up.
    sampler: Option<Sampler>,
    due: Nanos,
    last: Vec<Flow>,
    changed: Nanos,
    sent: Nanos,
    /// Handle and number of the progress thread.
    thread: Option<(u64, u32)>,
    /// The error that was told.
    error: Option<i32>,
}

impl Worker {
    fn run(&mut self, orders: &Receiver<Order>) {
        loop {
            let now = clock::now();
            let dues = self.followed.values().map(|f| f.due).chain(self.searches.values().map(|s| s.due));
            let due = dues.min().unwrap_or(now + SECOND);
            match orders.recv_timeout(Duration::from_nanos(due.saturating_sub(now))) {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) => {
                    self.search_round();
                    self.round();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Follow { target, n_ranks, layout } => {
                let now = clock::now();
                self.followed.entry(target).or_insert_with(|| Followed {
                    memory: Process::new(target.0.pid),
                    layout,
                    n_ranks,
                    sampler: None,
                    due: now,
                    last: Vec::new(),
                    changed: now,
                    sent: 0,
                    thread: None,
                    error: None,
                });
            }
            Order::Leave(target) => {
                self.followed.remove(&target);
            }
            Order::Identify { target, tid, layout } => self.identify(target, tid, &layout),
            Order::Search(search) => {
                self.searches.insert(search.proc, *search);
            }
            Order::Drop(proc) => {
                self.searches.remove(&proc);
            }
        }
    }

    fn identify(&self, (proc, ptr): Target, tid: u32, layout: &NcclLayout) {
        let memory = Process::new(proc.pid);
        if let Some(found) = (Place { memory: &memory, layout, list: None }).at(ptr)
            && self.sender.try_send(News::Comm(Box::new(describe(proc, tid, found)), clock::now())).is_err()
        {
            self.totals.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn search_round(&mut self) {
        let now = clock::now();
        let Self { searches, sender, totals, .. } = self;
        searches.retain(|_, search| {
            if search.due > now {
                return true;
            }
            match search.look() {
                Ok(found) => {
                    let at = clock::now();
                    let some = !found.is_empty();
                    for comm in found {
                        if sender.try_send(News::Comm(Box::new(comm), at)).is_err() {
                            totals.dropped.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    // One that starts has none yet, and its calls will be seen.
                    search.looks += 1;
                    search.due = clock::now() + (SECOND << (2 * search.looks).min(8));
                    !some && search.looks < LOOKS
                }
                Err(error) => {
                    tracing::debug!(pid = search.proc.pid, %error, "can't be searched");
                    totals.failed.fetch_add(1, Ordering::Relaxed);
                    false
                }
            }
        });
    }

    fn round(&mut self) {
        let now = clock::now();
        let Self { period, followed, sender, totals, .. } = self;
        for (target, f) in followed.iter_mut().filter(|(_, f)| f.due <= now) {
            match f.look(*target, totals) {
                Ok(sample) => {
                    let at = clock::now();
                    f.pace(at, *period, &sample);
                    if let Some(code) = sample.error.filter(|_| f.error.is_none()) {
                        match sender.try_send(News::Error { target: *target, code, at }) {
                            Ok(()) => f.error = Some(code),
                            // Told at the next look.
                            Err(_) => drop(totals.dropped.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                    if let Some(report) = f.report(*target, at, sample)
                        && sender.try_send(News::Flows(report)).is_err()
                    {
                        totals.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error) => {
                    // Half made, or half gone: its end is told by others.
                    tracing::debug!(pid = target.0.pid, ptr = target.1, %error, "not sampled");
                    totals.failed.fetch_add(1, Ordering::Relaxed);
                    f.sampler = None;
                    f.due = now + SECOND;
                }
            }
        }
        totals.cpu.store(clock::thread_cpu(), Ordering::Relaxed);
    }
}

impl Search {
    fn look(&self) -> Result<Vec<CommFound>, ReadError> {
        let memory = Process::new(self.proc.pid);
        let place = Place { memory: &memory, layout: &self.layout, list: self.list };
        let mut found = place.listed()?;
        if found.is_empty() {
            let proc = Path::new("/proc");
            let regions = regions::anonymous(proc, self.proc.pid).unwrap_or_default();
            let outcome = place.searched(&regions, &PageMap::open(proc, self.proc.pid))?;
            if outcome.left > 0 && outcome.found.is_empty() {
                tracing::warn!(
                    pid = self.proc.pid,
                    searched = outcome.searched,
                    left = outcome.left,
                    "no communicator found within the time for a search; one that is in use shows at its next call"
                );
            }
            found = outcome.found;
        }
        // The thread that called is not known; the main thread is as good a place to look at as any.
        Ok(found.into_iter().map(|f| describe(self.proc, self.proc.pid, f)).collect())
    }
}

fn describe(proc: ProcId, tid: u32, found: Found) -> CommFound {
    CommFound {
        comm: CommRef { proc, tid, ptr: found.address, ident: Some(found.ident) },
        collectives: found.collectives,
        by_function: found.by_function,
        name: found.name,
        init_state: found.init_state,
    }
}

impl Followed {
    fn look(&mut self, target: Target, totals: &Totals) -> Result<Sample, SampleError> {
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            none => none.insert(Sampler::new(&self.memory, self.layout.clone(), target.1, self.n_ranks)?),
        };
        let before = sampler.stats;
        let sample = sampler.sample(&self.memory);
        totals.add(before, sampler.stats);
        sample
    }

    /// When to look again: seldom while nothing is in work or all moves, often when something has just stopped.
    fn pace(&mut self, now: Nanos, period: Nanos, sample: &Sample) {
        if sample.flows != self.last {
            self.changed = now;
        }
        let working = sample.untaken || sample.flows.iter().any(|f| f.op.is_some());
        let wait = match (working, now.saturating_sub(self.changed)) {
            (false, _) => 5 * period,
            (true, 0) => 2 * period,
            (true, still) if still < FRESH => period / 2,
            (true, _) => period,
        };
        self.due = now + wait;
    }

    fn report(&mut self, target: Target, at: Nanos, sample: Sample) -> Option<FlowReport> {
        if sample.flows == self.last && at.saturating_sub(self.sent) < SIGN_OF_LIFE && self.changed != at {
            return None;
        }
        self.sent = at;
        self.last.clone_from(&sample.flows);
        let progress = self.progress(target.0.pid, sample.progress_thread);
        Some(FlowReport {
            proc: target.0,
            ptr: target.1,
            at,
            flows: sample.flows,
            untaken: sample.untaken,
            net: self.sampler.as_ref().and_then(|s| s.net().map(str::to_owned)),
            progress,
        })
    }

    fn progress(&mut self, pid: u32, thread: u64) -> Option<Progress> {
        if thread == 0 {
            return None;
        }
        let proc = Path::new("/proc");
        if self.thread.is_none_or(|(known, _)| known != thread) {
            let tids = thread::tids(proc, pid);
            let tid = handle::number(&self.memory, thread, pid, &tids).ok().flatten()?;
            self.thread = Some((thread, tid));
        }
        let tid = self.thread?.1;
        let s = ThreadState::read(proc, pid, tid)?;
        Some(Progress { tid, ran: s.ran, waited: s.waited, slices: s.slices, state: s.state })
    }
}
