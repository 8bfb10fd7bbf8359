//! Flows of real NCCL jobs: what stands still, and whose fault it is.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use mycroft_agent::{
    app::Options,
    graph::flow::{Stuck, stuck},
    model::{Comm, ids::MILLISECOND},
};
use mycroft_bed::{Fault, Job};
use mycroft_tests::traced::Traced;

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

/// Injects a fault, and expects these causes and no others, for a while.
fn shows(netns: bool, fault: impl Fn(u64) -> Fault, expected: impl Fn(&BTreeSet<(u32, Stuck)>) -> bool) {
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
    shows(false, |at| Fault::NeverEnter { rank: 1, at }, exactly(1, Stuck::Absent));
}

#[test]
fn a_gpu_that_stands_still() {
    shows(false, |at| Fault::GpuStall { rank: 2, collective: at, step: 3 }, exactly(2, Stuck::Gpu));
}

#[test]
fn a_proxy_without_a_cpu() {
    shows(false, |_| Fault::StarveProxy { rank: 1 }, exactly(1, Stuck::Proxy));
}

#[test]
fn a_link_that_is_down() {
    // Both directions of rank 2's link are cut: what it sends to 3, what 1 sends to it, or both.
    shows(
        true,
        |_| Fault::LinkDown { rank: 2 },
        |found| !found.is_empty() && found.is_subset(&BTreeSet::from([(1, Stuck::PathTo(2)), (2, Stuck::PathTo(3))])),
    );
}
