//! A network namespace per host, their links on one bridge. Needs root.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sched::{CloneFlags, setns};

use crate::artifacts;

/// The hosts of one job; removed when dropped.
#[derive(Debug)]
pub(crate) struct Hosts {
    run: String,
    count: usize,
}

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<String> {
    let out = Command::new("ip").args(words.split_whitespace()).output().context("ip")?;
    if !out.status.success() {
        bail!("ip {words}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Has the kernel take note at once that a link of this namespace has a carrier.
///
/// By itself it does so in its own time, which on a busy machine was a minute and more (seen with 6.18); until then
/// the link drops what it is given, and a bridge keeps its port disabled. Asking for the link's state, as `ethtool`
/// does, makes it catch up.
fn notice_carrier(link: &str) -> Result<()> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GLINK: u32 = 0xa;
    let mut question = [ETHTOOL_GLINK, 0];
    // SAFETY: an interface request is plain data, all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    ensure!(link.len() < request.ifr_name.len(), "{link} is no name of a link");
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = question.as_mut_ptr().cast();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    // SAFETY: the request names a link and a buffer of the two numbers that this question wants.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    ensure!(rc == 0, "state of {link}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Prefix of all names; then the harness's process and a number.
const PREFIX: &str = "mb";

impl Hosts {
    pub(crate) fn new(count: usize) -> Result<Hosts> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers();
        let run = format!("{PREFIX}{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let hosts = Hosts { run, count };
        hosts.set_up().context("network namespaces (root is needed)")?;
        Ok(hosts)
    }

    fn set_up(&self) -> Result<()> {
        let run = &self.run;
        ip(&format!("link add {run} type bridge"))?;
        ip(&format!("link set {run} up"))?;
        for host in 0..self.count {
            let (space, link) = (self.space(host), self.link(host));
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add {link} type veth peer name eth0 netns {space}"))?;
            ip(&format!("-n {space} addr add 10.77.0.{}/24 dev eth0", host + 1))?;
            ip(&format!("-n {space} link set lo up"))?;
            ip(&format!("link set {link} up"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            notice_carrier(&link)?;
            let inside = self.open(host)?;
            let there = std::thread::spawn(move || {
                setns(&inside, CloneFlags::CLONE_NEWNET)?;
                notice_carrier("eth0")
            });
            there.join().map_err(|_| anyhow!("a thread panicked"))??;
            self.set_link(host, true)?;
        }
        Ok(())
    }

    fn space(&self, host: usize) -> String {
        format!("{}-{host}", self.run)
    }

    fn link(&self, host: usize) -> String {
        format!("{}r{host}", self.run)
    }

    /// The namespace as a file, to enter it.
    pub(crate) fn open(&self, host: usize) -> Result<File> {
        let path = Path::new("/run/netns").join(self.space(host));
        File::open(&path).with_context(|| path.display().to_string())
    }

    /// Cuts a host off, or connects it again, by taking its link out of the bridge.
    ///
    /// Not by taking the link itself down: see [`notice_carrier`].
    pub(crate) fn set_link(&self, host: usize, up: bool) -> Result<()> {
        let link = self.link(host);
        let how = if up { format!("master {}", self.run) } else { "nomaster".to_owned() };
        ip(&format!("link set {link} {how}")).map(|_| ())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // a link goes with its namespace; what was not set up is not there
        for host in 0..self.count {
            drop(ip(&format!("netns del {}", self.space(host))));
        }
        drop(ip(&format!("link del {}", self.run)));
    }
}

/// Removes what a harness left that was killed.
fn remove_leftovers() {
    let dead = |name: &&str| {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('x').next());
        owner.is_some_and(artifacts::is_gone)
    };
    let spaces = ip("netns list").unwrap_or_default();
    for space in spaces.lines().filter_map(|l| l.split_whitespace().next()).filter(dead) {
        drop(ip(&format!("netns del {space}")));
    }
    let bridges = ip("-brief link show type bridge").unwrap_or_default();
    for bridge in bridges.lines().filter_map(|l| l.split_whitespace().next()).filter(dead) {
        drop(ip(&format!("link del {bridge}")));
    }
}
