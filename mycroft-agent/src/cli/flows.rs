//! `mycroft flows`: how far each transfer of each communicator is.

#![expect(clippy::print_stdout, reason = "the command's output")]

use std::time::Instant;

use anyhow::Result;

use super::{
    FINDING, HEALTHY, UNKNOWN,
    args::Flows,
    trace::{Stop, notice_text},
};
use crate::{
    app::{Notice, Tracer},
    graph::flow,
    model::{Comm, State, flow::Standing},
    report::{
        flows::{self, STILL},
        json::{self, Line, Record},
    },
};

/// Looks for as long as asked, then shows what is. The exit code says whether a rank was found to hold others up.
pub(super) async fn run(args: Flows) -> Result<u8> {
    let mut stop = Stop::new()?;
    let mut tracer = Tracer::start(args.trace.options())?;
    let begin = Instant::now();
    loop {
        let notices = tokio::select! {
            () = stop.asked() => return Ok(UNKNOWN),
            notices = tracer.next() => notices?,
        };
        for notice in notices.iter().filter(|n| matches!(n, Notice::Limited { .. })) {
            anstream::eprint!("{}", notice_text(notice, tracer.state().now));
        }
        if begin.elapsed() >= args.within {
            break;
        }
    }
    Ok(show(tracer.state(), &args))
}

fn show(state: &State, args: &Flows) -> u8 {
    let wanted = |c: &&Comm| args.comm.as_ref().is_none_or(|hash| c.id.to_string().starts_with(hash.as_str()));
    let comms: Vec<&Comm> = state.comms.values().filter(|c| c.active().next().is_some()).filter(wanted).collect();
    for comm in &comms {
        if args.json {
            println!("{}", Line::text(Record::Flows(Box::new(json::flows(state, comm)))));
        } else {
            anstream::print!("{}", flows::screen(state, comm, state.now));
        }
    }
    if comms.is_empty() {
        anstream::eprintln!("no communicator is known: none was found, or none has made a call yet");
        return UNKNOWN;
    }
    let stuck = comms.iter().any(|c| flow::stuck(c, state.now, STILL).values().flatten().any(|(s, _)| s.is_cause()));
    let seen = comms.iter().flat_map(|c| c.active()).filter_map(|m| m.flows.as_ref());
    let told = seen.map(|f| f.standing(state.now, STILL)).any(|s| s != Standing::NoData);
    match (stuck, told) {
        (true, _) => FINDING,
        (false, true) => HEALTHY,
        (false, false) => UNKNOWN,
    }
}
