//! Layouts by what they were read from, so that a library is read once per host and not once per job.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::elf::NcclFile;
use super::layout::{LayoutError, LayoutSource, NcclLayout};

/// Raised when [`NcclLayout`] changes its meaning or what is read into it.
const SCHEMA: u32 = 3;

/// A layout has 4 KB; a longer file is not ours.
const FILE_LIMIT: u64 = 64 << 10;

/// More libraries than this on one host are not held in memory at once.
const KNOWN_LIMIT: usize = 64;

/// A layout on disk.
#[derive(Serialize, Deserialize)]
struct Stored<L> {
    schema: u32,
    layout: L,
}

/// Layouts that were read before, in memory and in one JSON file per build.
///
/// A build is told by the digest of its debug information, not by its build-id: any user can have a file mapped that bears
/// the build-id of NVIDIA's and other offsets, and the next job would be read with them.
///
/// Whoever can write to the directory decides which offsets of a traced process are read, so it must belong
/// to the agent's user.
#[derive(Debug)]
pub struct LayoutCache {
    dir: Option<PathBuf>,
    known: HashMap<String, Arc<NcclLayout>>,
}

impl LayoutCache {
    /// `dir` need not exist yet; `None` keeps layouts in memory only.
    #[must_use]
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { dir, known: HashMap::new() }
    }

    /// The layout of `nccl`. A file without debug information is looked at anew each time.
    ///
    /// Trouble with the directory is logged and does not fail the call.
    ///
    /// # Errors
    /// As for [`NcclLayout::of`].
    pub fn layout(&mut self, nccl: &NcclFile<'_>) -> Result<Arc<NcclLayout>, LayoutError> {
        let Some((id, key)) = nccl.build_id().zip(nccl.debug_digest()) else {
            return NcclLayout::of(nccl).map(Arc::new);
        };
        if let Some(known) = self.known.get(&key)
            && known.build_id.as_deref() == Some(id)
        {
            return Ok(Arc::clone(known));
        }
        let layout = match self.load(&key, id) {
            Some(layout) => layout,
            None => {
                let layout = NcclLayout::of(nccl)?;
                // The table is at hand anyway.
                if matches!(layout.source, LayoutSource::Dwarf | LayoutSource::DebugFile) {
                    self.store(&key, &layout);
                }
                layout
            }
        };
        if self.known.len() >= KNOWN_LIMIT {
            self.known.clear();
        }
        let layout = Arc::new(layout);
        self.known.insert(key, Arc::clone(&layout));
        Ok(layout)
    }

    fn load(&self, key: &str, id: &str) -> Option<NcclLayout> {
        let path = file_of(self.dir.as_deref()?, key);
        match read(&path, id) {
            Ok(layout) => Some(layout),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                debug!(path = %path.display(), %error, "cached layout not used");
                None
            }
        }
    }

    fn store(&self, key: &str, layout: &NcclLayout) {
        let Some(dir) = &self.dir else {
            return;
        };
        if let Err(error) = write(dir, key, layout) {
            warn!(dir = %dir.display(), %error, "cannot keep a layout");
        }
    }
}

/// `key` is hex, see [`NcclFile::debug_digest`].
fn file_of(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{key}.json"))
}

fn read(path: &Path, id: &str) -> io::Result<NcclLayout> {
    let mut text = String::new();
    File::open(path)?.take(FILE_LIMIT).read_to_string(&mut text)?;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    // The number alone first: another schema may not parse as this one.
    let stored: Stored<serde::de::IgnoredAny> = serde_json::from_str(&text)?;
    if stored.schema != SCHEMA {
        return Err(invalid("written by another release"));
    }
    let mut layout = serde_json::from_str::<Stored<NcclLayout>>(&text)?.layout;
    if layout.build_id.as_deref() != Some(id) {
        return Err(invalid("for another build-id"));
    }
    layout.check().map_err(|e| invalid(&e.to_string()))?;
    layout.source = LayoutSource::Cache;
    Ok(layout)
}

/// Readers see the old file or the new one, never a part.
fn write(dir: &Path, key: &str, layout: &NcclLayout) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    serde_json::to_writer_pretty(&mut file, &Stored { schema: SCHEMA, layout })?;
    file.flush()?;
    file.persist(file_of(dir, key))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::{image::Image, testing::nccl_library};

    /// A layout read from the library once, then by others from the directory.
    #[test]
    fn the_second_agent_finds_what_the_first_one_read() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made/on/demand");
        let file = nccl_library("2.27.5");
        let nccl = NcclFile::open(&file).unwrap().unwrap();

        let mut first = LayoutCache::new(Some(dir.clone()));
        let fresh = first.layout(&nccl).unwrap();
        assert_eq!(fresh.source, LayoutSource::Dwarf);
        assert!(Arc::ptr_eq(&fresh, &first.layout(&nccl).unwrap()));

        let cached = LayoutCache::new(Some(dir.clone())).layout(&nccl).unwrap();
        assert_eq!(cached.source, LayoutSource::Cache);
        let same = NcclLayout { source: LayoutSource::Dwarf, ..NcclLayout::clone(&cached) };
        assert_eq!(same, *fresh);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn files_that_are_wrong_are_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = nccl_library("2.27.5");
        let nccl = NcclFile::open(&file).unwrap().unwrap();
        let id = nccl.build_id().unwrap();
        let path = file_of(dir.path(), &nccl.debug_digest().unwrap());
        let fresh = LayoutCache::new(Some(dir.path().to_owned())).layout(&nccl).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let rank = format!("\"rank\": {}", fresh.comm.rank);
        for bad in [
            String::new(),
            "{\"schema\": 3}".to_owned(),
            good.replace("\"schema\": 3", "\"schema\": 0"),
            good.replace(id, "00"),
            good.replace(&rank, "\"rank\": 12"),
            good.get(..good.len() / 2).unwrap().to_owned(),
        ] {
            std::fs::write(&path, &bad).unwrap();
            let again = LayoutCache::new(Some(dir.path().to_owned())).layout(&nccl).unwrap();
            assert_eq!(again.source, LayoutSource::Dwarf, "{bad}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), good);
        }
    }

    /// A copy of the library with the same build-id and one byte of its debug information changed.
    #[test]
    fn a_forged_build_id_does_not_get_at_the_layout_of_others() {
        use std::os::unix::fs::FileExt as _;
        let dir = tempfile::tempdir().unwrap();
        let library = nccl_library("2.27.5");
        let mut genuine = library.try_clone().unwrap();
        let mut forged = tempfile::tempfile_in(dir.path()).unwrap();
        io::copy(&mut genuine, &mut forged).unwrap();
        let nccl = NcclFile::open(&library).unwrap().unwrap();
        let at = Image::open(&library).unwrap().section(".debug_str").unwrap().offset;
        forged.write_all_at(b"~", at).unwrap();
        let copy = NcclFile::open(&forged).unwrap().unwrap();
        assert_eq!(copy.build_id(), nccl.build_id());
        let mut cache = LayoutCache::new(Some(dir.path().join("cache")));
        let first = cache.layout(&copy).unwrap();
        let second = cache.layout(&nccl).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(second.source, LayoutSource::Dwarf, "read from the file itself");
    }

    #[test]
    fn a_directory_that_cannot_be_written_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let library = nccl_library("2.27.5");
        let nccl = NcclFile::open(&library).unwrap().unwrap();
        let layout = LayoutCache::new(Some(file.join("dir"))).layout(&nccl).unwrap();
        assert_eq!(layout.source, LayoutSource::Dwarf);
    }
}
