//! The command as a user runs it: without privileges, on a lesser machine, beside another agent, killed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use mycroft_agent::{report::json::Line, rules::REGISTRY};
use mycroft_tests::{
    agent::{Agent, free_port, get},
    load::{Build, Load},
    programs::built,
};

/// One probe costs more than 1 µs a call, an unprobed call 6 ns.
const UNPROBED_NS: f64 = 200.0;

fn mycroft(args: &[&str]) -> Command {
    let mut c = Command::new(built("mycroft"));
    c.args(args).env("MYCROFT_CACHE_DIR", std::env::temp_dir().join("mycroft-test-layouts"));
    c
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A copy of the command that any user may run.
fn public_copy() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("mycroft");
    fs::copy(built("mycroft"), &copy).unwrap();
    (dir, copy)
}

#[test]
fn without_root_it_says_what_is_missing() {
    let (_dir, copy) = public_copy();
    for command in ["watch", "diagnose", "check"] {
        let args: &[&str] = if command == "diagnose" { &["--no-agent"] } else { &[] };
        let out = Command::new(&copy).arg(command).args(args).uid(65534).gid(65534).output().unwrap();
        let text = text(&out);
        assert_eq!(out.status.code(), Some(2), "{command}: {text}");
        assert!(text.contains("root") && text.contains("CAP_BPF"), "{command}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn without_btf_check_says_so_and_tracing_works() {
    let script = format!("mount -t tmpfs none /sys/kernel/btf && exec {} check", built("mycroft").display());
    let out = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let text = text(&out);
    assert!(text.contains("degraded") && text.contains("/sys/kernel/btf/vmlinux is not there"), "{text}");
    assert!(text.contains("the kernel accepts all eBPF programs"), "{text}");
    assert_eq!(out.status.code(), Some(1), "{text}");
}

#[test]
fn in_another_pid_namespace_it_says_so() {
    let script = format!("exec {} check", built("mycroft").display());
    let out = Command::new("unshare").args(["-p", "-f", "--mount-proc", "sh", "-c", &script]).output().unwrap();
    assert!(text(&out).contains("hostPID"), "{}", text(&out));
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn damaged_libraries_are_named_and_do_no_harm() {
    let load = Load::build(Build::Debug);
    let whole = fs::read(load.library()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let check = |bytes: &[u8]| {
        let path = dir.path().join("libnccl.so.2");
        fs::write(&path, bytes).unwrap();
        let out = mycroft(&["check", "--library"]).arg(&path).output().unwrap();
        assert!(!text(&out).contains("panicked"), "{}", text(&out));
        assert_ne!(out.status.code(), None);
        text(&out)
    };
    assert!(check(b"").contains("libnccl.so.2"));
    assert!(check(b"#!/bin/sh\n").contains("ELF"));
    assert!(check(&whole[..whole.len() / 3]).contains("degraded"));
    let mut other = whole.clone();
    other[18] = 3; // e_machine: i386
    assert!(check(&other).contains("machine"));
    // Damage at a fixed walk over the file: an answer or an error each time.
    for step in 0..40 {
        let mut bytes = whole.clone();
        let n = bytes.len();
        for k in 0..64 {
            bytes[(step * 7919 + k * 104_729) % n] ^= 0x5a;
        }
        check(&bytes);
    }
    let out = mycroft(&["check", "--library", "/nonexistent/libnccl.so.2"]).output().unwrap();
    assert!(text(&out).contains("/nonexistent/libnccl.so.2: No such file"), "{}", text(&out));
}

#[test]
fn a_process_whose_library_has_a_smashed_section_table_is_told_and_unharmed() {
    let load = Load::build(Build::Debug);
    // The loader uses program headers only, so such a file runs; we look sections up.
    let mut bytes = fs::read(load.library()).unwrap();
    let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    bytes[table..].fill(0xff);
    let path = load.library().with_file_name("libnccl.so.2.99");
    fs::write(&path, &bytes).unwrap();
    let mut d = load.start_on(&path, "ops=10 stay=1");
    let out = mycroft(&["watch", "--for", "3"]).output().unwrap();
    let text = text(&out);
    assert!(text.contains("limited: ") && text.contains("libnccl.so.2.99"), "{text}");
    d.go();
    d.ns_per_op();
    assert!(d.alive());
}

#[test]
fn diagnose_does_not_guess() {
    let load = Load::build(Build::Debug);
    let diagnose = |within: &str, pids: &[u32]| {
        let only = pids.iter().flat_map(|p| ["--pid".to_owned(), p.to_string()]);
        let out = mycroft(&["diagnose", "--no-agent", "--json", "--within", within]).args(only).output().unwrap();
        let lines: Vec<Line> = String::from_utf8_lossy(&out.stdout)
            .lines()
            .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}")))
            .collect();
        (out.status.code(), lines, text(&out))
    };
    // Stuck, or idle, since before we came: both look alike from here.
    let mut silent = load.start("ops=10 nranks=2 stay=1");
    let (code, lines, text) = diagnose("4", &[silent.pid()]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("insufficient evidence") && text.contains(&silent.pid().to_string()), "{text}");
    assert_eq!(lines.len(), 1);
    silent.kill();
    // Two ranks that move.
    let mut ranks = [0, 1].map(|r| load.start(&format!("rank={r} nranks=2 ops=100000 rate=50 init=1")));
    ranks.iter_mut().for_each(|r| r.go());
    let pids = ranks.each_ref().map(|r| r.pid());
    let (code, _, text) = diagnose("15", &pids);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn diagnose_asks_the_agent_which_has_watched_for_longer() {
    let load = Load::build(Build::Debug);
    let agent = Agent::start(&[]);
    let mut ranks: Vec<_> = (0..2)
        .map(|r| {
            load.start(&format!(
                "rank={r} nranks=2 ops=300 rate=100 stay=1 {}",
                if r == 1 { "stop_at=100" } else { "" }
            ))
        })
        .collect();
    let pid = ranks[1].pid();
    let known = |body: &str| body.contains(&format!("\"pid\":{pid}"));
    agent.until("/api/v1/state", |_, body| known(body));
    std::thread::sleep(Duration::from_millis(1500));
    ranks.iter_mut().for_each(|r| r.go());
    agent.until("/api/v1/state", |_, body| body.contains("MYC001"));
    let out = mycroft(&["diagnose", "--agent", &format!("127.0.0.1:{}", agent.port)]).output().unwrap();
    let text = text(&out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    // Other jobs on this host may have findings of their own.
    let named = text.lines().any(|l| l.starts_with("MYC001") && l.contains(&format!("pid {pid}")));
    assert!(named, "the line to forward: {text}");
    assert!(text.contains("from the agent"), "{text}");
    assert!(agent.state().verdicts.iter().any(|v| v.culprits.iter().any(|c| c.pid == pid)));
}

#[test]
fn a_second_agent_is_told_of_the_first() {
    let first = Agent::start(&[]);
    let out = mycroft(&["agent", "--listen", &format!("127.0.0.1:{}", first.port)]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out).contains("another mycroft agent") && text(&out).contains("--listen"), "{}", text(&out));
    // On another port both work, and so does a watch beside them.
    let load = Load::build(Build::Debug);
    let second = Agent::start(&[]);
    let mut d = load.start("ops=50 nranks=2 stay=1");
    for agent in [&first, &second] {
        agent.until("/api/v1/state", |_, body| body.contains(&format!("\"pid\":{}", d.pid())));
    }
    std::thread::sleep(Duration::from_millis(1500));
    d.go();
    d.ns_per_op();
    for agent in [&first, &second] {
        agent.until("/api/v1/state", |_, body| body.contains("AllReduce #49"));
    }
}

#[test]
fn an_agent_killed_hard_leaves_the_job_unharmed_and_no_probe_behind() {
    let load = Load::build(Build::Debug);
    let mut agent = Agent::start(&[]);
    let mut job = load.start("ops=2000 rate=1000 nranks=2 stay=1");
    let mut probed = load.start("ops=20000");
    agent.until("/api/v1/state", |_, body| body.contains(&format!("\"pid\":{}", probed.pid())));
    std::thread::sleep(Duration::from_millis(1500));
    probed.go();
    assert!(probed.ns_per_op() > UNPROBED_NS, "it was probed");
    job.go();
    std::thread::sleep(Duration::from_millis(300));
    agent.kill();
    job.ns_per_op();
    assert!(job.alive(), "it went on to its end");
    // The kernel takes the probes off when it closes the dead agent's descriptors.
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let mut free = load.start("ops=200000");
        free.go();
        let ns = free.ns_per_op();
        if ns < UNPROBED_NS {
            break;
        }
        assert!(Instant::now() < end, "{ns} ns a call: a probe is left");
    }
}

#[test]
fn prometheus_itself_scrapes_the_agent() {
    let agent = Agent::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: mycroft\n    static_configs:\n      - targets: ['127.0.0.1:{}']\n",
        agent.port
    );
    fs::write(dir.path().join("prometheus.yml"), config).unwrap();
    let port = free_port();
    let mut prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Debian's prometheus: run `cargo xtask setup`, which puts it on the path of `cargo xtask test`");
    let query =
        |q: &str| get(port, &format!("/api/v1/query?query={q}"), "*/*").map(|(_, body)| body).unwrap_or_default();
    let end = Instant::now() + Duration::from_secs(40);
    let build = loop {
        let body = query("mycroft_build_info");
        if body.contains("\"hostname\"") {
            break body;
        }
        assert!(Instant::now() < end, "no scrape: {body}");
        std::thread::sleep(Duration::from_millis(300));
    };
    assert!(build.contains(env!("CARGO_PKG_VERSION")), "{build}");
    for name in [
        "mycroft_events_total",
        "mycroft_events_dropped_total",
        "mycroft_traced_processes",
        "mycroft_longest_wait_seconds",
    ] {
        let body = query(name);
        assert!(body.contains("\"__name__\""), "{name}: {body}");
    }
    prometheus.kill().ok();
    prometheus.wait().ok();
}

#[test]
fn promtool_accepts_the_text_form_and_health_answers() {
    let agent = Agent::start(&[]);
    assert_eq!(agent.get("/healthz", "*/*").map(|r| r.0), Some(200));
    let (_, metrics) = agent.get("/metrics", "text/plain").unwrap();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Debian's promtool: run `cargo xtask setup`, which puts it on the path of `cargo xtask test`");
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let out = promtool.wait_with_output().unwrap();
    assert!(out.status.success() && text(&out).is_empty(), "{}\n{metrics}", text(&out));
    let (_, open) = agent.get("/metrics", "application/openmetrics-text; version=1.0.0").unwrap();
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert!(open.lines().filter(|l| !l.starts_with('#')).count() <= 150, "at most 150 series a node");
}

/// A shell reads its script without running anything; one that is not installed is left out, bash is everywhere.
#[test]
fn shells_accept_their_completions() {
    let dir = tempfile::tempdir().unwrap();
    for (shell, needed) in [("bash", true), ("zsh", false), ("fish", false)] {
        let out = mycroft(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success() && script.contains("diagnose") && script.contains("patience-least"), "{shell}");
        let file = dir.path().join(shell);
        fs::write(&file, script).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(out) => assert!(out.status.success() && text(&out).is_empty(), "{shell}: {}", text(&out)),
            Err(e) => assert!(!needed && e.kind() == std::io::ErrorKind::NotFound, "{shell}: {e}"),
        }
    }
}

#[test]
fn man_pages_render_without_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let out = mycroft(&["man"]).arg(dir.path()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let pages: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    for name in ["mycroft.1", "mycroft-agent.1", "mycroft-diagnose.1"] {
        assert!(pages.contains(&dir.path().join(name)), "{name} is not among {pages:?}");
    }
    for page in &pages {
        let mut out = Command::new("man");
        out.arg("--warnings").arg("-l").arg(page).env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8");
        let out = out.output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{}: {}", page.display(), text(&out));
        assert!(String::from_utf8_lossy(&out.stdout).contains("SYNOPSIS"), "{}", page.display());
    }
    let out = mycroft(&["man", "/proc/nowhere"]).output().unwrap();
    assert!(out.status.code() == Some(2) && text(&out).contains("/proc/nowhere"), "{}", text(&out));
}

#[test]
fn pages_of_the_metrics_are_those_of_the_agent() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = mycroft_agent::report::metrics::page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&page).unwrap_or_default(), text, "run with UPDATE_DOCS=1");
}

#[test]
fn pages_of_the_rules_are_those_of_the_command() {
    for rule in REGISTRY {
        let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/rules").join(format!("{}.md", rule.id));
        let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        assert_eq!(
            text,
            mycroft_agent::cli::rule_page(rule),
            "run `mycroft rules {id} > docs/rules/{id}.md`",
            id = rule.id
        );
    }
    let out = mycroft(&["rules", "MYC999"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
}
