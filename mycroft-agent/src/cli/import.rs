//! `mycroft import`: the answer that files of a job give.

use anyhow::{Result, bail};

use super::{
    FINDING, HEALTHY, UNKNOWN,
    args::Import,
    diagnose::{Answer, print, waits_dot},
};
use crate::{
    event::{Body, Event},
    graph::progress::in_flight,
    import::{self, Kind},
    model::State,
    report::{json, text},
    rules::{Engine, View, words},
};

/// Problems that are told one by one.
const TOLD: usize = 8;

pub(super) fn run(args: &Import) -> Result<u8> {
    let import = import::read(&args.paths);
    if import.used.is_empty() {
        bail!("none of the files can be used\n{}", problems(&import).trim_end());
    }
    anstream::eprint!("{}", problems(&import));
    let (state, engine) = judge(&import);
    Ok(print(&answer(&import, &state, &engine), args.json))
}

/// The state that the files show, and what the rules say of it.
fn judge(import: &import::Import) -> (State, Engine) {
    let mut state = State::default();
    for event in &import.events {
        state.apply(event);
    }
    state.apply(&Event { ts: import.taken, body: Body::Tick });
    let mut engine = Engine::default();
    engine.evaluate(&state);
    (state, engine)
}

fn problems(import: &import::Import) -> String {
    let mut out = String::new();
    for p in import.problems.iter().take(TOLD) {
        out += &format!("left out: {}: {}\n", p.path.display(), p.what);
    }
    if import.problems.len() > TOLD {
        out += &format!("left out: {} more files\n", import.problems.len() - TOLD);
    }
    out
}

fn answer(import: &import::Import, state: &State, engine: &Engine) -> Answer {
    let verdicts = engine.active();
    let unsure = verdicts.iter().all(|v| v.rule == "MYC020");
    let (code, outcome, what) = match (verdicts.is_empty(), unsure) {
        (false, false) => (FINDING, "finding", format!("{} findings", verdicts.len())),
        (false, true) => (UNKNOWN, "unknown", "insufficient evidence, see the verdict".to_owned()),
        (true, _) => nothing_found(import, state),
    };
    Answer {
        code,
        outcome,
        reason: format!("{what}; {}", sources(import)),
        verdicts: verdicts.iter().map(|v| json::verdict("active", v, state.now)).collect(),
        text: verdicts.iter().map(|v| text::verdict(v, state.now)).collect(),
        events_lost: state.loss.events,
        dot: waits_dot(&View::new(state, &engine.patience), &verdicts),
    }
}

/// No rank is behind: a job that moved, or one that stands in a way that these files can't tell.
fn nothing_found(import: &import::Import, state: &State) -> (u8, &'static str, String) {
    let open = state.comms.values().filter(|c| c.active().any(in_flight)).count();
    let ended = state.comms.values().filter(|c| c.active().any(|m| m.done.is_some())).count();
    if open > 0 {
        let what = format!(
            "insufficient evidence: operations of {open} communicators were launched by all ranks in sight and have \
             not ended, and no rank is behind the others"
        );
        return (UNKNOWN, "unknown", what);
    }
    if ended == 0 || !import.absent.is_empty() {
        let what = "insufficient evidence: no rank in sight launched less than the others, and nothing tells whether \
                    it ended";
        return (UNKNOWN, "unknown", what.to_owned());
    }
    (HEALTHY, "healthy", format!("all that was launched in {ended} communicators has ended, no rank is behind"))
}

fn sources(import: &import::Import) -> String {
    let used: Vec<String> =
        import.used.iter().map(|(kind, n): &(Kind, usize)| format!("{n} {}", kind.name())).collect();
    let mut out = format!("from {}", used.join(", "));
    if !import.absent.is_empty() {
        let absent: Vec<u32> = import.absent.iter().copied().collect();
        out += &format!("; {} left no file: look there too", words::ranks_noun(&absent));
    }
    if !import.problems.is_empty() {
        out += &format!("; {} files left out", import.problems.len());
    }
    if import.assumed {
        out += "; the files do not say when they were written, so the job is taken to have stood still then";
    }
    out
}

#[cfg(test)]
mod tests;
