//! The search for processes, on a thread of its own: reading DWARF takes up to half a second, in which the
//! loop has a ring buffer to drain.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::sync::mpsc;

use super::{Library, library::FileKey};
use crate::{
    discover::{
        environment::job_rank,
        layout_cache::LayoutCache,
        process::{NcclProcess, Scanner},
    },
    model::{HostId, Origin, ProcId, Process},
};

/// Between two scans of `/proc`.
const SCAN_EVERY: Duration = Duration::from_secs(1);
/// Findings that wait for the loop; when it is full the search waits, and nothing is lost.
const QUEUE: usize = 256;

/// Library files remembered at most.
const LIBRARIES: usize = 64;

/// Something found.
#[derive(Debug)]
pub(super) enum Found {
    /// A process, and its library or the path and reason why that is of no use.
    Process {
        process: Box<Process>,
        library: Result<Arc<Library>, (String, String)>,
        /// What to add to the library's addresses in this process.
        load_bias: Option<u64>,
    },
    /// A process became another program, or unmapped NCCL.
    Replaced { pid: u32 },
}

/// The searching thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Discovery {
    poke: SyncSender<()>,
    searched: Arc<AtomicBool>,
}

impl Discovery {
    /// Starts the search.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start(cache: Option<PathBuf>) -> Result<(Self, mpsc::Receiver<Found>)> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        // One waiting poke is as good as ten.
        let (poke, poked) = sync_channel(1);
        let searched = Arc::new(AtomicBool::new(false));
        let done = searched.clone();
        std::thread::Builder::new()
            .name("mycroft-search".to_owned())
            .spawn(move || {
                let mut search = Search {
                    scanner: Scanner::new(Path::new("/proc")),
                    layouts: LayoutCache::new(cache),
                    libraries: BTreeMap::new(),
                    sender,
                };
                loop {
                    if !search.round() {
                        return;
                    }
                    done.store(true, Ordering::Release);
                    if poked.recv_timeout(SCAN_EVERY) == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
            })
            .context("cannot start the searching thread")?;
        Ok((Self { poke, searched }, receiver))
    }

    /// Asks for a scan now.
    pub(super) fn poke(&self) {
        // Full: a scan is coming anyway.
        self.poke.try_send(()).ok();
    }

    /// Whether all processes have been looked at once.
    pub(super) fn searched(&self) -> bool {
        self.searched.load(Ordering::Acquire)
    }
}

struct Search {
    scanner: Scanner,
    layouts: LayoutCache,
    libraries: BTreeMap<FileKey, Result<Arc<Library>, (String, String)>>,
    sender: mpsc::Sender<Found>,
}

impl Search {
    /// One scan. `false` when nobody listens any more.
    fn round(&mut self) -> bool {
        let report = match self.scanner.scan() {
            Ok(report) => report,
            Err(e) => {
                tracing::error!(error = %e, "cannot scan /proc");
                return true;
            }
        };
        for pid in report.replaced {
            if !self.send(Found::Replaced { pid }) {
                return false;
            }
        }
        for (pid, why) in report.closed {
            let process = Box::new(super::look::process(ProcId { host: HostId(0), pid }));
            if !self.send(Found::Process { process, library: Err((format!("pid {pid}"), why)), load_bias: None }) {
                return false;
            }
        }
        report.appeared.into_iter().all(|p| {
            let found = self.describe(p);
            self.send(found)
        })
    }

    fn describe(&mut self, p: NcclProcess) -> Found {
        let key = (p.library.dev, p.library.ino);
        // Each holds its file open. To read one again takes a few ms, and layouts are cached.
        if self.libraries.len() >= LIBRARIES {
            self.libraries.clear();
        }
        let library = self
            .libraries
            .entry(key)
            .or_insert_with(|| {
                Library::read(&p.library, &mut self.layouts).map(Arc::new).map_err(|why| (p.library.path.clone(), why))
            })
            .clone();
        let process = Process {
            name: p.name,
            command: p.command,
            nccl: library.as_ref().map(|l| l.version.clone()).unwrap_or_default(),
            job_rank: job_rank(Path::new("/proc"), p.pid),
            ..Process::unknown(ProcId { host: HostId(0), pid: p.pid }, Origin::Live)
        };
        let (start, offset) = p.code;
        let code_bias = library.as_ref().ok().and_then(|l| l.code_bias);
        let load_bias = code_bias.map(|bias| start.wrapping_sub(offset).wrapping_sub(bias));
        Found::Process { process: Box::new(process), library, load_bias }
    }

    fn send(&self, found: Found) -> bool {
        self.sender.blocking_send(found).is_ok()
    }
}
