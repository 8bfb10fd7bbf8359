//! Every collective moves the right data, on every release asked for.

mod common;

use common::{LONG, alone, job, releases};
use mycroft_bed::{Dtype, Op, RedOp};

/// More than one chunk a rank and channel, and no round number.
const LARGE: usize = 300_007;

#[test]
fn six_collectives_on_two_ranks() {
    let _alone = alone();
    for release in releases() {
        for op in Op::ALL {
            for (dtype, count) in [(Dtype::F32, LARGE), (Dtype::I64, 7)] {
                let job = job(&release).ranks(2).op(*op).dtype(dtype).count(count).iters(3).start().unwrap();
                job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release} {op} {dtype}: {e:#}"));
            }
        }
    }
}

#[test]
fn six_collectives_on_four_ranks() {
    let _alone = alone();
    for release in releases() {
        for op in Op::ALL {
            let job = job(&release).ranks(4).op(*op).dtype(Dtype::Bf16).count(LARGE).root(1).iters(3).start().unwrap();
            job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release} {op}: {e:#}"));
        }
    }
}

/// Each type once, and each reduction with an integer and with a float.
#[test]
fn types_and_reductions() {
    let _alone = alone();
    let pairs = [
        (Dtype::I8, RedOp::Avg),
        (Dtype::U8, RedOp::Max),
        (Dtype::I32, RedOp::Min),
        (Dtype::U32, RedOp::PreMulSum),
        (Dtype::I64, RedOp::Prod),
        (Dtype::U64, RedOp::Sum),
        (Dtype::F16, RedOp::Max),
        (Dtype::F32, RedOp::PreMulSum),
        (Dtype::F64, RedOp::Prod),
        (Dtype::Bf16, RedOp::Avg),
        (Dtype::F16, RedOp::Min),
    ];
    for release in releases() {
        for (i, (dtype, redop)) in pairs.into_iter().enumerate() {
            let op = [Op::AllReduce, Op::ReduceScatter, Op::Reduce][i % 3];
            let job = job(&release).ranks(2).op(op).dtype(dtype).redop(redop).count(5003).iters(2).start().unwrap();
            job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release} {op} {dtype} {redop}: {e:#}"));
        }
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
        let job = job(&release).ranks(2).iters(2).no_data(0).start().unwrap();
        let statuses = job.wait(LONG).unwrap();
        assert!(job.rank(1).wrong() > 0, "NCCL {release}: {}", job.describe());
        assert!(statuses.iter().any(|s| s.code() == Some(2)), "NCCL {release}: {statuses:?}");
    }
}
