//! How long one evaluation takes, and how that grows.

use std::time::{Duration, Instant};

use mycroft_agent::{
    event::Body,
    model::State,
    rules::Engine,
    simulate::{BEGIN, Simulation, scenario::Class},
};

use crate::note;

const SIZES: &[u32] = &[64, 256, 1024, 4096, 16384];
/// The fault whose hang is judged.
const CLASS: &str = "not-entered-asleep";

#[derive(Debug)]
pub(crate) struct Time {
    pub ranks: u32,
    /// Of an evaluation while all is well, and during the hang; the worst.
    pub healthy: Duration,
    pub hang: Duration,
    /// To apply an event, on average.
    apply: Duration,
    events: u64,
}

/// One after the other, on one core.
pub(crate) fn measure(quick: bool) -> Vec<Time> {
    let sizes = if quick { &SIZES[..2] } else { SIZES };
    sizes.iter().filter_map(|ranks| one(*ranks)).collect()
}

fn one(ranks: u32) -> Option<Time> {
    note(&format!("time of an evaluation at {ranks} ranks"));
    let scenario = Class::named(CLASS)?.scenario(1, ranks);
    let at = scenario.truth.at;
    let mut state = State::default();
    let mut engine = Engine::default();
    let (mut healthy, mut hang, mut apply, mut events) = (Duration::ZERO, Duration::ZERO, Duration::ZERO, 0);
    for event in Simulation::new(scenario.config) {
        events += 1;
        let start = Instant::now();
        state.apply(&event);
        apply += start.elapsed();
        // An evaluation a second is enough to know the worst.
        if event.body == Body::Tick && (event.ts - BEGIN).is_multiple_of(1_000_000_000) {
            let start = Instant::now();
            engine.evaluate(&state);
            let took = start.elapsed();
            let worst = if event.ts < at { &mut healthy } else { &mut hang };
            *worst = (*worst).max(took);
        }
    }
    Some(Time { ranks, healthy, hang, apply: apply / u32::try_from(events).unwrap_or(1).max(1), events })
}

pub(crate) fn table(times: &[Time]) -> String {
    let mut text = "| ranks | evaluation while all is well, worst | during a hang, worst | growth with ranks | event applied | events |\n\
                    | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    let mut before: Option<&Time> = None;
    for t in times {
        // The power of the number of ranks with which the time grows.
        let growth = before.map_or_else(
            || "–".to_owned(),
            |b| {
                let (time, ranks) =
                    (t.hang.as_secs_f64() / b.hang.as_secs_f64(), f64::from(t.ranks) / f64::from(b.ranks));
                format!("n^{:.2}", time.ln() / ranks.ln())
            },
        );
        text += &format!(
            "| {} | {:.1} ms | {:.1} ms | {growth} | {} ns | {} |\n",
            t.ranks,
            t.healthy.as_secs_f64() * 1e3,
            t.hang.as_secs_f64() * 1e3,
            t.apply.as_nanos(),
            t.events
        );
        before = Some(t);
    }
    text
}
