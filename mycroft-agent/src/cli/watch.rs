//! `mycroft watch`: live, all jobs on this host.

#![expect(clippy::print_stdout, reason = "the command's output")]

use std::time::Duration;

use anyhow::Result;

use super::{
    FINDING, HEALTHY,
    args::Watch,
    trace::{Stop, notice_text},
};
use crate::{
    app::{Notice, Tracer},
    report::json::{self, Line, Record, SummaryRecord},
};

/// Until told to stop. The exit code says whether anything was found meanwhile.
pub(super) async fn run(args: Watch) -> Result<u8> {
    let mut stop = Stop::new()?;
    let mut tracer = Tracer::start(args.trace.options())?;
    if !args.json {
        anstream::println!("watching for NCCL on {} (ctrl-c ends it)", crate::app::hostname());
    }
    // A year stands for no limit.
    let deadline = tokio::time::sleep(args.duration.unwrap_or(Duration::from_secs(31_536_000)));
    tokio::pin!(deadline);
    let mut found = 0;
    loop {
        let notices = tokio::select! {
            () = stop.asked() => break,
            () = &mut deadline => break,
            notices = tracer.next() => notices?,
        };
        for notice in &notices {
            found +=
                usize::from(matches!(notice, Notice::Verdict(c) if matches!(**c, crate::rules::Change::Raised(_))));
            print(notice, &tracer, args.json);
        }
    }
    summary(&tracer, found, args.json);
    Ok(if found > 0 { FINDING } else { HEALTHY })
}

fn print(notice: &Notice, tracer: &Tracer, json: bool) {
    let now = tracer.state().now;
    if !json {
        anstream::print!("{}", notice_text(notice, now));
        return;
    }
    match notice {
        Notice::Verdict(c) => println!("{}", Line::text(Record::Verdict(Box::new(json::change(c, now))))),
        Notice::Process(p) => {
            if let Some(record) = json::processes(tracer.state()).into_iter().find(|r| r.pid == p.id.pid) {
                println!("{}", Line::text(Record::Process(record)));
            }
        }
        Notice::Attached(_) | Notice::Limited { .. } | Notice::Ended { .. } | Notice::Lost(_) => {
            tracing::info!(?notice, "notice");
        }
    }
}

fn summary(tracer: &Tracer, found: usize, json: bool) {
    let state = tracer.state();
    let text = format!(
        "{} operations on {} communicators in {} processes, {} findings, {} events lost",
        state.ops,
        state.comms.len(),
        state.processes.len(),
        found,
        state.loss.events
    );
    if json {
        let outcome = if found > 0 { "finding" } else { "healthy" };
        println!(
            "{}",
            Line::text(Record::Summary(SummaryRecord {
                outcome: outcome.to_owned(),
                reason: text,
                verdicts: found,
                events_lost: state.loss.events,
            }))
        );
    } else {
        anstream::println!("{text}");
    }
}
