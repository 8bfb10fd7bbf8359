//! Protocols, algorithms and channels: what was asked for runs, and moves the right data.

mod common;

use common::{LONG, alone, job, releases};
use mycroft_bed::{Algorithm, Dtype, Fault, Job, Op, Protocol, RedOp, Step};

/// Several rounds with LL, for both channels, and no round number.
const COUNT: usize = 100_003;

/// What the emulated GPUs ran, as they say themselves.
fn assert_ran(job: &Job, what: &[String]) {
    let logs = job.logs();
    for what in what {
        assert!(logs.iter().all(|log| log.contains(what)), "{what} did not run: {}", job.describe());
    }
}

fn six() -> Vec<Step> {
    let step = |op: &Op, dtype| Step { op: *op, dtype, redop: RedOp::Sum };
    let of = |dtype| Op::ALL.iter().map(move |op| step(op, dtype));
    of(Dtype::F32).chain(of(Dtype::Bf16)).collect()
}

#[test]
fn rings_with_lines() {
    let _alone = alone();
    for release in releases() {
        for (protocol, name) in [(Protocol::Ll, "Ll"), (Protocol::Ll128, "Ll128")] {
            let job = job(&release).protocol(protocol).channels(2).cycle(six()).count(COUNT).root(1).iters(12);
            let job = job.env("BED_TRACE", "1").start().unwrap();
            job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}, {protocol}: {e:#}"));
            let colls = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"];
            let both = |coll| [0, 1].map(|channel| format!("{coll} Ring {name} on channel {channel}"));
            assert_ran(&job, &colls.map(both).concat());
        }
    }
}

/// Send/recv takes LL for small messages only.
#[test]
fn small_messages_with_lines() {
    let _alone = alone();
    for release in releases() {
        let job = job(&release).ranks(2).protocol(Protocol::Ll).op(Op::SendRecv).count(1001).iters(20);
        let job = job.env("BED_TRACE", "1").start().unwrap();
        job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}: {e:#}"));
        assert_ran(&job, &["Send Ll on channel".to_owned(), "Recv Ll on channel".to_owned()]);
    }
}

#[test]
fn trees() {
    let _alone = alone();
    let cycle =
        [(Dtype::F32, RedOp::Sum), (Dtype::I64, RedOp::Max), (Dtype::I32, RedOp::Avg), (Dtype::F16, RedOp::PreMulSum)];
    let cycle = cycle.map(|(dtype, redop)| Step { op: Op::AllReduce, dtype, redop });
    for release in releases() {
        for (protocol, name) in [(Protocol::Simple, "Simple"), (Protocol::Ll, "Ll"), (Protocol::Ll128, "Ll128")] {
            let job = job(&release).algorithm(Algorithm::Tree).protocol(protocol).channels(2).cycle(cycle);
            let job = job.count(COUNT).iters(12).env("BED_TRACE", "1").start().unwrap();
            job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}, {protocol}: {e:#}"));
            assert_ran(&job, &[0, 1].map(|channel| format!("AllReduce Tree {name} on channel {channel}")));
        }
    }
}

/// One GPU of a tree stands still before it sends, with LL: nothing but the missing flags tells the others.
#[test]
fn a_gpu_that_stalls_in_a_tree() {
    let _alone = alone();
    let job = job(&releases()[0]).algorithm(Algorithm::Tree).protocol(Protocol::Ll).iters(8);
    let job = job.fault(Fault::GpuStall { rank: 1, collective: 4, step: 0 }).start().unwrap();
    job.wait_iteration(4, LONG).unwrap();
    let completed = job.wait_hang(std::time::Duration::from_millis(1000), LONG).unwrap();
    assert!(completed.iter().all(|n| *n == 4) && job.rank(1).gpu_stalled(), "{}", job.describe());
    job.inject(Fault::GpuResume { rank: 1 }).unwrap();
    job.wait_success(LONG).unwrap();
}
