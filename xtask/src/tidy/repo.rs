//! The files that a rule looks at.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::code::Code;
use crate::exec;

#[derive(Debug)]
pub(super) struct File {
    /// From the root of the repository, with `/`.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Repo {
    pub(super) files: Vec<File>,
}

impl Repo {
    /// What is tracked, and what would be with `git add`.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let mut git = Command::new("git");
        // CI may run as another user than the one who cloned
        git.arg("-c").arg(format!("safe.directory={}", root.display())).arg("-C").arg(root);
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
        let names = exec::output(&mut git).context("cannot list the files of the repository")?;
        let mut files = Vec::new();
        for path in names.split_terminator('\0') {
            let at = root.join(path);
            // one that is tracked may be deleted by now
            if at.symlink_metadata().is_ok_and(|m| m.is_file()) {
                let bytes = fs::read(&at).with_context(|| format!("cannot read {path}"))?;
                files.push(File { path: path.to_owned(), bytes });
            }
        }
        Ok(Self { files })
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.to_owned(), bytes: text.into() };
        Self { files: files.iter().map(file).collect() }
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|f| f.path == path)
    }

    /// The Rust sources, without their comments and the insides of their strings.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, Code)> {
        let sources = self.files.iter().filter(|f| f.path.ends_with(".rs"));
        sources.filter_map(|f| Some((f, Code::of(f.text()?))))
    }
}

impl File {
    /// None for a file that is not text.
    pub(super) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    pub(super) fn problem(&self, line: usize, what: impl Into<String>) -> Problem {
        Problem { place: format!("{}:{line}", self.path), what: what.into() }
    }
}

/// A broken rule, and where.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) place: String,
    pub(super) what: String,
}
