//! A real `mycroft agent`, and what the kernel says of it.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use mycroft_agent::serve::http::ApiState;
use mycroft_tests::programs;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::http;

/// For attaching, which with an empty cache means reading a library's debug information.
const PATIENCE: Duration = Duration::from_secs(30);
/// The agent takes its probes out when asked to end.
const FAREWELL: Duration = Duration::from_secs(10);
/// In `/proc/PID/stat`; the same on all Linux machines that people use.
const TICKS_PER_SECOND: f64 = 100.0;

/// Where agents keep layouts: one folder for all, since only one measurement is about the first reading.
#[derive(Debug)]
pub(crate) struct Cache(tempfile::TempDir);

impl Cache {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// What the metrics say of events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Events {
    pub(crate) seen: u64,
    pub(crate) lost: u64,
}

/// A running agent; ends when dropped, and is waited for.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Agent {
    /// Starts one and waits until it has looked at all processes.
    pub(crate) fn start(cache: &Cache, options: &[&str]) -> Result<Self> {
        // The port may be taken between here and there; then the agent says so and ends.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = cache.path().join("agent.log");
        let mut command = Command::new(programs::built("mycroft"));
        command.args(["agent", "--listen", &address.to_string(), "--cache-dir"]).arg(cache.path()).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut agent = Self { child: command.spawn().context("mycroft agent")?, address, log };
        // Processes of others that can't be traced are no reason to wait.
        agent.wait("ready", |a| {
            let (status, body) = http::get(a.address, "/readyz")?;
            Ok(status == 200 || body.contains("can't be traced"))
        })?;
        Ok(agent)
    }

    /// The same, and waits until it traces these processes.
    pub(crate) fn on(cache: &Cache, options: &[&str], pids: &[u32]) -> Result<Self> {
        let mut agent = Self::start(cache, options)?;
        agent.knows(pids)?;
        Ok(agent)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn knows(&mut self, pids: &[u32]) -> Result<()> {
        self.wait("tracing the processes", |a| {
            let state = a.state()?;
            Ok(pids.iter().all(|pid| state.processes.iter().any(|p| p.pid == *pid && !p.nccl.is_empty())))
        })
    }

    pub(crate) fn wait(&mut self, what: &str, done: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let begin = Instant::now();
        // Errors in between: it does not listen yet.
        while !matches!(done(self), Ok(true)) {
            let log = || fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent ended: {status}\n{}", log());
            }
            ensure!(begin.elapsed() < PATIENCE, "the agent: not {what} within {PATIENCE:?}\n{}", log());
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> Result<ApiState> {
        Ok(serde_json::from_str(&http::get(self.address, "/api/v1/state")?.1)?)
    }

    /// What has been seen and lost, once both stand still.
    pub(crate) fn events(&self) -> Result<Events> {
        let begin = Instant::now();
        let mut last = self.events_now()?;
        loop {
            // Metrics are four times a second.
            sleep(Duration::from_millis(700));
            let now = self.events_now()?;
            if now == last {
                return Ok(now);
            }
            ensure!(begin.elapsed() < PATIENCE, "events still come: {now:?}");
            last = now;
        }
    }

    /// Libraries with probes.
    pub(crate) fn libraries(&self) -> Result<u64> {
        Ok(http::counter(&http::get(self.address, "/metrics")?.1, "mycroft_libraries", ""))
    }

    fn events_now(&self) -> Result<Events> {
        let text = http::get(self.address, "/metrics")?.1;
        let lost = http::counter(&text, "mycroft_events_dropped_total", "stage=\"ring_full\"");
        Ok(Events { seen: http::counter(&text, "mycroft_events_total", ""), lost })
    }

    /// User and system time so far.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        // The name, in brackets, may hold spaces.
        let (_, rest) = stat.rsplit_once(") ").context("/proc/PID/stat")?;
        let ticks: Vec<f64> = rest.split(' ').skip(11).take(2).filter_map(|t| t.parse().ok()).collect();
        ensure!(ticks.len() == 2, "/proc/PID/stat: {stat}");
        Ok(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
    }

    /// `VmRSS` (now) or `VmHWM` (the most so far), in MB of a million bytes.
    pub(crate) fn memory_mb(&self, field: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let kib: f64 = status
            .lines()
            .find_map(|l| l.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse().ok())
            .with_context(|| format!("no {field} in /proc/PID/status"))?;
        Ok(kib * 1024.0 / 1e6)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Ok(pid) = self.child.id().try_into() {
            kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        }
        let asked = Instant::now();
        while asked.elapsed() < FAREWELL {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        self.child.kill().and_then(|()| self.child.wait()).ok();
    }
}
