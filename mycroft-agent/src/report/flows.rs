//! The flows of a communicator on one screen: channels and peers with bars, and who waits for whom.

use anstyle::{AnsiColor, Style};

use crate::{
    graph::flow::{self, Findings, Stuck},
    model::{
        Comm, Flows, Member, State,
        event::{Flow, FlowOp, Protocol, Way},
        flow::{Phase, Standing, Tracked},
        ids::{Nanos, SECOND, bus_id_text},
    },
    rules::words,
};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const RED: Style = Style::new().bold().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// Cells of a bar.
const BAR: u64 = 16;
/// A flow that has not moved for this long is shown as standing still.
pub const STILL: Nanos = SECOND / 2;

/// One screen about a communicator, at time `now`. Carries ANSI colours; print it through `anstream`.
#[must_use]
pub fn screen(state: &State, comm: &Comm, now: Nanos) -> String {
    let mut out = String::new();
    let net = comm.active().find_map(|m| m.flows.as_ref()?.net.clone());
    let name = comm.members.values().find_map(|m| m.name.clone());
    let name = name.map(|n| format!(" \"{n}\"")).unwrap_or_default();
    out += &format!(
        "{BOLD}communicator {}{name}{BOLD:#}, {} ranks ({} seen), network {}\n",
        comm.id,
        comm.id.nranks,
        comm.active().count(),
        net.as_deref().unwrap_or("unknown")
    );
    for member in comm.active() {
        rank(&mut out, state, member, now);
    }
    let findings = flow::stuck(comm, now, STILL);
    if !findings.is_empty() {
        waits(&mut out, comm, &findings);
    }
    out
}

fn rank(out: &mut String, state: &State, member: &Member, now: Nanos) {
    let last = words::newest(member).unwrap_or_else(|| "no collective".to_owned());
    let host = state.host_name(member.proc.host);
    let standing = member.flows.as_ref().map_or(Standing::NoData, |f| f.standing(now, STILL));
    let since = member.flows.as_ref().filter(|_| still(standing)).map_or_else(String::new, |f| {
        format!(", nothing has moved for {}", words::seconds(now.saturating_sub(f.moved)))
    });
    let colour = if still(standing) { RED } else { BOLD };
    *out += &format!(
        "{BOLD}rank {}{BOLD:#} {host} pid {} GPU {} ({}), {last}: {colour}{}{colour:#}{since}\n",
        member.rank,
        member.proc.pid,
        member.cuda_dev,
        bus_id_text(member.bus_id),
        standing.label()
    );
    let Some(flows) = &member.flows else {
        return;
    };
    // Links of trees that were never used would hide the others.
    for tracked in flows.flows.iter().filter(|t| t.flow.op.is_some() || t.flow.steps != Some(0)) {
        flow_line(out, tracked, now);
    }
    progress_line(out, flows);
}

const fn still(standing: Standing) -> bool {
    !matches!(standing, Standing::NoData | Standing::Idle | Standing::Moving)
}

/// `ch  0 → rank 1  NET/0 AllReduce Simple  ████▓▓▒▒········ ready 12 sent 8 done 6 of 48  sent, not completed 3.2 s`.
fn flow_line(out: &mut String, tracked: &Tracked, now: Nanos) {
    let flow = &tracked.flow;
    let arrow = if flow.way == Way::Send { "→" } else { "←" };
    let peer = flow.peer.map_or_else(|| "rank ?".to_owned(), |p| format!("rank {p}"));
    let via = match flow.net_dev {
        Some(dev) => format!("{}/{dev}", flow.transport.name()),
        None => flow.transport.name().to_owned(),
    };
    let kind = if flow.p2p { "p2p" } else { "ch" };
    *out += &format!("  {kind} {:>2} {arrow} {peer:<8} {via:<6} ", flow.channel);
    match (&flow.op, flow.transport.has_flow_data()) {
        (_, false) => {
            *out += &format!("{DIM}no flow data: its counters are not in host memory{DIM:#}\n");
        }
        (None, true) => {
            let steps = flow.steps.map_or_else(String::new, |s| format!(", {s} steps so far"));
            *out += &format!("{DIM}nothing in work{steps}{DIM:#}\n");
        }
        (Some(op), true) => op_line(out, flow, op, now.saturating_sub(tracked.moved)),
    }
}

fn op_line(out: &mut String, flow: &Flow, op: &FlowOp, still: Nanos) {
    let func = op.func.map_or("operation", |f| f.name());
    let protocol = match op.protocol {
        Protocol::Unknown(code) => format!("protocol {code}"),
        known => known.name().to_owned(),
    };
    let counters = match flow.way {
        Way::Send => format!("ready {} sent {} done {}", op.ready, op.transmitted, op.done),
        Way::Recv => format!("posted {} got {} used {}", op.posted, op.received, op.consumed),
    };
    let phase = Phase::of(flow.way, op);
    let waiting = if still >= STILL {
        format!("  {RED}{} {}{RED:#}", phase.label(), words::seconds(still))
    } else {
        String::new()
    };
    let behind = if flow.behind > 0 { format!("  +{} behind", flow.behind) } else { String::new() };
    *out += &format!("{func} {protocol}  {} {counters} of {}{waiting}{behind}\n", bar(flow.way, op), op.steps);
}

/// Done, under way, ready (or posted), and the rest.
fn bar(way: Way, op: &FlowOp) -> String {
    let (done, middle, ahead) = match way {
        Way::Send => (op.done, op.transmitted, op.ready),
        Way::Recv => (op.consumed, op.received, op.posted),
    };
    let cell = |n: u64| n.min(op.steps) * BAR / op.steps.max(1);
    let (done, middle, ahead) = (cell(done), cell(middle), cell(ahead));
    (0..BAR)
        .map(|i| match i {
            i if i < done => '█',
            i if i < middle => '▓',
            i if i < ahead => '▒',
            _ => '·',
        })
        .collect()
}

fn progress_line(out: &mut String, flows: &Flows) {
    if let Some(p) = flows.progress.filter(|_| flows.proxy_starved()) {
        *out += &format!("  {RED}progress thread {} gets no CPU (state {}){RED:#}\n", p.tid, p.state);
    }
    if flows.untaken_since.is_some() {
        *out += "  operations wait to be taken by the progress thread\n";
    }
}

/// Causes first, then who waits for whom.
fn waits(out: &mut String, comm: &Comm, findings: &Findings) {
    *out += &format!("{BOLD}who holds it up{BOLD:#}\n");
    let all = findings.iter().flat_map(|(rank, found)| found.iter().map(move |(what, ch)| (*rank, *what, ch)));
    let (causes, waits): (Vec<_>, Vec<_>) = all.partition(|(_, what, _)| what.is_cause());
    for (rank, what, channels) in &causes {
        *out += &format!("  {RED}rank {rank} {}{RED:#}{}\n", stuck_text(*what), on(channels));
    }
    if causes.is_empty() {
        *out += &format!("  no cause among the {} ranks seen here\n", comm.active().count());
    }
    for (rank, what, channels) in &waits {
        *out += &format!("  rank {rank} {}{}\n", stuck_text(*what), on(channels));
    }
}

fn on(channels: &[u32]) -> String {
    let list = words::ranks(channels);
    format!(" (channel {list})")
}

/// As a sentence about the rank.
#[must_use]
pub fn stuck_text(what: Stuck) -> String {
    match what {
        Stuck::Absent => "has not begun the operation that its neighbours are in".to_owned(),
        Stuck::Gpu => "has all it needs and its GPU does not go on".to_owned(),
        Stuck::Proxy => "has work for its proxy thread, which does not run".to_owned(),
        Stuck::PathTo(peer) => format!("has sent data to rank {peer} that does not arrive there"),
        Stuck::NotSentTo(peer) => format!("has data ready for rank {peer}, which has room, and does not send it"),
        Stuck::WaitsFor(peer) => format!("waits for rank {peer}"),
        Stuck::WaitsUnseen(peer) => format!("waits for rank {peer}, which is not seen from here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_what_is_done_under_way_and_ready() {
        let op = FlowOp {
            number: 0,
            func: None,
            protocol: Protocol::Simple,
            algorithm: None,
            tree: false,
            begun: true,
            steps: 32,
            slice: 2,
            slice_bytes: 0,
            base: 0,
            posted: 24,
            ready: 16,
            received: 20,
            transmitted: 12,
            consumed: 8,
            done: 8,
        };
        assert_eq!(bar(Way::Send, &op), "████▓▓▒▒········");
        assert_eq!(bar(Way::Recv, &op), "████▓▓▓▓▓▓▒▒····");
        assert_eq!(bar(Way::Send, &FlowOp { steps: 0, ..op }), "·".repeat(16), "no division by zero");
    }
}
