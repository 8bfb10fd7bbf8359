//! Which files, and their bytes within bounds.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use super::Problem;
use crate::event::Nanos;

/// A dump of 20,000 operations with stacks has a third of it.
const FILE_BYTES: u64 = 256 << 20;
/// One file a rank, and as many logs.
const FILES: usize = 400_000;

/// A path given, or the files of a folder given, in the order of their names; `true` for one that was named itself.
pub(super) fn files(path: &Path, problems: &mut Vec<Problem>) -> Vec<(PathBuf, bool)> {
    if !path.is_dir() {
        return vec![(path.to_owned(), true)];
    }
    let listed = fs::read_dir(path).map(|dir| {
        let files = dir.filter_map(Result::ok).map(|e| e.path()).filter(|p| p.is_file() && !is_hidden(p));
        let mut files: Vec<PathBuf> = files.take(FILES + 1).collect();
        files.sort();
        files
    });
    let mut problem = |what: String| problems.push(Problem { path: path.to_owned(), what });
    match listed {
        Ok(files) if files.len() > FILES => problem(format!("more than {FILES} files: give those that matter")),
        Ok(files) if files.is_empty() => problem("a folder without files (its folders are not looked into)".to_owned()),
        Ok(files) => return files.into_iter().map(|f| (f, false)).collect(),
        Err(e) => problem(format!("cannot list: {e}")),
    }
    Vec::new()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."))
}

/// A file's bytes, and when it was written.
pub(super) fn bytes(path: &Path) -> Result<(Vec<u8>, Option<Nanos>), String> {
    let meta = fs::metadata(path).map_err(|e| format!("cannot read: {e}"))?;
    // Opening a pipe would wait for its writer, and writing into a Flight Recorder's pipe makes it dump.
    if !meta.is_file() {
        return Err("no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| format!("cannot open: {e}"))?;
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot read: {e}"))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(format!("larger than {} MiB", FILE_BYTES >> 20));
    }
    let written = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    Ok((bytes, written.and_then(|d| Nanos::try_from(d.as_nanos()).ok())))
}

/// The number at the end of a file's name, such as `_dump_12`, `nccl_trace_rank_12` or `rank_12.json`.
pub(super) fn rank_in_name(path: &Path) -> Option<u32> {
    let stem = path.file_stem()?.to_str()?;
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem[stem.len() - digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_at_the_end_of_the_name() {
        let rank = |name: &str| rank_in_name(Path::new(name));
        assert_eq!(rank("/x/_dump_12"), Some(12));
        assert_eq!(rank("comm_lib_trace_rank_3"), Some(3));
        assert_eq!(rank("rank_7.json"), Some(7));
        assert_eq!(rank("dump"), None);
        assert_eq!(rank("_dump_99999999999"), None);
    }

    #[test]
    fn only_regular_files_and_those_of_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let mut problems = Vec::new();
        assert!(files(dir.path(), &mut problems).is_empty());
        assert!(problems[0].what.contains("without files"));
        for name in ["b", "a", ".hidden"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("c")).unwrap();
        let list = files(dir.path(), &mut problems);
        assert_eq!(list.iter().map(|(p, _)| p.file_name().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(bytes(&dir.path().join("c")).unwrap_err(), "no regular file");
        assert!(bytes(&dir.path().join("d")).unwrap_err().starts_with("cannot read"));
        assert_eq!(bytes(&list[0].0).unwrap().0, b"a");
    }
}
