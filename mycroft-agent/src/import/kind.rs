//! What kind of file it is, by its first bytes and keys; files of one kind are taken together.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    Import, Part,
    flight::{self, dump::Dump},
    inspector::{self, Records},
    log::Logs,
    pickle, ras, repair,
    roster::Roster,
    source,
};
use crate::event::Nanos;

/// Operations of all dumps together: 10 million are 2 GB.
const ENTRIES: usize = 10_000_000;

/// What can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    FlightRecorder,
    Ras,
    Inspector,
    Log,
}

impl Kind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlightRecorder => "Flight Recorder dumps",
            Self::Ras => "RAS reports",
            Self::Inspector => "Inspector files",
            Self::Log => "logs",
        }
    }
}

/// Files read so far.
#[derive(Debug, Default)]
pub(super) struct Sources {
    dumps: BTreeMap<u32, (PathBuf, Dump)>,
    entries: usize,
    /// When the newest RAS report was made.
    reported: Option<Nanos>,
    records: Records,
    logs: Logs,
    /// Whom reports, records and logs name.
    roster: Roster,
    counts: BTreeMap<Kind, usize>,
    /// When the newest of the files used was written.
    pub(super) written: Option<Nanos>,
}

/// A file's content.
enum Content<'a> {
    Json(Value),
    Text(&'a str),
    Other,
}

impl Sources {
    /// Reads one file. One that was found in a folder may be of no known kind; one that was named may not.
    pub(super) fn take(&mut self, path: &Path, named: bool, import: &mut Import) {
        let used = source::bytes(path).and_then(|(bytes, written)| Ok((self.sort(path, &bytes)?, written)));
        match used {
            Ok((Some(kind), written)) => {
                *self.counts.entry(kind).or_default() += 1;
                self.written = self.written.max(written);
            }
            Ok((None, _)) if !named => import.other += 1,
            Ok((None, _)) => import.problem(path, "of no kind that can be imported; docs/import.md lists them"),
            Err(what) => import.problem(path, what),
        }
    }

    fn sort(&mut self, path: &Path, bytes: &[u8]) -> Result<Option<Kind>, String> {
        match content(bytes)? {
            Content::Json(value) if ras::is_report(&value) => {
                self.reported = self.reported.max(ras::read_json(&value, &mut self.roster));
                return Ok(Some(Kind::Ras));
            }
            Content::Json(value) if ["entries", "pg_status", "pg_config"].iter().any(|k| value.get(k).is_some()) => {
                self.dump(path, &value)?;
                return Ok(Some(Kind::FlightRecorder));
            }
            Content::Text(text) if inspector::is_record(text) => {
                self.records.take(text)?;
                return Ok(Some(Kind::Inspector));
            }
            Content::Text(text) if ras::is_text_report(text) => {
                ras::read_text(text, &mut self.roster);
                return Ok(Some(Kind::Ras));
            }
            Content::Json(_) => return Ok(None),
            Content::Text(_) | Content::Other => {}
        }
        // A log may hold anything between the lines that we know.
        Ok((self.logs.take(bytes) > 0).then_some(Kind::Log))
    }

    fn dump(&mut self, path: &Path, value: &Value) -> Result<(), String> {
        let dump = Dump::of(value)?;
        let rank = source::rank_in_name(path)
            .or(dump.rank)
            .ok_or("a Flight Recorder dump of an unknown rank: its file's name must end in it, as _dump_3 does")?;
        if let Some((other, _)) = self.dumps.get(&rank) {
            return Err(format!("rank {rank} has a dump already: {}; give the files of one moment", other.display()));
        }
        self.entries = self.entries.saturating_add(dump.entries.len());
        if self.entries > ENTRIES {
            return Err(format!("more than {ENTRIES} operations in all files: give the ranks that matter"));
        }
        self.dumps.insert(rank, (path.to_owned(), dump));
        Ok(())
    }

    pub(super) fn parts(mut self, import: &mut Import) -> Vec<Part> {
        import.used = self.counts.into_iter().collect();
        let mut parts = Vec::new();
        if !self.dumps.is_empty() {
            parts.push(flight::part(self.dumps.into_iter().map(|(rank, (_, dump))| (rank, dump)).collect()));
        }
        if import.used.iter().any(|(kind, _)| *kind == Kind::Inspector) {
            parts.push(self.records.part(&mut self.roster));
        }
        if import.used.iter().any(|(kind, _)| *kind == Kind::Log) {
            parts.push(self.logs.part(&mut self.roster));
        }
        parts.push(Part { events: self.roster.events, newest: self.reported, ..Part::default() });
        parts
    }
}

fn content(bytes: &[u8]) -> Result<Content<'_>, String> {
    if bytes.first() == Some(&0x80) {
        return pickle::read(bytes).map(Content::Json).map_err(|e| e.to_string());
    }
    let Some(first) = bytes.iter().find(|b| !b.is_ascii_whitespace()) else { return Err("empty".to_owned()) };
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(Content::Other) };
    if *first != b'{' || inspector::is_record(text) {
        return Ok(Content::Text(text));
    }
    match repair::parse(text) {
        Ok((value, _)) => Ok(Content::Json(value)),
        Err(e) => Err(format!("line {}, column {}: {e}", e.line(), e.column())),
    }
}
