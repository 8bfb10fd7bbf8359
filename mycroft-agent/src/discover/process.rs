//! Processes that map NCCL, found without configuration, in any container.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use procfs::{FromRead as _, process::Stat};

use super::elf::NcclFile;

/// A process that did not map NCCL is looked at again when it has grown by this many bytes: NCCL's mapping
/// has more than 200 MB.
const GROWN: u64 = 16 << 20;
/// ... or after this time.
const RESCAN: Duration = Duration::from_secs(30);
/// A file with another name is looked into if it has this many bytes: NCCL's device code alone has more.
const LARGE: u64 = 8 << 20;
/// Such files of one process at most.
const OTHERS: usize = 2048;
/// Files remembered.
const FILES: usize = 65_536;
/// Bytes of one process's maps that are read at most.
const MAPS_LIMIT: u64 = 64 << 20;
/// Bytes of a command line that are kept.
const COMMAND_LIMIT: usize = 200;

/// A library file as a process maps it.
#[derive(Clone, Debug)]
pub struct LibraryRef {
    /// As the process sees it.
    pub path: String,
    pub dev: u64,
    pub ino: u64,
    /// Held open: the process, its mount namespace and the file's name may go.
    pub file: Arc<File>,
    /// Root of the file system that the library is from, as long as the process lives.
    pub root: Option<PathBuf>,
}

/// A process that maps NCCL.
#[derive(Clone, Debug)]
pub struct NcclProcess {
    pub pid: u32,
    pub name: String,
    pub command: String,
    pub library: LibraryRef,
    /// Start of the library's first executable mapping, and its offset in the file.
    pub code: (u64, u64),
}

/// What changed since the last scan.
#[derive(Debug, Default)]
pub struct ScanReport {
    pub appeared: Vec<NcclProcess>,
    /// Processes whose library can't be opened, with the reason.
    pub closed: Vec<(u32, String)>,
    /// Processes that no longer map NCCL or became another program, without having ended.
    pub replaced: Vec<u32>,
}

/// Tells two lives of one pid apart, and a program from the one that it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    start_time: u64,
    /// Address of the program's code: another one after exec. 0 where we may not know.
    start_code: u64,
}

#[derive(Clone, Debug)]
struct Seen {
    life: Life,
    has_nccl: bool,
    /// Bytes of address space at the last look into its maps.
    size: u64,
    at: Instant,
}

/// Scans `/proc` again and again.
#[derive(Debug)]
pub struct Scanner {
    root: PathBuf,
    seen: BTreeMap<u32, Seen>,
    /// Large files with other names, by device and inode as maps tell them: whether NCCL was linked into them.
    inside: BTreeMap<String, bool>,
}

impl Scanner {
    #[must_use]
    pub fn new(proc_root: &Path) -> Self {
        Self { root: proc_root.to_owned(), seen: BTreeMap::new(), inside: BTreeMap::new() }
    }

    /// Looks at all processes. Those that vanish meanwhile are skipped.
    ///
    /// # Errors
    /// If `/proc` itself can't be read.
    pub fn scan(&mut self) -> io::Result<ScanReport> {
        let mut report = ScanReport::default();
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&self.root)? {
            let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
            if let Some(life) = self.life(pid) {
                present.insert(pid);
                self.look(pid, life, &mut report);
            }
        }
        // The end of a process is told by its pidfd; here it only makes room.
        self.seen.retain(|pid, _| present.contains(pid));
        Ok(report)
    }

    fn life(&self, pid: u32) -> Option<Life> {
        let stat = Stat::from_read(File::open(self.root.join(pid.to_string()).join("stat")).ok()?).ok()?;
        // Kernel threads have no address space; a zombie's is gone.
        (stat.vsize > 0 && stat.state != 'Z').then_some(Life { start_time: stat.starttime, start_code: stat.startcode })
    }

    fn look(&mut self, pid: u32, life: Life, report: &mut ScanReport) {
        let size = self.size(pid);
        if let Some(seen) = self.seen.get(&pid) {
            if seen.life == life {
                let again = !seen.has_nccl && (size > seen.size.saturating_add(GROWN) || seen.at.elapsed() > RESCAN);
                if !again {
                    return;
                }
            } else if seen.has_nccl && seen.life.start_time == life.start_time {
                report.replaced.push(pid);
            }
        }
        let mapped = self.mapped_nccl(pid);
        self.seen.insert(pid, Seen { life, has_nccl: mapped.is_some(), size, at: Instant::now() });
        let Some(mapping) = mapped else { return };
        match self.open(pid, &mapping) {
            Ok(library) => report.appeared.push(NcclProcess {
                pid,
                name: self.text(pid, "comm").unwrap_or_default(),
                command: self.command(pid),
                library,
                code: (mapping.start(), mapping.offset),
            }),
            Err(e) => report.closed.push((pid, format!("cannot open {} of pid {pid}: {e}", mapping.path))),
        }
    }

    /// Bytes of address space.
    fn size(&self, pid: u32) -> u64 {
        let pages = self.text(pid, "statm").and_then(|s| s.split(' ').next().and_then(|n| n.parse::<u64>().ok()));
        pages.unwrap_or(0).saturating_mul(procfs::page_size())
    }

    fn text(&self, pid: u32, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(pid.to_string()).join(name)).ok().map(|s| s.trim().to_owned())
    }

    fn command(&self, pid: u32) -> String {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.root.join(pid.to_string()).join("cmdline")) {
            // What can't be read is left out of a description.
            file.take(COMMAND_LIMIT as u64).read_to_end(&mut bytes).ok();
        }
        let words: Vec<_> = bytes.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
        words.join(" ").trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }

    /// The first executable mapping of an NCCL library, or else of a file into which NCCL was linked; `None` also where
    /// the maps can't be read.
    fn mapped_nccl(&mut self, pid: u32) -> Option<Mapping> {
        let file = File::open(self.root.join(pid.to_string()).join("maps")).ok()?;
        let mut lines = BufReader::new(file.take(MAPS_LIMIT));
        let mut line = Vec::new();
        let mut others = Vec::new();
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line).ok()? == 0 {
                return others.into_iter().find(|m| self.holds_nccl(pid, m));
            }
            let mapping = Mapping::parse(&String::from_utf8_lossy(&line)).filter(Mapping::is_code_of_a_file);
            match mapping {
                Some(mapping) if mapping.is_nccl() => return Some(mapping),
                Some(mapping) if others.len() < OTHERS => others.push(mapping),
                _ => {}
            }
        }
    }

    /// Whether NCCL was linked into a file. Each file is looked at once.
    fn holds_nccl(&mut self, pid: u32, mapping: &Mapping) -> bool {
        if let Some(known) = self.inside.get(&mapping.file) {
            return *known;
        }
        let holds = self.open(pid, mapping).is_ok_and(|library| {
            let large = library.file.metadata().is_ok_and(|meta| meta.len() >= LARGE);
            large && NcclFile::open(&library.file).is_ok_and(|nccl| nccl.is_some())
        });
        // A host has some thousands; what is deleted is asked anew now and then.
        if self.inside.len() >= FILES {
            self.inside.clear();
        }
        self.inside.insert(mapping.file.clone(), holds);
        holds
    }

    /// Opens the very file that is mapped, whatever its path now leads to.
    fn open(&self, pid: u32, mapping: &Mapping) -> io::Result<LibraryRef> {
        let dir = self.root.join(pid.to_string());
        let file = File::open(dir.join("map_files").join(&mapping.range)).or_else(|e| {
            // map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
            if mapping.deleted {
                return Err(e);
            }
            File::open(dir.join("root").join(mapping.path.trim_start_matches('/')))
        })?;
        let meta = file.metadata()?;
        Ok(LibraryRef {
            path: mapping.path.clone(),
            dev: meta.dev(),
            ino: meta.ino(),
            file: Arc::new(file),
            root: Some(dir.join("root")),
        })
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    /// `START-END` in hex, which is also its name in map_files.
    range: String,
    offset: u64,
    /// Device and inode.
    file: String,
    executable: bool,
    path: String,
    deleted: bool,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut rest = line.trim_end_matches('\n');
        let mut field = || {
            let (head, tail) = rest.split_once(' ')?;
            rest = tail.trim_start();
            Some(head.to_owned())
        };
        let range = field()?;
        let permissions = field()?;
        let (offset, device) = (u64::from_str_radix(&field()?, 16).ok()?, field()?);
        // The path follows the inode and may hold spaces; without one there is nothing after the inode.
        let file = format!("{device} {}", field()?);
        let (path, deleted) = match rest.strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (rest, false),
        };
        Some(Self { range, offset, file, executable: permissions.contains('x'), path: path.to_owned(), deleted })
    }

    fn start(&self) -> u64 {
        self.range.split('-').next().and_then(|s| u64::from_str_radix(s, 16).ok()).unwrap_or(0)
    }

    fn is_code_of_a_file(&self) -> bool {
        self.executable && self.path.starts_with('/')
    }

    fn is_nccl(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or("");
        self.is_code_of_a_file() && name.starts_with("libnccl.so")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_lines() {
        let m =
            Mapping::parse("7f00-7f10 r-xp 00001000 fe:00 123    /opt/my libs/libnccl.so.2.27.5 (deleted)\n").unwrap();
        assert_eq!(
            (m.range.as_str(), m.path.as_str(), m.deleted),
            ("7f00-7f10", "/opt/my libs/libnccl.so.2.27.5", true)
        );
        assert!(m.is_nccl());
        for no in [
            "7f00-7f10 r--p 00001000 fe:00 123 /opt/libnccl.so.2",
            "7f00-7f10 r-xp 00001000 fe:00 123 /opt/libnccl-net.so",
            "7f00-7f10 r-xp 00000000 00:00 0 [vdso]",
        ] {
            assert!(!Mapping::parse(no).unwrap().is_nccl(), "{no}");
        }
        for bad in ["", "7f00", "7f00-7f10 r-xp", "7f00-7f10 r-xp 0 0 0"] {
            assert_eq!(Mapping::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_unreadable_proc_is_an_error_and_strange_entries_are_not() {
        assert!(Scanner::new(Path::new("/nonexistent")).scan().is_err());
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("self/x", ""), ("17/stat", "garbage"), ("18/stat", ""), ("19/maps", "x")] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let report = Scanner::new(dir.path()).scan().unwrap();
        assert!(report.appeared.is_empty() && report.closed.is_empty() && report.replaced.is_empty());
    }
}
