//! Files that users already have, as events: what a job left behind tells as much as what we would have traced.
//!
//! Owns: the formats of others, and the bounds within which their files are believed. Must not: judge, trust a file, or
//! run anything that stands in one. Stands beside `ingest`: both turn bytes into events, and nothing right of them knows
//! which it was, but for [`crate::event::Origin`].

mod flight;
mod inspector;
mod kind;
mod log;
mod pickle;
mod ras;
mod repair;
mod roster;
#[cfg(test)]
pub(crate) mod samples;
mod source;
mod value;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::event::{Event, Nanos, ids::SECOND};

pub use kind::Kind;

/// The value in a pickle, for tests that change it.
#[cfg(test)]
pub(crate) fn pickled(bytes: &[u8]) -> Result<serde_json::Value, String> {
    pickle::read(bytes).map_err(|e| e.to_string())
}

/// A file that was not copied anywhere since is as old as what it tells; one that is this much younger was.
const COPIED: Nanos = 24 * 3600 * SECOND;
/// Where no file says when it was written: people save these of jobs that have stood still for a while.
const ASSUMED: Nanos = 120 * SECOND;

/// All that the files tell.
#[derive(Debug, Default)]
pub struct Import {
    /// Oldest first.
    pub events: Vec<Event>,
    /// The moment that the files show.
    pub taken: Nanos,
    /// No file says when it was written, so that `taken` is an assumption.
    pub assumed: bool,
    /// How many files of each kind were used.
    pub used: Vec<(Kind, usize)>,
    /// Files that could not be used, and why.
    pub problems: Vec<Problem>,
    /// Files in a folder that are none of the kinds known.
    pub other: usize,
    /// Ranks of the job that left no file.
    pub absent: BTreeSet<u32>,
}

/// A file that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: PathBuf,
    pub what: String,
}

/// What files of one kind tell.
#[derive(Debug, Default)]
struct Part {
    events: Vec<Event>,
    /// The newest moment that they tell of; `None` if they tell no times.
    newest: Option<Nanos>,
    /// How long operations may take that have not ended: whoever wrote the files waited for so long.
    timeout: Nanos,
    absent: BTreeSet<u32>,
}

/// Reads files and the files of folders. A file that can't be read is told and left out.
#[must_use]
pub fn read(paths: &[PathBuf]) -> Import {
    let mut import = Import::default();
    let mut sources = kind::Sources::default();
    for path in paths {
        for (file, named) in source::files(path, &mut import.problems) {
            sources.take(&file, named, &mut import);
        }
    }
    let written = sources.written;
    let parts = sources.parts(&mut import);
    import.settle(parts, written);
    import
}

impl Import {
    fn problem(&mut self, path: &Path, what: impl Into<String>) {
        self.problems.push(Problem { path: path.to_owned(), what: what.into() });
    }

    /// One list of events, and the moment at which to judge.
    fn settle(&mut self, parts: Vec<Part>, written: Option<Nanos>) {
        let newest = parts.iter().filter_map(|p| p.newest).max();
        let timeout = parts.iter().map(|p| p.timeout).max().unwrap_or(0);
        for part in parts {
            self.events.extend(part.events);
            self.absent.extend(part.absent);
        }
        self.events.sort_by_key(|e| e.ts);
        let last = newest.max(self.events.last().map(|e| e.ts)).unwrap_or(0);
        let plausible = written.filter(|w| *w >= last && *w - last <= COPIED);
        self.assumed = plausible.is_none();
        self.taken = plausible.unwrap_or_else(|| last.saturating_add(timeout.max(ASSUMED)));
    }
}
