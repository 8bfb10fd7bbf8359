//! What the tracing commands share: a runtime, a signal to stop, words for notices.

use std::future::Future;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{app::Notice, model::Nanos, report::text, rules::words};

/// One thread: the loop is one, and a tracer should not spread over the job's cores.
pub(super) fn block_on<F: Future<Output = Result<u8>>>(future: F) -> Result<u8> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}

/// Ctrl-C and what service managers send.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub(super) fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    pub(super) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What a person reads of a notice.
pub(super) fn notice_text(notice: &Notice, now: Nanos) -> String {
    match notice {
        Notice::Attached(l) => format!(
            "attached to NCCL {} ({}), build id {}, {} probes\n",
            l.version,
            l.path,
            l.build_id,
            l.plan.points.len()
        ),
        Notice::Limited { path, why } => format!("limited: {path}: {why}\n"),
        Notice::Process(p) => format!("process {} {} ({})\n", p.id.pid, p.name, p.command),
        Notice::Ended { pid, exit } => format!("process {pid} {}\n", words::exit(*exit)),
        Notice::Verdict(c) => text::change(c, now),
        Notice::Lost(n) => format!("lost {n} events: the ring buffer was full (see --ring)\n"),
    }
}
