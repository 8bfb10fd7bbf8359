//! `mycroft agent`: the node's daemon.

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;

use super::{HEALTHY, args::Agent, diagnose::waits_dot, trace::Stop};
use crate::{
    app::{Notice, Tracer, hostname},
    report::json,
    rules::Change,
    serve::{Served, http::ApiState, serve},
};

pub(super) async fn run(args: Agent) -> Result<u8> {
    let mut stop = Stop::new()?;
    // The port first: it also tells that no other agent runs here.
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!(
            "cannot listen on {}; another mycroft agent may run on this host (see `ss -ltnp`): stop it, or choose \
             another port with --listen",
            args.listen
        )
    })?;
    let mut tracer = Tracer::start(args.trace.options())?;
    let served = Served::default();
    let host = hostname();
    let server = tokio::spawn({
        let (served, host) = (served.clone(), host.clone());
        async move { serve(listener, served, &host).await }
    });
    tracing::info!(listen = %args.listen, "agent started");
    let mut published = 0;
    while !server.is_finished() {
        let notices = tokio::select! {
            () = stop.asked() => return Ok(HEALTHY),
            notices = tracer.next() => notices?,
        };
        for notice in &notices {
            log(notice);
        }
        // Once a judgement: four times a second.
        if tracer.state().now.saturating_sub(published) >= 200_000_000 {
            published = tracer.state().now;
            publish(&tracer, &served, &host);
        }
    }
    server.await.context("the HTTP server panicked")?.context("the HTTP server failed")?;
    Ok(HEALTHY)
}

fn publish(tracer: &Tracer, served: &Served, host: &str) {
    let state = tracer.state();
    served.metrics.set(tracer.metrics());
    let verdicts = tracer.engine().active();
    let api = ApiState {
        schema_version: json::SCHEMA_VERSION,
        hostname: host.to_owned(),
        uptime_seconds: (state.now.saturating_sub(tracer.attached_at) / 1_000_000) as f64 / 1000.0,
        verdicts: verdicts.iter().map(|v| json::verdict("active", v, state.now)).collect(),
        communicators: json::communicators(state),
        processes: json::processes(state),
        events_lost: state.loss.events,
        waits_dot: waits_dot(&tracer.state_view(), &verdicts),
    };
    let ready = match (tracer.searched(), tracer.blind()) {
        (false, _) => Err("still looking for NCCL processes".to_owned()),
        (true, 0) => Ok(()),
        (true, n) => Err(format!("{n} NCCL processes can't be traced; `mycroft check` says why")),
    };
    served.publish(api, ready);
}

fn log(notice: &Notice) {
    match notice {
        Notice::Verdict(change) => match &**change {
            Change::Raised(v) | Change::Updated(v) => {
                tracing::error!(rule = v.rule, severity = v.severity.label(), "{}", v.headline);
            }
            Change::Cleared(v) => tracing::warn!(rule = v.rule, "cleared: {}", v.headline),
        },
        Notice::Lost(n) => tracing::warn!(events = n, "events lost: the ring buffer was full (see --ring)"),
        Notice::Limited { path, why } => tracing::warn!(library = path, "{why}"),
        Notice::Attached(l) => {
            tracing::info!(library = l.path, version = l.version, build_id = l.build_id, "attached");
        }
        Notice::Process(p) => tracing::info!(pid = p.id.pid, name = p.name, "process maps NCCL"),
        Notice::Ended { pid, exit } => tracing::info!(pid, ?exit, "process ended"),
    }
}
