//! The probes and the loop against the load library: real uprobes, a real kernel, calls faster and in odder
//! orders than real NCCL makes them.

use std::{path::Path, process::Command};

use mycroft_agent::{
    app::{Library, Notice, Options},
    discover::{layout_cache::LayoutCache, process::Scanner},
    model::{Comm, Exit, Member, rhythm::Patience},
    probe::{Prober, Settings},
};
use mycroft_tests::{
    load::{Build, Driver, Load},
    traced::Traced,
};

/// Calls of the unprobed library take 6 ns; one probe makes them more than 1 µs.
const UNPROBED_NS: f64 = 200.0;

fn only_comm(t: &Traced) -> &Comm {
    let comms: Vec<_> = t.comms().collect();
    assert_eq!(comms.len(), 1, "{comms:#?}");
    comms[0]
}

fn member(comm: &Comm, rank: u32) -> &Member {
    comm.members.get(&rank).unwrap_or_else(|| panic!("no rank {rank} in {comm:#?}"))
}

#[test]
fn every_call_of_a_running_and_of_a_later_process_is_seen() {
    let load = Load::build(Build::Debug);
    let mut early = load.start("rank=0 nranks=2 ops=500 rate=1000 stay=1");
    let mut t = Traced::start(Options::default());
    assert!(t.knows(early.pid()), "was there before");
    let mut late = load.start("rank=1 nranks=2 ops=500 rate=1000 stay=1");
    early.go();
    // Its first call comes before any scan can have found it: the library's probes see it all the same.
    late.go();
    early.ns_per_op();
    late.ns_per_op();
    t.until(20.0, "all calls", |t| t.ops() == 1000);
    let comm = only_comm(&t);
    for (rank, pid) in [(0, early.pid()), (1, late.pid())] {
        let m = member(comm, rank);
        assert_eq!((m.proc.pid, m.launched.unwrap().seq, m.launches), (pid, 499, 500));
        assert_eq!(m.bus_id, i64::from(0x10 + rank) << 12);
        assert!(m.absolute);
    }
    assert!(comm.rhythm.completed > 400, "both are followed call by call: {}", comm.rhythm.completed);
    early.release();
    t.until(20.0, "its end", |t| t.saw_end_of(early.pid()));
}

#[test]
fn numbers_agree_between_ranks_that_ran_before_we_came() {
    let load = Load::build(Build::Debug);
    let mut ranks: Vec<Driver> =
        (0..3).map(|r| load.start(&format!("rank={r} nranks=3 ops=4000 rate=1000 stay=1"))).collect();
    ranks.iter_mut().for_each(Driver::go);
    std::thread::sleep(std::time::Duration::from_millis(700));
    let mut t = Traced::start(Options::default());
    t.until(8.0, "the end of all three", |t| {
        t.comms().any(|c| c.active().filter(|m| m.launched.is_some_and(|l| l.seq == 3999)).count() == 3)
    });
    let comm = only_comm(&t);
    let first: Vec<u64> = comm.members.values().map(|m| m.first_seq.unwrap()).collect();
    assert!(first.iter().all(|s| *s > 300), "attached in the middle: {first:?}");
    assert!(comm.disagreement.is_none());
    assert!(t.raised().is_empty(), "{:#?}", t.raised());
}

#[test]
fn communicators_threads_and_nested_groups() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    let mut d = load.start("nranks=2 comms=3 threads=4 group=2 ops=100 init=1 stay=1");
    t.until(20.0, "it is found", |t| t.knows(d.pid()));
    d.go();
    (0..4).for_each(|_| {
        d.ns_per_op();
    });
    t.until(20.0, "all calls", |t| t.ops() == 1200);
    assert_eq!(t.comms().count(), 12);
    for comm in t.comms() {
        let m = member(comm, 0);
        assert_eq!(m.launched.unwrap().seq, 99, "launched when the outermost group ended");
        assert!(m.pending.is_empty());
    }
}

#[test]
fn a_group_that_is_not_ended_launches_nothing() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    let mut d = load.start("nranks=2 group=1 ops=8 leave_open=1 init=1 stay=1");
    t.until(20.0, "it is found", |t| t.knows(d.pid()));
    d.go();
    d.ns_per_op();
    t.until(20.0, "all calls", |t| t.ops() == 8);
    let m = member(only_comm(&t), 0);
    assert_eq!((m.launched.map(|l| l.seq), m.pending.len()), (Some(3), 4));
}

#[test]
fn a_full_ring_loses_history_and_says_so_but_not_the_present() {
    let load = Load::build(Build::Debug);
    let settings = Settings { ring_bytes: 64 << 10, ..Settings::default() };
    let mut d = load.start("nranks=2 ops=20000 init=1 stay=1");
    // This process alone, so that the sums are exact whatever else runs on the host.
    let mut t = Traced::start(Options { settings, only: [d.pid()].into(), ..Options::default() });
    assert!(t.knows(d.pid()));
    d.go();
    d.ns_per_op(); // nobody drains meanwhile
    t.run(1.0);
    let lost = t.state().loss.events;
    assert!(lost > 10_000, "lost {lost}");
    let seen: u64 = t.notices.iter().map(|n| if let Notice::Lost(n) = n { *n } else { 0 }).sum();
    assert_eq!(seen, lost, "told");
    let metrics = t.tracer.metrics();
    assert_eq!(metrics.dropped["ring_full"], lost);
    // Operations, plus the communicator's two events of its creation.
    assert_eq!(metrics.events + lost, 20_002, "not one is unaccounted for");
    assert_eq!(member(only_comm(&t), 0).launched.unwrap().seq, 19_999, "the newest state is known");
}

#[test]
fn a_clean_end_leaves_no_probe_behind() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    let mut probed = load.start("ops=20000");
    t.until(20.0, "it is found", |t| t.knows(probed.pid()));
    probed.go();
    let with = probed.ns_per_op();
    drop(t);
    let mut free = load.start("ops=200000");
    free.go();
    let without = free.ns_per_op();
    assert!(with > UNPROBED_NS && without < UNPROBED_NS, "with {with} ns, without {without} ns");
}

#[test]
fn a_library_that_nobody_maps_loses_its_probes_and_gets_them_back() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options { keep_unused: Some(1_000_000_000), ..Options::default() });
    for round in 1..=2 {
        let mut d = load.start("ops=20 nranks=2");
        let attached = |t: &Traced| {
            let path = load.library();
            let mine = |n: &&Notice| matches!(n, Notice::Attached(l) if path == Path::new(&l.path));
            t.notices.iter().filter(mine).count()
        };
        t.until(20.0, "attached", |t| attached(t) == round && t.knows(d.pid()));
        d.go();
        d.ns_per_op();
        t.until(20.0, "its end", |t| t.saw_end_of(d.pid()));
        let probes = t.tracer.metrics().libraries;
        t.until(20.0, "the probes are gone", |t| t.tracer.metrics().libraries < probes);
    }
    assert_eq!(t.ops(), 40);
}

#[test]
fn two_hundred_processes_start_and_die_in_ten_seconds() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    let first = load.start("ops=1 stay=1");
    t.until(20.0, "attached", |t| t.knows(first.pid()));
    let mut pids = Vec::new();
    for i in 0..200 {
        let mut d = load.start(&format!("ops=5 hash={i} nranks=2"));
        pids.push(d.pid());
        d.go();
        d.ns_per_op();
        if i % 3 == 0 {
            d.kill();
        }
        drop(d);
        t.run(0.02);
    }
    t.run(1.0);
    assert_eq!(t.ops(), 1000, "every call of every one");
    let unended: Vec<u32> = pids.into_iter().filter(|p| !t.saw_end_of(*p)).collect();
    assert!(unended.is_empty(), "the ends of all are known, but for {unended:?}");
    assert!(t.raised().is_empty(), "{:#?}", t.raised());
}

#[test]
fn a_process_is_found_after_exec_and_let_go_at_the_next() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    let mut sh = Command::new("sh");
    sh.arg("-c").arg(format!(
        "exec {} {} ops=10 exec=1 delay_ms=-1",
        load.driver().display(),
        load.library().display()
    ));
    let mut d = Driver::spawn(sh);
    let pid = d.pid();
    t.until(20.0, "it is found after exec", |t| t.knows(pid));
    d.go();
    d.ns_per_op();
    t.until(20.0, "its calls", |t| t.ops() == 10);
    t.until(20.0, "it is let go", |t| {
        t.notices.iter().any(|n| matches!(n, Notice::Ended { pid: p, exit: Exit::Replaced } if *p == pid))
    });
    assert!(d.alive(), "it lives on as another program");
    assert!(t.raised().is_empty());
}

#[test]
fn a_reused_pid_is_another_process() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    // The kernel can be told which pid was given last; somebody else's fork can get in between.
    for attempt in 0..20 {
        let mut first = load.start(&format!("ops=5 nranks=2 init=1 stay=1 hash={}", 0x100 + attempt));
        let pid = first.pid();
        t.until(20.0, "the first is found", |t| t.knows(pid));
        first.go();
        first.ns_per_op();
        t.run(0.2);
        first.kill();
        t.until(20.0, "its end", |t| t.saw_end_of(pid));
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut second = load.start(&format!("ops=7 nranks=2 rank=1 init=1 stay=1 hash={}", 0x200 + attempt));
        if second.pid() != pid {
            continue;
        }
        t.until(20.0, "the second is found", |t| t.state().processes.values().any(|p| p.id.pid == pid && p.alive()));
        t.run(1.5);
        second.go();
        second.ns_per_op();
        t.run(0.5);
        let comm = t.comms().find(|c| c.id.hash == 0x200 + attempt).unwrap();
        assert_eq!(member(comm, 1).launched.unwrap().seq, 6);
        assert!(member(comm, 1).proc.pid == pid && t.raised().is_empty());
        return;
    }
    panic!("no pid could be had twice in 20 attempts");
}

#[test]
fn a_process_that_ends_between_discovery_and_attach() {
    let load = Load::build(Build::Debug);
    let mut d = load.start("ops=1 stay=1");
    let report = Scanner::new(Path::new("/proc")).scan().unwrap();
    let found = report.appeared.into_iter().find(|p| p.pid == d.pid()).unwrap();
    d.kill();
    drop(d);
    drop(load); // its file is gone as well
    let library = Library::read(&found.library, &mut LayoutCache::new(None)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let (mut prober, _ring) = Prober::load(Settings::default()).unwrap();
    let index = prober.attach(&library.file, &library.plan).unwrap();
    assert!(!prober.attached().is_empty(), "probes sit on the file that was held open");
    prober.detach(index);
    assert!(prober.attached().is_empty());
}

#[test]
fn a_library_in_another_mount_namespace_and_a_deleted_one() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options::default());
    let hidden = format!(
        "mount -t tmpfs none /mnt && cp {lib} /mnt/libnccl.so.2 && exec {drive} /mnt/libnccl.so.2 ops=10 nranks=2 stay=1 delay_ms=-1",
        lib = load.library().display(),
        drive = load.driver().display()
    );
    let mut sh = Command::new("unshare");
    sh.args(["-m", "sh", "-c", &hidden]);
    let mut container = Driver::spawn(sh);
    let copy = load.library().with_file_name("libnccl.so.2.27.5");
    std::fs::copy(load.library(), &copy).unwrap();
    let mut orphan = load.start_on(&copy, "ops=10 nranks=2 rank=1 stay=1");
    std::fs::remove_file(&copy).unwrap();
    t.until(20.0, "both are found", |t| t.knows(container.pid()) && t.knows(orphan.pid()));
    container.go();
    orphan.go();
    t.until(20.0, "the calls of both", |t| t.ops() == 20);
    assert_eq!(only_comm(&t).members.len(), 2);
}

#[test]
fn one_file_under_two_overlay_mounts_counts_once() {
    let load = Load::build(Build::Debug);
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, rank: u32| {
        format!(
            "set -e; mkdir -p {d}/{name}/up {d}/{name}/work {d}/{name}/root; mount -t tmpfs none {d}/{name}/up; \
             mkdir {d}/{name}/up/u {d}/{name}/up/w; \
             mount -t overlay overlay -o lowerdir={lower},upperdir={d}/{name}/up/u,workdir={d}/{name}/up/w {d}/{name}/root; \
             exec {drive} {d}/{name}/root/libnccl.so.2 ops=100 nranks=2 rank={rank} stay=1 delay_ms=-1",
            d = dir.path().display(),
            lower = load.library().parent().unwrap().display(),
            drive = load.driver().display()
        )
    };
    let mut t = Traced::start(Options::default());
    let mut drivers: Vec<Driver> = [("a", 0), ("b", 1)]
        .map(|(name, rank)| {
            let mut sh = Command::new("unshare");
            sh.args(["-m", "sh", "-c", &script(name, rank)]);
            Driver::spawn(sh)
        })
        .into();
    t.until(20.0, "both are found", |t| drivers.iter().all(|d| t.knows(d.pid())));
    drivers.iter_mut().for_each(Driver::go);
    t.run(1.5);
    assert_eq!(t.ops(), 200, "each call once, however many probes sit on it");
}

#[test]
fn builds_without_dwarf_or_symbols_are_told_and_do_no_harm() {
    for (build, expected) in [(Build::Symbols, "no identity of communicators"), (Build::Stripped, "is stripped")] {
        let load = Load::build(build);
        let mut t = Traced::start(Options::default());
        let mut d = load.start("ops=10 stay=1");
        t.until(20.0, "it is found", |t| {
            t.notices.iter().any(|n| matches!(n, Notice::Process(p) if p.id.pid == d.pid()))
        });
        d.go();
        d.ns_per_op();
        t.run(0.5);
        let told = t.notices.iter().any(|n| matches!(n, Notice::Limited { why, .. } if why.contains(expected)));
        assert!(told, "{build:?}: {:#?}", t.notices);
        assert!(t.raised().is_empty());
        if build == Build::Symbols {
            assert!(t.state().problems.unidentified >= 10, "calls of a communicator that can't be told apart");
        } else {
            assert!(t.tracer.blind() >= 1);
        }
    }
}

#[test]
fn the_rank_that_stops_coming_is_named() {
    let load = Load::build(Build::Debug);
    let mut t = Traced::start(Options { patience: Patience::default(), ..Options::default() });
    let mut ranks: Vec<Driver> = (0..4)
        .map(|r| {
            let stop = if r == 2 { "stop_at=150" } else { "" };
            load.start(&format!("rank={r} nranks=4 ops=200 rate=100 stay=1 init=1 {stop}"))
        })
        .collect();
    t.until(20.0, "all are found", |t| ranks.iter().all(|d| t.knows(d.pid())));
    ranks.iter_mut().for_each(Driver::go);
    ranks[2].ns_per_op();
    // How soon is the benchmark's matter: a test machine may pause for longer than any target.
    t.until(20.0, "a verdict", |t| !t.raised().is_empty());
    let v = t.raised()[0];
    assert_eq!((v.rule, v.seq, v.culprits[0].rank), ("MYC001", Some(150), 2));
}

/// As in a PyTorch built with a static NCCL: the file has another name and is large.
#[test]
fn nccl_linked_into_another_library_is_traced() {
    let load = Load::build(Build::Debug);
    let library = load.library().with_file_name("libtrainer.so");
    let mut bytes = std::fs::read(load.library()).unwrap();
    bytes.resize(9 << 20, 0);
    std::fs::write(&library, bytes).unwrap();
    let mut t = Traced::start(Options::default());
    let mut d = load.start_on(&library, "ops=100 stay=1");
    t.until(40.0, "it is found", |t| t.knows(d.pid()));
    d.go();
    d.ns_per_op();
    t.run(0.5);
    assert_eq!(t.ops(), 100);
}
