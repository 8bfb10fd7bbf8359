//! Where the transfers of a rank stand, and since when.
//!
//! Counters and their meaning: `src/transport/net.cc`, NCCL 2.18 to 2.32; docs/flows.md has them with pictures.

use super::{
    event::{Flow, FlowOp, FlowReport, Progress, Way},
    ids::{MILLISECOND, Nanos},
};

/// A progress thread that is ready to run and gets less than one part in this many of its time is starved.
const STARVED: u64 = 20;
/// Shorter spans say nothing about a thread's share of a CPU.
const SPAN: Nanos = 200 * MILLISECOND;

/// What a transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// All is done; the proxy has not put the operation away yet.
    Complete,
    /// Taken by the proxy, which has not begun: an earlier operation has the connection.
    Queued,
    /// Send: the GPU has not made the next data ready.
    WaitsForGpu,
    /// Send: data is ready and the network does not take it: no credit from the receiver, a full queue of the NIC, or a
    /// proxy that does not run.
    NotSent,
    /// Send: handed to the network and not completed by it.
    InFlight,
    /// Recv: posted to the network, which delivers nothing.
    WaitsForData,
    /// Recv: delivered, and not shown to the GPU yet (a flush of GPUDirect is outstanding).
    NotFlushed,
    /// Recv: shown to the GPU, which does not take it.
    NotConsumed,
    /// Recv: the GPU has taken all there is and the proxy has not posted more.
    NotPosted,
}

impl Phase {
    #[must_use]
    pub fn of(way: Way, op: &FlowOp) -> Self {
        if op.done >= op.steps {
            return Self::Complete;
        }
        if !op.begun {
            return Self::Queued;
        }
        match way {
            Way::Send if op.transmitted > op.done => Self::InFlight,
            Way::Send if op.ready > op.transmitted => Self::NotSent,
            Way::Send => Self::WaitsForGpu,
            Way::Recv if op.transmitted > op.consumed => Self::NotConsumed,
            Way::Recv if op.received > op.transmitted => Self::NotFlushed,
            Way::Recv if op.posted > op.received => Self::WaitsForData,
            Way::Recv => Self::NotPosted,
        }
    }

    /// As reports spell it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Queued => "queued",
            Self::WaitsForGpu => "waits for its GPU",
            Self::NotSent => "ready, not sent",
            Self::InFlight => "sent, not completed",
            Self::WaitsForData => "waits for data",
            Self::NotFlushed => "delivered, not flushed",
            Self::NotConsumed => "delivered, GPU does not take it",
            Self::NotPosted => "nothing posted",
        }
    }
}

/// Where a rank as a whole stands: what of its transfers tells most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// No transport that shows its transfers.
    NoData,
    /// Nothing in work.
    Idle,
    /// Something moved a moment ago.
    Moving,
    /// Others do not send to it.
    WaitsForData,
    /// Its GPU makes nothing ready although nothing is missing.
    GpuNotReady,
    /// What it has sent does not arrive, or is not taken.
    NotDelivered,
    /// The network does not take what is ready.
    NotSent,
    /// Data is there and its GPU does not take it.
    GpuNotConsuming,
    /// Its progress thread does not run, although there is work that only it can do.
    ProxyNotRunning,
}

impl Standing {
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoData => "no flow data",
            Self::Idle => "nothing in work",
            Self::Moving => "moving",
            Self::WaitsForData => "waits for data",
            Self::GpuNotReady => "GPU makes no data ready",
            Self::NotDelivered => "data sent, not delivered",
            Self::NotSent => "data ready, not sent",
            Self::GpuNotConsuming => "GPU does not take data that is there",
            Self::ProxyNotRunning => "proxy thread does not run",
        }
    }

    /// As a label of metrics.
    #[must_use]
    pub const fn metric(self) -> &'static str {
        match self {
            Self::NoData => "no_data",
            Self::Idle => "idle",
            Self::Moving => "moving",
            Self::WaitsForData => "waits_for_data",
            Self::GpuNotReady => "gpu_not_ready",
            Self::NotDelivered => "not_delivered",
            Self::NotSent => "not_sent",
            Self::GpuNotConsuming => "gpu_not_consuming",
            Self::ProxyNotRunning => "proxy_not_running",
        }
    }
}

/// A transfer and when it last moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked {
    pub flow: Flow,
    pub moved: Nanos,
    pub load: Load,
}

/// In how many of the newest looks at a transfer in work its network had data that it had not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub looks: u32,
    pub held: u32,
}

impl Load {
    /// Looks after which the older half is forgotten.
    const MEMORY: u32 = 256;

    fn note(&mut self, flow: &Flow) {
        let Some(op) = flow.op.as_ref().filter(|op| op.begun && op.done < op.steps) else { return };
        self.looks += 1;
        self.held += u32::from(matches!(Phase::of(flow.way, op), Phase::InFlight | Phase::NotSent));
        if self.looks >= Self::MEMORY {
            self.looks /= 2;
            self.held /= 2;
        }
    }

    /// Share of the looks in percent.
    #[must_use]
    pub fn share(self) -> u32 {
        100 * self.held / self.looks.max(1)
    }
}

impl Tracked {
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.flow.op.as_ref().map(|op| Phase::of(self.flow.way, op))
    }
}

/// All transfers of a rank in one communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Time of the newest look.
    pub at: Nanos,
    /// Last time that any of them moved.
    pub moved: Nanos,
    pub flows: Vec<Tracked>,
    /// Since when operations have waited to be taken by the progress thread.
    pub untaken_since: Option<Nanos>,
    pub net: Option<String>,
    pub progress: Option<Progress>,
    /// An earlier look at the progress thread, [`SPAN`] or more before the newest.
    pub progress_before: Option<(Nanos, Progress)>,
    /// The next `progress_before`.
    mark: Option<(Nanos, Progress)>,
}

impl Flows {
    #[must_use]
    pub fn new(report: &FlowReport) -> Self {
        Self {
            at: report.at,
            moved: report.at,
            flows: report
                .flows
                .iter()
                .map(|flow| Tracked { flow: flow.clone(), moved: report.at, load: Load::default() })
                .collect(),
            untaken_since: report.untaken.then_some(report.at),
            net: report.net.clone(),
            progress: report.progress,
            progress_before: None,
            mark: report.progress.map(|p| (report.at, p)),
        }
    }

    /// Takes in a newer look.
    pub fn update(&mut self, report: &FlowReport) {
        let before = std::mem::take(&mut self.flows);
        let same = |a: &Flow, b: &Flow| (a.p2p, a.channel, a.way, a.peer) == (b.p2p, b.channel, b.way, b.peer);
        self.flows = report
            .flows
            .iter()
            .map(|flow| {
                let known = before.iter().find(|k| same(&k.flow, flow));
                let mut load = known.map_or_else(Load::default, |k| k.load);
                let unchanged = known.filter(|k| k.flow == *flow);
                // A look that finds all as it was shows a stand-still, which is not slowness.
                if unchanged.is_none() {
                    load.note(flow);
                }
                Tracked { flow: flow.clone(), moved: unchanged.map_or(report.at, |k| k.moved), load }
            })
            .collect();
        self.at = report.at;
        if self.flows.iter().any(|f| f.moved == report.at) || self.flows.len() != before.len() {
            self.moved = report.at;
        }
        self.untaken_since = if report.untaken { self.untaken_since.or(Some(report.at)) } else { None };
        self.net.clone_from(&report.net);
        self.note_progress(report);
    }

    fn note_progress(&mut self, report: &FlowReport) {
        if self.progress.map(|p| p.tid) != report.progress.map(|p| p.tid) {
            (self.progress_before, self.mark) = (None, report.progress.map(|p| (report.at, p)));
        }
        self.progress = report.progress;
        if let (Some((at, _)), Some(now)) = (self.mark, report.progress)
            && report.at.saturating_sub(at) >= SPAN
        {
            self.progress_before = self.mark.replace((report.at, now));
        }
    }

    /// Whether the progress thread wants a CPU and gets (almost) none, or is stopped.
    #[must_use]
    pub fn proxy_starved(&self) -> bool {
        let Some(now) = self.progress else { return false };
        if matches!(now.state, 'T' | 't') {
            return true;
        }
        let Some((at, before)) = self.progress_before else { return false };
        let span = self.at.saturating_sub(at);
        let ran = now.ran.saturating_sub(before.ran);
        // The kernel adds a wait to the sum when it ends.
        let waited = now.waited.saturating_sub(before.waited) > span / 4 * 3 || now.slices == before.slices;
        span >= SPAN && now.state == 'R' && ran < span / STARVED && waited
    }

    /// Whether transfers can be seen, and none is in work.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let visible = self.flows.iter().any(|t| t.flow.transport.has_flow_data());
        visible && self.untaken_since.is_none() && self.flows.iter().all(|t| t.flow.op.is_none())
    }

    /// Whether there is something that the progress thread has to do, or to notice: a network's completions are only seen
    /// when it asks for them. What it merely waits for, data or the GPU, is none of it.
    #[must_use]
    pub fn proxy_owes(&self) -> bool {
        let owes = |t: &Tracked| {
            let unnoticed = t.flow.op.as_ref().is_some_and(|op| t.flow.way == Way::Recv && op.consumed > op.done);
            let waits = matches!(
                t.phase(),
                Some(Phase::Queued | Phase::InFlight | Phase::NotSent | Phase::NotFlushed | Phase::NotPosted)
            );
            unnoticed || waits
        };
        self.untaken_since.is_some() || self.flows.iter().any(owes)
    }

    /// Where the rank stands, if nothing has moved for `patience`.
    #[must_use]
    pub fn standing(&self, now: Nanos, patience: Nanos) -> Standing {
        if !self.flows.iter().any(|t| t.flow.transport.has_flow_data()) {
            return Standing::NoData;
        }
        let phases: Vec<Phase> = self.flows.iter().filter_map(Tracked::phase).collect();
        if phases.is_empty() && self.untaken_since.is_none() {
            return Standing::Idle;
        }
        // It moves now and then, as even an idle priority gets a CPU for a moment.
        if self.proxy_starved() && self.proxy_owes() {
            return Standing::ProxyNotRunning;
        }
        if now.saturating_sub(self.moved) < patience {
            return Standing::Moving;
        }
        let any = |phase| phases.contains(&phase);
        if any(Phase::NotConsumed) {
            Standing::GpuNotConsuming
        } else if any(Phase::NotSent) {
            Standing::NotSent
        } else if any(Phase::InFlight) {
            Standing::NotDelivered
        } else if any(Phase::WaitsForData) || any(Phase::NotFlushed) {
            Standing::WaitsForData
        } else if any(Phase::WaitsForGpu) {
            Standing::GpuNotReady
        } else {
            Standing::Idle
        }
    }
}

#[cfg(test)]
mod tests;
