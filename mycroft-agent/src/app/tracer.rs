//! The loop's state and its steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use mycroft_common::counters::Counter;
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{
    Library, clock,
    collecting::{Collected, Collecting},
    discovery::{Discovery, Found},
    exits::{Ended, Exits},
    library::FileKey,
    look,
    sampling::{News, SamplerCounts, Sampling, Search, Target},
    snapshot::{self, Counts, Tally},
};
use crate::{
    discover::layout::NcclLayout,
    ingest::{Decoder, reconcile},
    model::{
        Body, Event, Exit, HostId, Launches, ProcId, Process, State,
        ids::{Nanos, SECOND},
        rhythm::Patience,
    },
    probe::{LibIndex, Prober, Ring, Settings},
    report::metrics::Snapshot,
    rules::{Change, Engine, View, suspect},
    sample::find::List,
};

/// Between two looks at the ring when the kernel does not wake us. At 50,000 operations a second a look
/// finds 320 KB, a twelfth of the ring.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// Between two judgements.
const JUDGE_EVERY: Duration = Duration::from_millis(250);
/// Between two looks at the state of every traced process.
const LOOK_EVERY: Nanos = SECOND;
/// A creation that takes longer than this has its communicator read, to know who is in it, and again each time.
const IDENTIFY_AFTER: Nanos = SECOND / 2;
/// A library that no process maps keeps its probes for this long, so that the next process is traced from its first
/// call. Not for ever: each container of one image is another file with probes on the same code, and they add up.
const KEEP_UNUSED: Nanos = 60 * SECOND;
/// Records taken at one go, so that a flood of events does not starve the rest of the loop.
const BATCH: usize = 65_536;

const HUNG: &str = "it hangs and is not asked again; see what it reads, or switch it off with --no-collect";

/// How to trace.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub settings: Settings,
    pub patience: Patience,
    /// Trace only these processes; empty: all.
    pub only: BTreeSet<u32>,
    /// Where layouts are cached; `None`: nowhere.
    pub cache: Option<PathBuf>,
    /// How long a library that no process maps keeps its probes; `None`: a minute.
    pub keep_unused: Option<Nanos>,
    /// Between two looks at the flows of a communicator that is at work; `None`: flows are not followed.
    pub sample: Option<Duration>,
    /// Collectors that are not to run.
    pub no_collect: BTreeSet<String>,
}

/// Something to tell.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Probes sit on a library file.
    Attached(Arc<Library>),
    /// A library can't be traced, or only in part.
    Limited { path: String, why: String },
    /// A process that maps NCCL was found.
    Process(Box<Process>),
    /// A traced process ended.
    Ended { pid: u32, exit: Exit },
    /// Verdicts changed.
    Verdict(Box<Change>),
    /// Events were lost.
    Lost(u64),
}

/// A library file that was looked at.
#[derive(Clone, Debug)]
struct Attached {
    /// `None`: it can't be traced.
    index: Option<LibIndex>,
    layout: Option<Arc<NcclLayout>>,
    /// Last moment at which a process was known to map it.
    used: Nanos,
}

/// A process under watch.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    library: Option<FileKey>,
    /// Its library could not be attached.
    blind: bool,
}

/// Everything that runs.
#[derive(Debug)]
pub struct Tracer {
    prober: Prober,
    ring: Ring,
    state: State,
    engine: Engine,
    decoder: Decoder,
    only: BTreeSet<u32>,
    launches: bool,
    keep_unused: Nanos,
    found: mpsc::Receiver<Found>,
    discovery: Discovery,
    exits: Exits,
    ended: mpsc::UnboundedReceiver<Ended>,
    sampling: Option<Sampling>,
    sampled: mpsc::Receiver<News>,
    collecting: Collecting,
    collected: mpsc::Receiver<Collected>,
    /// Communicators that are sampled.
    followed: BTreeSet<Target>,
    libraries: BTreeMap<FileKey, Attached>,
    /// Processes under watch, and the library of each where it is known.
    watched: BTreeMap<u32, Watched>,
    drain_tick: Interval,
    judge_tick: Interval,
    last_look: Nanos,
    last_identified: Nanos,
    lost_seen: u64,
    tally: Tally,
    counts: Counts,
    /// Time of the last attach.
    pub attached_at: Nanos,
}

impl Tracer {
    /// Loads the programs and starts the search for processes. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Without the privileges, or where the kernel refuses; the message says what to do.
    pub fn start(options: Options) -> Result<Self> {
        let settings = Settings { listed_only: !options.only.is_empty(), ..options.settings };
        let (prober, ring) = Prober::load(settings)?;
        let (exits, ended) = Exits::new();
        let (discovery, found) = Discovery::start(options.cache)?;
        let (sampling, sampled) = match options.sample {
            Some(period) => Sampling::start(period).map(|(s, r)| (Some(s), r))?,
            None => (None, mpsc::channel(1).1),
        };
        let (collecting, collected) = Collecting::start(&options.no_collect)?;
        let mut state = State::default();
        let now = clock::now();
        state.apply(&Event { ts: now, body: Body::Host { host: HostId(0), name: hostname() } });
        Ok(Self {
            prober,
            ring,
            state,
            engine: Engine::new(options.patience),
            decoder: Decoder { host: HostId(0) },
            only: options.only,
            launches: settings.launches,
            keep_unused: options.keep_unused.unwrap_or(KEEP_UNUSED),
            found,
            discovery,
            exits,
            ended,
            sampling,
            sampled,
            collecting,
            collected,
            followed: BTreeSet::new(),
            libraries: BTreeMap::new(),
            watched: BTreeMap::new(),
            drain_tick: ticks(DRAIN_EVERY),
            judge_tick: ticks(JUDGE_EVERY),
            last_look: 0,
            last_identified: 0,
            lost_seen: 0,
            tally: Tally::default(),
            counts: Counts::default(),
            attached_at: now,
        })
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the rules look at, as of now.
    #[must_use]
    pub fn state_view(&self) -> View<'_> {
        View::new(&self.state, &self.engine.patience)
    }

    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether the first search for processes is done.
    #[must_use]
    pub fn searched(&self) -> bool {
        self.discovery.searched()
    }

    /// Living processes that map NCCL and can't be traced.
    #[must_use]
    pub fn blind(&self) -> usize {
        self.watched.values().filter(|w| w.blind).count()
    }

    #[must_use]
    pub fn metrics(&self) -> Snapshot {
        let libraries = self.libraries.values().filter(|l| l.index.is_some()).count() as u64;
        let counts = Counts { libraries, blind: self.blind() as u64, ..self.counts };
        snapshot::metrics(&self.prober, &self.state, &self.engine, &self.tally, counts, self.sampler())
    }

    /// Waits for the next input and handles it.
    ///
    /// # Errors
    /// If the ring buffer can't be waited for any more.
    pub async fn next(&mut self) -> Result<Vec<Notice>> {
        let mut notices = Vec::new();
        tokio::select! {
            woken = self.ring.woken() => {
                woken?;
                self.drain(&mut notices);
            }
            _ = self.drain_tick.tick() => self.drain(&mut notices),
            _ = self.judge_tick.tick() => {
                self.drain(&mut notices);
                self.judge(&mut notices);
            }
            Some(found) = self.found.recv() => self.discovered(found, &mut notices),
            Some(news) = self.sampled.recv() => self.sampled(news),
            Some(collected) = self.collected.recv() => match collected {
                Collected::Fact(event) => self.state.apply(&event),
                Collected::Done(name) => self.collecting.done(name),
            },
            Some(ended) = self.ended.recv() => {
                // What it did last comes before its end.
                self.drain(&mut notices);
                self.process_ended(ended, &mut notices);
            }
        }
        Ok(notices)
    }

    fn sampled(&mut self, news: News) {
        let event = match news {
            News::Flows(report) => Event { ts: report.at, body: Body::Flows(Box::new(report)) },
            News::Comm(found, ts) => Event { ts, body: Body::CommFound(found) },
            News::Error { target: (proc, ptr), code, at } => {
                Event { ts: at, body: Body::CommError { proc, ptr, code } }
            }
        };
        self.state.apply(&event);
    }

    fn drain(&mut self, notices: &mut Vec<Notice>) {
        let Self { ring, decoder, state, tally, counts, watched, .. } = self;
        let mut strangers = BTreeSet::new();
        ring.drain(BATCH, |bytes| {
            counts.events += 1;
            match decoder.decode(bytes) {
                Ok(event) => {
                    if let Some(header) = Decoder::header(bytes)
                        && !watched.contains_key(&header.pid)
                    {
                        strangers.insert(header.pid);
                    }
                    if let Body::Op(op) = &event.body {
                        tally.add(op);
                    }
                    state.apply(&event);
                }
                Err(e) => {
                    counts.undecodable += 1;
                    tracing::debug!(error = %e, "record dropped");
                }
            }
        });
        for pid in strangers {
            self.welcome(pid, notices);
        }
        self.mend_loss(notices);
    }

    /// A process that called NCCL before the search came upon it.
    fn welcome(&mut self, pid: u32, notices: &mut Vec<Notice>) {
        self.watched.insert(pid, Watched::default());
        let process = look::process(ProcId { host: HostId(0), pid });
        self.process_seen(process, notices);
        self.discovery.poke();
    }

    fn process_seen(&mut self, process: Process, notices: &mut Vec<Notice>) {
        let pid = process.id.pid;
        self.state.apply(&Event { ts: clock::now(), body: Body::ProcessSeen(Box::new(process.clone())) });
        notices.push(Notice::Process(Box::new(process)));
        self.exits.watch(pid);
    }

    /// After a loss, takes the newest state of each communicator from the kernel's copy.
    fn mend_loss(&mut self, notices: &mut Vec<Notice>) {
        let lost = self.prober.counter(Counter::RingFull);
        if lost == self.lost_seen {
            return;
        }
        let fresh = lost - self.lost_seen;
        self.lost_seen = lost;
        for event in reconcile::events(HostId(0), fresh, clock::now(), &self.prober.comm_states()) {
            self.state.apply(&event);
        }
        for (proc, tid) in self.state.open_groups() {
            if self.prober.group_state(tid).is_none_or(|g| g.depth == 0) {
                self.state.apply(&Event { ts: clock::now(), body: Body::GroupEnd { proc, tid } });
            }
        }
        notices.push(Notice::Lost(fresh));
    }

    fn judge(&mut self, notices: &mut Vec<Notice>) {
        self.state.apply(&Event { ts: clock::now(), body: Body::Tick });
        self.look();
        self.identify();
        self.collect(notices);
        self.follow();
        self.let_go_of_unused();
        notices.extend(self.engine.evaluate(&self.state).into_iter().map(|c| Notice::Verdict(Box::new(c))));
    }

    /// Has the communicators read whose creation does not end: the call that began it could not tell which they are, and
    /// the end of one that began before we came is seen in memory only.
    fn identify(&mut self) {
        let now = self.state.now;
        if now.saturating_sub(self.last_identified) < IDENTIFY_AFTER {
            return;
        }
        self.last_identified = now;
        let Some(sampling) = &self.sampling else { return };
        for (target, tid) in self.state.creating(now.saturating_sub(IDENTIFY_AFTER)) {
            if let Some(layout) = self.layout_of(target.0.pid) {
                sampling.identify(target, tid, layout);
            }
        }
    }

    fn layout_of(&self, pid: u32) -> Option<Arc<NcclLayout>> {
        let library = self.watched.get(&pid)?.library?;
        self.libraries.get(&library)?.layout.clone()
    }

    /// Has the communicators sampled that are in use now, and no others.
    fn follow(&mut self) {
        let Some(sampling) = &self.sampling else { return };
        let alive = |p: &ProcId| self.state.processes.get(p).is_some_and(Process::alive);
        let in_use: BTreeMap<Target, u32> = self
            .state
            .comms
            .values()
            .flat_map(|c| c.active().filter(|m| m.created()).map(|m| ((m.proc, m.ptr), c.id.nranks)))
            .filter(|((proc, _), _)| alive(proc))
            .collect();
        self.followed.retain(|target| {
            let stays = in_use.contains_key(target);
            if !stays {
                sampling.leave(*target);
            }
            stays
        });
        for (target, n_ranks) in in_use {
            if let Some(layout) = self.layout_of(target.0.pid)
                && layout.proxy.is_some()
                && self.followed.insert(target)
            {
                sampling.follow(target, n_ranks, layout);
            }
        }
    }

    /// What the sampler has counted.
    #[must_use]
    pub fn sampler(&self) -> SamplerCounts {
        self.sampling.as_ref().map(Sampling::counts).unwrap_or_default()
    }

    /// Takes the probes off libraries that nobody has mapped for a while.
    fn let_go_of_unused(&mut self) {
        let now = self.state.now;
        for key in self.watched.values().filter_map(|w| w.library) {
            if let Some(l) = self.libraries.get_mut(&key) {
                l.used = now;
            }
        }
        let (prober, keep) = (&mut self.prober, self.keep_unused);
        self.libraries.retain(|_, l| {
            let stays = now.saturating_sub(l.used) < keep;
            if let Some(index) = l.index.filter(|_| !stays) {
                prober.detach(index);
            }
            stays
        });
    }

    /// Looks at suspects at every judgement and at everybody once a second: a stopped process is a finding
    /// even when nobody visibly waits for it.
    fn look(&mut self) {
        let now = self.state.now;
        let mut whom: BTreeMap<ProcId, u32> = suspect::suspects(&self.state).into_iter().collect();
        if now.saturating_sub(self.last_look) >= LOOK_EVERY {
            self.last_look = now;
            for p in self.state.processes.values().filter(|p| p.alive()) {
                let tid = self.state.memberships(p.id).map(|(_, m)| m.tid).next().unwrap_or(p.id.pid);
                whom.entry(p.id).or_insert(tid);
            }
        }
        for (proc, tid) in whom {
            self.look_at_kernels(proc);
            if let Some(activity) = look::activity(proc.pid, tid, clock::now()) {
                let body = Body::ProcessActivity { proc, activity: Box::new(activity) };
                self.state.apply(&Event { ts: clock::now(), body });
            }
        }
    }

    /// Has the suspects looked at more closely, by threads of their own.
    fn collect(&mut self, notices: &mut Vec<Notice>) {
        for name in self.collecting.ask(&suspect::suspects(&self.state), Instant::now()) {
            notices.push(Notice::Limited { path: format!("collector {name}"), why: HUNG.to_owned() });
        }
    }

    /// Takes the kernel's count of a suspect's launches, where they are probed.
    fn look_at_kernels(&mut self, proc: ProcId) {
        if !self.launches {
            return;
        }
        let ptrs: Vec<u64> =
            self.state.memberships(proc).filter(|(_, m)| m.end.is_none()).map(|(_, m)| m.ptr).collect();
        for ptr in ptrs {
            if let Some(s) = self.prober.comm_state(proc.pid, ptr) {
                let launches = Launches { count: s.launches, last: s.launch_ts_ns };
                self.state.apply(&Event { ts: clock::now(), body: Body::Launches { proc, ptr, launches } });
            }
        }
    }

    fn discovered(&mut self, found: Found, notices: &mut Vec<Notice>) {
        match found {
            Found::Process { process, library, load_bias } => {
                let pid = process.id.pid;
                if !self.only.is_empty() && !self.only.contains(&pid) {
                    return;
                }
                let mut key = None;
                let list = library.as_ref().ok().and_then(|l| l.list);
                let lib = match library {
                    Ok(library) => {
                        key = Some(library.key);
                        self.attach(&library, notices)
                    }
                    Err((path, why)) => {
                        notices.push(Notice::Limited { path, why });
                        None
                    }
                };
                let known = self.watched.insert(pid, Watched { library: key, blind: lib.is_none() }).is_some();
                if let Some(lib) = lib
                    && let Err(e) = self.prober.adopt(pid, lib, true)
                {
                    tracing::warn!(pid, error = %e, "can't adopt");
                }
                self.search(pid, key, list.zip(load_bias));
                if known {
                    self.state.apply(&Event { ts: clock::now(), body: Body::ProcessSeen(process) });
                } else {
                    self.process_seen(*process, notices);
                }
            }
            Found::Replaced { pid } => {
                self.drain(notices);
                if self.watched.contains_key(&pid) {
                    self.process_ended(Ended { pid, exit: Exit::Replaced }, notices);
                }
            }
        }
    }

    /// Has a process's communicators looked for that made their calls before we came.
    fn search(&self, pid: u32, library: Option<FileKey>, list: Option<(List, u64)>) {
        let layout = library.and_then(|l| self.libraries.get(&l)).and_then(|l| l.layout.clone());
        if let (Some(sampling), Some(layout)) = (&self.sampling, layout) {
            sampling.search(Search::new(ProcId { host: HostId(0), pid }, layout, list));
        }
    }

    fn attach(&mut self, library: &Arc<Library>, notices: &mut Vec<Notice>) -> Option<LibIndex> {
        if let Some(known) = self.libraries.get(&library.key) {
            return known.index;
        }
        let index = if library.plan.sees_operations() {
            match self.prober.attach(&library.file, &library.plan) {
                Ok(index) => {
                    self.attached_at = clock::now();
                    notices.push(Notice::Attached(library.clone()));
                    Some(index)
                }
                Err(e) => {
                    notices.push(Notice::Limited { path: library.path.clone(), why: e.to_string() });
                    None
                }
            }
        } else {
            None
        };
        for why in &library.problems {
            notices.push(Notice::Limited { path: library.path.clone(), why: why.clone() });
        }
        let layout = library.layout.clone();
        self.libraries.insert(library.key, Attached { index, layout, used: clock::now() });
        index
    }

    fn process_ended(&mut self, ended: Ended, notices: &mut Vec<Notice>) {
        let proc = ProcId { host: HostId(0), pid: ended.pid };
        if self.watched.remove(&ended.pid).is_none() {
            return;
        }
        self.prober.forget(ended.pid);
        if let Some(sampling) = &self.sampling {
            sampling.drop_search(proc);
        }
        self.state.apply(&Event { ts: clock::now(), body: Body::ProcessGone { proc, exit: ended.exit } });
        notices.push(Notice::Ended { pid: ended.pid, exit: ended.exit });
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// This host's name, as `uname -n` gives it.
#[must_use]
pub fn hostname() -> String {
    nix::sys::utsname::uname().map_or_else(|_| "?".to_owned(), |u| u.nodename().to_string_lossy().into_owned())
}
