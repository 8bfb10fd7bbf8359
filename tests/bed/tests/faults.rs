//! Each fault does what it says.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{LONG, alone, job, releases};
use mycroft_bed::{Fault, Job, NOW, Phase};

/// No progress for so long is a hang: an iteration takes a few milliseconds.
const QUIET: Duration = Duration::from_millis(1000);

/// Waits until the job is in a state, and checks that it stays there.
fn assert_stays(job: &Job, what: &str, state: impl Fn(&Job) -> bool) {
    let begin = Instant::now();
    while !state(job) {
        assert!(begin.elapsed() < LONG, "never {what}: {}", job.describe());
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    while begin.elapsed() < QUIET {
        assert!(state(job), "no longer {what}: {}", job.describe());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All ranks have completed `n` iterations, and all but one have entered the next.
fn assert_hang_without(job: &Job, rank: usize, n: u64) {
    let inside = |r: usize| u64::from(r != rank);
    assert_stays(job, "hanging", |job| job.ranks().all(|r| r.completed() == n && r.entered() == n + inside(r.index())));
}

#[test]
fn a_rank_that_never_enters() {
    let _alone = alone();
    let job = job(&releases()[0]).fault(Fault::NeverEnter { rank: 2, at: 5 }).start().unwrap();
    assert_hang_without(&job, 2, 5);
    // in the application, asleep: clock_nanosleep
    let syscall = std::fs::read_to_string(format!("/proc/{}/syscall", job.rank(2).pid())).unwrap();
    assert!(syscall.starts_with(&format!("{} ", libc::SYS_clock_nanosleep)), "{syscall}");
}

#[test]
fn a_rank_that_enters_late_and_a_fault_at_run_time() {
    let _alone = alone();
    let delay = Duration::from_millis(700);
    let job = job(&releases()[0]).ranks(2).pause(Duration::from_millis(5)).start().unwrap();
    job.wait_iteration(3, LONG).unwrap();
    job.inject(Fault::EnterLate { rank: 1, at: NOW, delay }).unwrap();
    let before = job.wait_hang(delay / 2, LONG).unwrap()[0];
    job.wait_iteration(before + 5, LONG).unwrap();
    job.inject(Fault::NeverEnter { rank: 0, at: NOW }).unwrap();
    let last = job.wait_hang(QUIET, LONG).unwrap();
    assert_hang_without(&job, 0, last[0]);
}

#[test]
fn a_slow_rank() {
    let _alone = alone();
    let delay = Duration::from_millis(100);
    let job = job(&releases()[0]).ranks(2).iters(10).fault(Fault::Slow { rank: 1, from: 0, delay }).start().unwrap();
    job.wait_running(LONG).unwrap();
    let begin = Instant::now();
    job.wait_success(LONG).unwrap();
    assert!(begin.elapsed() > delay * 9, "{:?}", begin.elapsed());
}

#[test]
fn a_rank_that_dies() {
    let _alone = alone();
    let job = job(&releases()[0]).fault(Fault::Die { rank: 1, at: 5 }).start().unwrap();
    let begin = Instant::now();
    while job.rank(1).killed_by().is_none() && begin.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(job.rank(1).killed_by(), Some(libc::SIGKILL), "{}", job.describe());
    // what its proxy had not sent yet went with it, so others may lack the end of the iteration before
    assert_stays(&job, "at iteration 4 or 5", |job| job.ranks().all(|r| (4..=5).contains(&r.completed())));
}

#[test]
fn a_process_that_is_stopped_and_goes_on() {
    let _alone = alone();
    let job = job(&releases()[0]).fault(Fault::Stop { rank: 3, at: 4 }).start().unwrap();
    assert_hang_without(&job, 3, 4);
    job.inject(Fault::Cont { rank: 3 }).unwrap();
    job.wait_iteration(8, LONG).unwrap();
}

#[test]
fn a_gpu_that_stalls_and_resumes() {
    let _alone = alone();
    for release in releases() {
        let job = job(&release).iters(8).fault(Fault::GpuStall { rank: 1, collective: 4, step: 3 }).start().unwrap();
        assert_stays(&job, "stalled in iteration 4", |job| {
            job.rank(1).gpu_stalled() && job.ranks().all(|r| r.completed() == 4)
        });
        assert!(!job.rank(0).gpu_stalled());
        assert_eq!(job.rank(1).launches(), 5);
        job.inject(Fault::GpuResume { rank: 1 }).unwrap();
        job.wait_success(LONG).unwrap_or_else(|e| panic!("NCCL {release}: {e:#}"));
    }
}

/// What a mismatch leads to is NCCL's affair: a hang, an error or wrong data, but not ten good iterations.
#[test]
fn calls_that_do_not_match() {
    let _alone = alone();
    let faults = [
        Fault::DifferentCollective { rank: 1, at: 5 },
        Fault::DifferentCount { rank: 1, at: 5 },
        Fault::DifferentType { rank: 1, at: 5 },
    ];
    for fault in faults {
        let job = job(&releases()[0]).ranks(2).count(100_000).iters(10).fault(fault).start().unwrap();
        let ended = job.wait(Duration::from_secs(3));
        let good = ended.is_ok_and(|s| s.iter().all(|s| s.success()));
        assert!(!good, "{fault:?}: {}", job.describe());
        assert!(job.ranks().all(|r| r.completed() >= 5), "{fault:?}: {}", job.describe());
        assert!(job.rank(1).log().contains("fault"), "{fault:?}: {}", job.describe());
    }
}

/// Counts that need a different number of chunks: ranks wait for each other for good.
#[test]
fn a_count_that_differs_much() {
    let _alone = alone();
    let fault = Fault::DifferentCount { rank: 1, at: 2 };
    let job = job(&releases()[0]).ranks(2).count(3_000_000).iters(6).fault(fault).start().unwrap();
    job.wait_iteration(2, LONG).unwrap();
    let completed = job.wait_hang(QUIET, LONG).unwrap();
    assert!(completed.iter().any(|n| *n < 6), "{}", job.describe());
}

#[test]
fn a_link_that_goes_down_and_up() {
    let _alone = alone();
    let job = job(&releases()[0]).netns(true).pause(Duration::from_millis(5)).start().unwrap();
    job.wait_iteration(5, LONG).unwrap();
    job.inject(Fault::LinkDown { rank: 2 }).unwrap();
    let stuck = job.wait_hang(QUIET, LONG).unwrap();
    let (least, most) = (stuck.iter().min().unwrap(), stuck.iter().max().unwrap());
    assert!(most - least <= 1, "{stuck:?}");
    job.inject(Fault::LinkUp { rank: 2 }).unwrap();
    // TCP tries again after twice the time of its last try, so this takes seconds
    let begin = Instant::now();
    job.wait_iteration(most + 5, LONG).unwrap();
    println!("went on {:.1} s after the link", begin.elapsed().as_secs_f64());
    let pids: Vec<_> = job.ranks().map(|r| r.pid()).collect();
    drop(job);
    assert!(pids.iter().all(|p| !Path::new(&format!("/proc/{p}")).exists()));
    let spaces = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap();
    let ours = format!("mb{}x", std::process::id());
    assert!(!String::from_utf8_lossy(&spaces.stdout).contains(&ours));
}

#[test]
fn a_proxy_thread_that_gets_no_cpu() {
    let _alone = alone();
    let job = job(&releases()[0]).ranks(2).thread_names(true).count(100_000).start().unwrap();
    job.wait_iteration(20, LONG).unwrap();
    let rate = |job: &Job, time: Duration| {
        let before = job.rank(0).completed();
        std::thread::sleep(time);
        (job.rank(0).completed() - before) as f64 / time.as_secs_f64()
    };
    let normal = rate(&job, Duration::from_secs(1));
    job.inject(Fault::StarveProxy { rank: 1 }).unwrap();
    let starved = rate(&job, Duration::from_secs(2));
    println!("{normal:.0} iterations a second, starved {starved:.1}");
    assert!(starved < normal / 4.0, "{normal} a second, then {starved}");
    assert_eq!(job.rank(1).phase(), Phase::Running);
}

#[test]
fn nothing_outlives_a_harness_that_is_killed() {
    let _alone = alone();
    let mut bed = std::process::Command::new(env!("CARGO_BIN_EXE_bed"))
        .args(["run", "--ranks", "2", "--nccl", &releases()[0]])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(bed.stdout.take().unwrap()));
    let pid = |line: String| line.split_once("process ").and_then(|(_, p)| p.parse::<u32>().ok());
    let pids: Vec<u32> = lines.map(|l| l.unwrap()).filter_map(pid).take(2).collect();
    assert!(pids.iter().all(|p| Path::new(&format!("/proc/{p}")).exists()));
    bed.kill().unwrap();
    bed.wait().unwrap();
    let begin = Instant::now();
    while pids.iter().any(|p| Path::new(&format!("/proc/{p}")).exists()) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{pids:?} still run");
        std::thread::sleep(Duration::from_millis(20));
    }
}
