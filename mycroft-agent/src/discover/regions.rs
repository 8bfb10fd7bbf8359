//! Where a process keeps its own data: ordinary private memory, and which pages of it exist.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Bytes of one process's maps that are read at most.
const MAPS_LIMIT: u64 = 64 << 20;
/// Bytes that `/proc/PID/pagemap` has for a page, and its bits for one in memory or in swap.
const ENTRY: usize = 8;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// A part of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
}

/// The private writable memory of a process that no file and no device is behind, small regions first: what we look for is
/// in the heap or in a mapping of its own, and large regions are tensors.
///
/// # Errors
/// If the maps can't be read.
pub fn anonymous(proc_root: &Path, pid: u32) -> io::Result<Vec<Region>> {
    let file = File::open(proc_root.join(format!("{pid}/maps")))?;
    let mut regions: Vec<Region> =
        BufReader::new(file.take(MAPS_LIMIT)).lines().map_while(Result::ok).filter_map(|l| parse(&l)).collect();
    regions.sort_by_key(|r| (r.end - r.start, r.start));
    Ok(regions)
}

fn parse(line: &str) -> Option<Region> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let (_offset, device, inode) = (words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or("");
    // Names in brackets that begin with "anon:" were given by the process itself.
    let own = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    let private = permissions.starts_with("rw") && permissions.ends_with('p');
    let [start, end] = [start, end].map(|a| u64::from_str_radix(a, 16).ok());
    let region = Region { start: start?, end: end? };
    (private && own && inode == "0" && device == "00:00" && region.start < region.end).then_some(region)
}

/// Which pages of a process exist. Reading one that does not would make it.
#[derive(Debug)]
pub struct PageMap {
    file: Option<File>,
    page: u64,
    path: PathBuf,
}

impl PageMap {
    #[must_use]
    pub fn open(proc_root: &Path, pid: u32) -> Self {
        let path = proc_root.join(format!("{pid}/pagemap"));
        Self { file: File::open(&path).ok(), page: procfs::page_size().max(1), path }
    }

    /// The parts of `region` that exist; all of it where the kernel does not tell.
    pub fn present(&self, region: Region) -> Vec<Region> {
        let Some(file) = &self.file else { return vec![region] };
        let pages = (region.end - region.start).div_ceil(self.page);
        let mut entries = vec![0u8; usize::try_from(pages).unwrap_or(0) * ENTRY];
        if let Err(error) = file.read_exact_at(&mut entries, region.start / self.page * ENTRY as u64) {
            tracing::debug!(path = %self.path.display(), %error, "pages not told");
            return Vec::new();
        }
        let mut parts: Vec<Region> = Vec::new();
        for (i, entry) in (0..).zip(entries.chunks_exact(ENTRY)) {
            let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
            if entry & (PRESENT | SWAPPED) == 0 {
                continue;
            }
            let start = region.start + i * self.page;
            match parts.last_mut().filter(|p| p.end == start) {
                Some(part) => part.end += self.page,
                None => parts.push(Region { start, end: start + self.page }),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_its_own_counts() {
        let region = |start, end| Some(Region { start, end });
        for (line, expected) in [
            ("7f00-7f10 rw-p 00000000 00:00 0 ", region(0x7f00, 0x7f10)),
            ("7f00-7f10 rw-p 00000000 00:00 0    [heap]", region(0x7f00, 0x7f10)),
            ("7f00-7f10 rw-p 00000000 00:00 0    [anon:malloc]", region(0x7f00, 0x7f10)),
            ("7f00-7f10 rw-p 00000000 00:00 0    [stack]", None),
            ("7f00-7f10 r--p 00000000 00:00 0 ", None),
            ("7f00-7f10 rw-s 00000000 00:05 9    /dev/nvidiactl", None),
            ("7f00-7f10 rw-p 00000000 fe:00 9    /lib/libc.so.6", None),
            ("7f10-7f00 rw-p 00000000 00:00 0 ", None),
            ("nonsense", None),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    /// Of a mapping of which one page was touched, one exists.
    #[test]
    fn pages_that_were_never_touched_do_not_exist() {
        const WHOLE: usize = 256 << 20;
        let page = procfs::page_size();
        let mut memory: Vec<u8> = Vec::with_capacity(WHOLE);
        memory.resize(1, 1);
        let start = memory.as_ptr() as u64;
        let whole = Region { start: start / page * page, end: start + WHOLE as u64 };
        let parts = PageMap::open(Path::new("/proc"), std::process::id()).present(whole);
        let bytes: u64 = parts.iter().map(|p| p.end - p.start).sum();
        // The kernel may make a huge page of it.
        assert!(bytes >= page && bytes < 16 << 20, "{parts:?}");
    }
}
