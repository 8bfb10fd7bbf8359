//! A tracer that comes before, during or after a hang sees the same.
//!
//! `BED_NCCL` sets the releases (default 2.27.5).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the times, with --nocapture")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use mycroft_agent::{
    app::Options,
    model::{CommId, Phase, State, event::Way, flow::Standing, ids::MILLISECOND},
};
use mycroft_bed::{Fault, Job};
use mycroft_tests::traced::Traced;

const START: Duration = Duration::from_secs(60);
const STILL: u64 = 300 * MILLISECOND;

fn releases() -> Vec<String> {
    std::env::var("BED_NCCL").unwrap_or_else(|_| "2.27.5".to_owned()).split(',').map(str::to_owned).collect()
}

fn options() -> Options {
    Options { sample: Some(Duration::from_millis(100)), ..Options::default() }
}

/// What there is to know of a rank: number of its newest collective, where it stands, and its transfers in work.
type Known = (Option<u64>, Standing, Vec<(u32, Way, Option<u32>, Option<Phase>, [u64; 4])>);

fn known(state: &State, job: &Job) -> BTreeMap<(CommId, u32), Known> {
    let pids: BTreeSet<u32> = job.ranks().map(|r| r.pid()).collect();
    let comms = state.comms.values().filter(|c| c.members.values().all(|m| pids.contains(&m.proc.pid)));
    let members = comms.flat_map(|c| c.members.values().map(move |m| (c.id, m)));
    let tell = |(id, m): (CommId, &mycroft_agent::model::Member)| {
        let flows = m.flows.as_ref()?;
        let in_work = flows.flows.iter().filter_map(|t| {
            let op = t.flow.op.as_ref()?;
            let counters = [op.base, op.posted, op.transmitted, op.done];
            Some((t.flow.channel, t.flow.way, t.flow.peer, t.phase(), counters))
        });
        let standing = flows.standing(state.now, STILL);
        Some(((id, m.rank), (m.launched.map(|l| l.seq), standing, in_work.collect())))
    };
    members.filter_map(tell).collect()
}

/// Waits until all ranks are known and none moves.
fn settle(t: &mut Traced, job: &Job, ranks: usize, seconds: f64) {
    let moving = |k: &Known| k.1 == Standing::Moving;
    t.until(seconds, "all ranks known, and still", |t| {
        let known = known(t.state(), job);
        known.len() == ranks && !known.values().any(moving)
    });
}

fn seen_alike(release: &str, job: &Job, ranks: usize, fault: impl Fn(u64) -> Fault) {
    let mut before = Traced::start(options());
    before.until(20.0, "flows of all ranks", |t| known(t.state(), job).len() == ranks);
    let at = job.ranks().map(|r| r.entered()).max().unwrap() + 5;
    job.inject(fault(at)).unwrap();
    job.wait_hang(Duration::from_millis(700), START).unwrap();
    // It takes in what happened meanwhile.
    before.run(1.5);
    settle(&mut before, job, ranks, 20.0);
    let expected = known(before.state(), job);
    drop(before);

    let begin = Instant::now();
    let mut after = Traced::start(options());
    after.until(10.0, "the first sight of all ranks", |t| known(t.state(), job).len() == ranks);
    let took = begin.elapsed();
    println!("NCCL {release}: {ranks} ranks known after {:.2} s", took.as_secs_f64());
    settle(&mut after, job, ranks, 10.0);
    assert_eq!(known(after.state(), job), expected, "NCCL {release}");
    assert!(took < Duration::from_secs(2), "NCCL {release}: {took:?}");
    let pids: Vec<u32> = job.ranks().map(|r| r.pid()).collect();
    for comm in after.state().comms.values().filter(|c| c.members.values().any(|m| pids.contains(&m.proc.pid))) {
        for m in comm.members.values() {
            assert_eq!(m.proc.pid, pids[m.rank as usize], "NCCL {release}");
        }
    }
}

#[test]
fn a_hang_is_seen_alike_before_and_after() {
    for release in releases() {
        let job = Job::builder().nccl(&release).ranks(4).count(3_000_000).start().unwrap();
        job.wait_iteration(3, START).unwrap();
        seen_alike(&release, &job, 4, |at| Fault::NeverEnter { rank: 1, at });
        job.kill();
    }
}

#[test]
fn two_gpus_a_process_and_two_communicators_are_found() {
    for release in releases() {
        let job = Job::builder().nccl(&release).ranks(4).gpus_per_proc(2).comms(2).count(1_000_000).start().unwrap();
        job.wait_iteration(3, START).unwrap();
        seen_alike(&release, &job, 8, |at| Fault::NeverEnter { rank: 2, at });
        job.kill();
    }
}

/// Stripped as by distributions: known by its build-id, or by its code alone.
#[test]
fn a_stripped_library_is_seen_alike() {
    for (n, release) in releases().into_iter().enumerate() {
        let job = Job::builder().nccl(&release).ranks(4).count(3_000_000).stripped(n % 2 == 0).start().unwrap();
        job.wait_iteration(3, START).unwrap();
        seen_alike(&release, &job, 4, |at| Fault::NeverEnter { rank: 1, at });
        job.kill();
    }
}
