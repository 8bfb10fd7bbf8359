//! Every collective moves the right data, on every release asked for.

mod common;

use common::{LONG, alone, job, releases};
use mycroft_bed::{Dtype, Op, Protocol, RedOp, Step};

/// More than one chunk a rank and channel, and no round number.
const LARGE: usize = 300_007;

fn six(dtype: Dtype) -> impl Iterator<Item = Step> {
    Op::ALL.iter().map(move |op| Step { op: *op, dtype, redop: RedOp::Sum })
}

#[test]
fn six_collectives_on_two_ranks() {
    let _alone = alone();
    for release in releases() {
        for count in [7, LARGE] {
            let cycle = six(Dtype::F32).chain(six(Dtype::I64));
            let job = job(&release).ranks(2).cycle(cycle).count(count).iters(24).start().unwrap();
            job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}, {count} elements: {e:#}"));
        }
    }
}

#[test]
fn six_collectives_on_four_ranks() {
    let _alone = alone();
    for release in releases() {
        let cycle = six(Dtype::F32).chain(six(Dtype::Bf16));
        let job = job(&release).ranks(4).cycle(cycle).count(LARGE).root(1).iters(24).start().unwrap();
        job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}: {e:#}"));
    }
}

/// Every type with every reduction, on three ranks: their number is no power of two.
#[test]
fn types_and_reductions() {
    let _alone = alone();
    let ops = [Op::AllReduce, Op::ReduceScatter, Op::Reduce];
    let pairs = Dtype::ALL.iter().flat_map(|dtype| RedOp::ALL.iter().map(|redop| (*dtype, *redop)));
    let cycle: Vec<_> =
        pairs.zip(ops.into_iter().cycle()).map(|((dtype, redop), op)| Step { op, dtype, redop }).collect();
    for release in releases() {
        let job = job(&release).ranks(3).cycle(cycle.clone()).count(5003).iters(cycle.len() as u64).start().unwrap();
        job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}: {e:#}"));
    }
}

#[test]
fn several_communicators_and_several_gpus_a_process() {
    let _alone = alone();
    for release in releases() {
        let job = job(&release).ranks(4).gpus_per_proc(2).comms(2).iters(6).start().unwrap();
        job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}: {e:#}"));
        assert_eq!(job.rank(0).pid(), job.rank(1).pid());
        assert_ne!(job.rank(1).pid(), job.rank(2).pid());
    }
}

#[test]
fn a_job_that_is_told_to_stop_ends_well() {
    let _alone = alone();
    let job = job(&releases()[0]).ranks(2).iters(0).start().unwrap();
    job.wait_iteration(5, LONG).unwrap();
    job.stop();
    job.wait_success(LONG).unwrap();
}

/// Without this, "correct data" would say nothing.
#[test]
fn a_gpu_that_moves_no_data_is_noticed() {
    let _alone = alone();
    for release in releases() {
        for protocol in [Protocol::Simple, Protocol::Ll] {
            let job = job(&release).ranks(2).protocol(protocol).iters(2).no_data(0).start().unwrap();
            let statuses = job.wait(LONG).unwrap();
            assert!(job.rank(1).wrong() > 0, "NCCL {release}, {protocol}: {}", job.describe());
            assert!(statuses.iter().any(|s| s.code() == Some(2)), "NCCL {release}, {protocol}: {statuses:?}");
        }
    }
}
