//! Flows of real NCCL jobs: what stands still, and whose fault it is.
//!
//! `MYCROFT_RUNS` sets how often each is run (default 1), `BED_NCCL` the releases (default 2.27.5).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use mycroft_agent::{
    app::Options,
    graph::flow::{Stuck, stuck},
    model::{Comm, ids::MILLISECOND},
    report::json::{Line, Record},
    rules::Verdict,
};
use mycroft_bed::{Algorithm, Fault, Job, Protocol};
use mycroft_tests::{programs, traced::Traced};

const RANKS: usize = 4;
const START: Duration = Duration::from_secs(60);
/// Three chunks a channel, so that a rank is often in the middle of one.
const COUNT: usize = 3_000_000;
const STILL: u64 = 500 * MILLISECOND;

fn runs() -> usize {
    std::env::var("MYCROFT_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn releases() -> Vec<String> {
    std::env::var("BED_NCCL").unwrap_or_else(|_| "2.27.5".to_owned()).split(',').map(str::to_owned).collect()
}

fn options() -> Options {
    Options { sample: Some(Duration::from_millis(100)), ..Options::default() }
}

fn comm_of<'t>(t: &'t Traced, job: &Job) -> Option<&'t Comm> {
    let pids: BTreeSet<u32> = job.ranks().map(|r| r.pid()).collect();
    t.state().comms.values().find(|c| c.members.values().all(|m| pids.contains(&m.proc.pid)))
}

/// A job with flows that were seen to move.
fn watched(release: &str, netns: bool) -> (Job, Traced) {
    let job = Job::builder().nccl(release).ranks(RANKS).count(COUNT).netns(netns).thread_names(true).start().unwrap();
    job.wait_iteration(3, START).unwrap();
    let mut t = Traced::start(options());
    t.until(20.0, "flows of all ranks", |t| {
        comm_of(t, &job).is_some_and(|c| {
            c.members.len() == RANKS
                && c.members.values().all(|m| {
                    m.flows.as_ref().is_some_and(|f| f.flows.iter().any(|t| t.flow.steps.is_some_and(|s| s > 0)))
                })
        })
    });
    (job, t)
}

/// Causes found, by rank.
fn causes(t: &Traced, job: &Job) -> BTreeSet<(u32, Stuck)> {
    let Some(comm) = comm_of(t, job) else { return BTreeSet::new() };
    let found = stuck(comm, t.state().now, STILL);
    found.into_iter().flat_map(|(r, s)| s.into_keys().filter(|s| s.is_cause()).map(move |s| (r, s))).collect()
}

fn screen(t: &Traced, job: &Job) -> String {
    comm_of(t, job).map_or_else(String::new, |c| mycroft_agent::report::flows::screen(t.state(), c, t.state().now))
}

/// What a fault leads to.
struct Expected<F> {
    causes: F,
    rule: &'static str,
    /// Ranks that verdicts may name.
    blamed: &'static [u32],
}

/// Verdicts about this job that are in force.
fn verdicts<'t>(t: &'t Traced, job: &Job) -> Vec<&'t Verdict> {
    let comm = comm_of(t, job).map(|c| c.id);
    t.tracer.engine().active().into_iter().filter(|v| Some(v.comm) == comm).collect()
}

/// Injects a fault, and expects these causes and no others, for a while, and the verdict.
fn shows<F: Fn(&BTreeSet<(u32, Stuck)>) -> bool>(netns: bool, fault: impl Fn(u64) -> Fault, wanted: &Expected<F>) {
    let expected = &wanted.causes;
    for release in releases() {
        for run in 0..runs() {
            let (job, mut t) = watched(&release, netns);
            let at = job.ranks().map(|r| r.entered()).max().unwrap() + 5;
            job.inject(fault(at)).unwrap();
            let begin = Instant::now();
            let what = format!("NCCL {release}, run {run}: the pattern");
            while !expected(&causes(&t, &job)) {
                let waited = begin.elapsed();
                assert!(waited < Duration::from_secs(20), "{what}: {:?}\n{}", causes(&t, &job), screen(&t, &job));
                t.run(0.1);
            }
            // It stays that way, on every rank.
            for _ in 0..10 {
                t.run(0.1);
                let now = causes(&t, &job);
                assert!(expected(&now) || now.is_empty(), "{what}: {now:?}\n{}", screen(&t, &job));
            }
            t.until(15.0, "a verdict", |t| !verdicts(t, &job).is_empty());
            for v in verdicts(&t, &job) {
                assert_eq!(v.rule, wanted.rule, "{what}: {}", v.headline);
                assert!(v.culprits.iter().all(|c| wanted.blamed.contains(&c.rank)), "{what}: {}", v.headline);
            }
            let counts = t.tracer.sampler();
            assert_eq!((counts.stats.broken, counts.dropped), (0, 0), "{counts:?}");
            drop(t);
            job.kill();
        }
    }
}

fn exactly(rank: u32, what: Stuck) -> impl Fn(&BTreeSet<(u32, Stuck)>) -> bool {
    move |found| *found == BTreeSet::from([(rank, what)])
}

#[test]
fn an_absent_rank() {
    shows(
        false,
        |at| Fault::NeverEnter { rank: 1, at },
        &Expected { causes: exactly(1, Stuck::Absent), rule: "MYC001", blamed: &[1] },
    );
}

#[test]
fn a_gpu_that_stands_still() {
    shows(
        false,
        |at| Fault::GpuStall { rank: 2, collective: at, step: 3 },
        &Expected { causes: exactly(2, Stuck::Gpu), rule: "MYC005", blamed: &[2] },
    );
}

#[test]
fn a_proxy_without_a_cpu() {
    shows(
        false,
        |_| Fault::StarveProxy { rank: 1 },
        &Expected { causes: exactly(1, Stuck::Proxy), rule: "MYC006", blamed: &[1] },
    );
}

#[test]
fn a_link_that_is_down() {
    // Both directions of rank 2's link are cut: what it sends to 3, what 1 sends to it, or both.
    let causes = |found: &BTreeSet<(u32, Stuck)>| {
        !found.is_empty() && found.is_subset(&BTreeSet::from([(1, Stuck::PathTo(2)), (2, Stuck::PathTo(3))]))
    };
    shows(true, |_| Fault::LinkDown { rank: 2 }, &Expected { causes, rule: "MYC007", blamed: &[1, 2] });
}

/// Every protocol, rings and trees: what the counters mean differs, what they show does not.
#[test]
fn protocols_and_algorithms() {
    let release = releases().pop().unwrap();
    for (protocol, algorithm) in [
        (Protocol::Ll, Algorithm::Ring),
        (Protocol::Ll128, Algorithm::Ring),
        (Protocol::Simple, Algorithm::Tree),
        (Protocol::Ll, Algorithm::Tree),
    ] {
        for fault in [absent, stalled] {
            let job = Job::builder()
                .nccl(&release)
                .ranks(RANKS)
                .count(300_000)
                .protocol(protocol)
                .algorithm(algorithm)
                .channels(2)
                .start()
                .unwrap();
            job.wait_iteration(3, START).unwrap();
            let mut t = Traced::start(options());
            let at = job.ranks().map(|r| r.entered()).max().unwrap() + 5;
            let (fault, cause) = fault(at);
            job.inject(fault).unwrap();
            let what = format!("{protocol:?}, {algorithm:?}, {cause:?}");
            let begin = Instant::now();
            while causes(&t, &job) != BTreeSet::from([cause]) {
                let now = causes(&t, &job);
                assert!(begin.elapsed() < Duration::from_secs(15), "{what}: {now:?}\n{}", screen(&t, &job));
                t.run(0.1);
            }
            let members = comm_of(&t, &job).unwrap().members.values();
            let ops = members.filter_map(|m| m.flows.as_ref()).flat_map(|f| &f.flows).filter_map(|t| t.flow.op);
            assert!(
                ops.clone().count() > 0
                    && ops.clone().all(|op| format!("{:?}", op.protocol) == format!("{protocol:?}"))
            );
            drop(t);
            job.kill();
        }
    }
}

fn absent(at: u64) -> (Fault, (u32, Stuck)) {
    (Fault::NeverEnter { rank: 1, at }, (1, Stuck::Absent))
}

fn stalled(at: u64) -> (Fault, (u32, Stuck)) {
    (Fault::GpuStall { rank: 2, collective: at, step: 1 }, (2, Stuck::Gpu))
}

/// A ring of n ranks moves 2(n-1)/n of the data over each of its links. The count fills every chunk, so that slices are
/// full.
#[test]
fn bytes_are_those_that_a_ring_must_move() {
    const MIB: u64 = 1 << 20;
    // four chunks of 2 MiB: what one loop over a channel takes
    const BYTES: u64 = 8 * MIB;
    for release in releases() {
        let job = Job::builder().nccl(&release).ranks(RANKS).count((BYTES / 4) as usize).channels(1).start().unwrap();
        job.wait_iteration(2, START).unwrap();
        let mut t = Traced::start(options());
        let at = job.ranks().map(|r| r.entered()).max().unwrap() + 3;
        job.inject(Fault::NeverEnter { rank: 1, at }).unwrap();
        t.until(30.0, "the hang", |t| causes(t, &job) == BTreeSet::from([(1, Stuck::Absent)]));
        let comm = comm_of(&t, &job).unwrap();
        let flows = |rank: u32| comm.members[&rank].flows.as_ref().unwrap().flows.iter().map(|t| &t.flow);
        let op = flows(0).find_map(|f| f.op).unwrap();
        // Rank 1 has ended all collectives before that one, and begun nothing else.
        let links: Vec<u64> = flows(1).filter_map(|f| f.steps).filter(|s| *s > 0).collect();
        assert_eq!(links.len(), 2, "one to send to, one to receive from");
        for steps in links {
            let moved = steps / op.slice * op.slice_bytes;
            let ranks = RANKS as u64;
            assert_eq!(moved, at * BYTES * 2 * (ranks - 1) / ranks, "NCCL {release}, {at} collectives, {steps} steps");
        }
        drop(t);
        job.kill();
    }
}

/// `mycroft flows` on a job that hung before it was started.
#[test]
fn the_command_tells_people_and_machines() {
    let job = Job::builder().nccl(&releases()[0]).ranks(RANKS).count(COUNT).start().unwrap();
    job.wait_iteration(2, START).unwrap();
    let at = job.ranks().map(|r| r.entered()).max().unwrap() + 2;
    job.inject(Fault::NeverEnter { rank: 1, at }).unwrap();
    job.wait_hang(Duration::from_millis(500), START).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let run = |format: &[&str]| {
        let mut command = Command::new(programs::built("mycroft"));
        command.args(["flows", "--within", "2.5", "--cache-dir"]).arg(cache.path()).args(format);
        let out = command.output().unwrap();
        assert_eq!(out.status.code(), Some(1), "somebody is held up: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let text = run(&[]);
    for expected in ["network Socket", "who holds it up", "rank 1 has not begun the operation", "waits for data"] {
        assert!(text.contains(expected), "no `{expected}` in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours in a file");
    let pid = job.rank(1).pid();
    let records = run(&["--json"]);
    let flows: Vec<_> = records
        .lines()
        .map(|l| serde_json::from_str::<Line>(l).unwrap())
        .filter_map(|l| match l.record {
            Record::Flows(f) if f.ranks.iter().any(|r| r.rank.pid == pid) => Some(f),
            _ => None,
        })
        .collect();
    let [record] = flows.as_slice() else { panic!("{records}") };
    assert_eq!((record.nranks, record.ranks.len()), (4, 4));
    let causes: Vec<_> = record.findings.iter().filter(|f| f.cause).map(|f| f.rank).collect();
    assert_eq!(causes, [1]);
    assert_eq!(record.ranks[0].rank.seq, Some(at));
    assert!(record.ranks[0].flows.iter().any(|f| f.op.as_ref().is_some_and(|op| op.steps == 24)), "{records}");
    job.kill();
}
