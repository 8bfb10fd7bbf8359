//! The report as text, 2.24 and later: it lists deviations only, so the other ranks are known by their number.

use std::collections::{BTreeMap, BTreeSet};

use mycroft_common::nccl::Func;

use super::{Communicator, Rank, UNTOLD, tell};
use crate::import::roster::Roster;

/// Ranks of one communicator that a text may make us list.
const RANKS: u32 = 1 << 17;
const NOT_NAMED: &str = "host not named";

pub(in crate::import) fn is_report(text: &str) -> bool {
    let has = |what: &str| text.lines().any(|l| l.trim_start().starts_with(what));
    has("Communicators...") && (has("Job summary") || has("Errors") || has("Warnings"))
}

/// What is said below one communicator's headings.
#[derive(Default)]
struct Section {
    hash: u64,
    size: u32,
    /// Named ranks, and what the text says they launched, by function.
    ranks: BTreeMap<u32, Rank>,
    /// Ranks that gave no answer.
    missing: BTreeSet<u32>,
    /// Of each function: how many ranks that are not named launched how many.
    rest: Vec<(Func, u32, u64)>,
}

/// Tells what the report says.
pub(in crate::import) fn read(text: &str, roster: &mut Roster) {
    let sizes = group_sizes(text);
    let mut sections: Vec<Section> = Vec::new();
    let mut func = Func::Unknown(-1);
    let mut silent = false;
    for line in text.lines() {
        if let Some((group, hash)) = heading(line) {
            let size = sizes.get(&group).copied().unwrap_or(0);
            // A communicator may have a heading among the errors and one among the warnings.
            if sections.iter().all(|s| s.hash != hash) {
                sections.push(Section { hash, size, ..Section::default() });
            }
            let at = sections.iter().position(|s| s.hash == hash).unwrap_or(0);
            let section = sections.remove(at);
            sections.push(section);
            silent = line.trim_end().ends_with("INCOMPLETE");
        } else if let Some(section) = sections.last_mut() {
            func = mismatch(line).unwrap_or(func);
            section.take(line, func, silent);
        }
    }
    let dead = dead_pids(text);
    for section in sections {
        tell(&section.whole(&dead), UNTOLD, roster);
    }
}

/// `#0-0 (78db921d1c117b4a) MISMATCH`: the group's number and the communicator's hash.
fn heading(line: &str) -> Option<(u32, u64)> {
    let (number, rest) = line.strip_prefix('#')?.split_once(" (")?;
    let hash = rest.split(')').next()?;
    Some((number.split('-').next()?.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
}

/// `Communicator ranks have different AllReduce operation counts`; `collective` before 2.26.
fn mismatch(line: &str) -> Option<Func> {
    let name = line.trim().strip_prefix("Communicator ranks have different ")?.split(' ').next()?;
    let known = (0..16).map(Func::from_code).find(|f| f.name() == name);
    Some(known.unwrap_or(Func::Unknown(-1)))
}

/// The table's ranks for each communicator, by group: the fifth column, `Ranks per comm`.
fn group_sizes(text: &str) -> BTreeMap<u32, u32> {
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let [group, _, _, _, size, _, status, ..] = cells.as_slice() else { return None };
        let is_row = status.chars().all(|c| c.is_ascii_uppercase() || c == ',');
        Some((group.parse().ok()?, size.parse::<u32>().ok().filter(|n| is_row && *n <= RANKS)?))
    });
    rows.collect()
}

/// `Process 3748990 on node node1 managing GPU 3` below `DEAD`.
fn dead_pids(text: &str) -> Vec<(u32, String)> {
    let below = text.lines().skip_while(|l| l.trim_end() != "DEAD").skip(1);
    let until = below.take_while(|l| !l.trim().is_empty());
    let process = |l: &str| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let ["Process", pid, "on", "node", host, ..] = words.as_slice() else { return None };
        Some((pid.parse().ok()?, (*host).to_owned()))
    };
    until.filter_map(process).collect()
}

impl Section {
    fn take(&mut self, line: &str, func: Func, silent: bool) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Rank", rank, what @ ..] => {
                let Ok(rank) = rank.trim_end_matches(',').parse() else { return };
                let known = self.ranks.entry(rank).or_insert_with(|| Rank { rank, ..place(line) });
                if silent {
                    self.missing.insert(rank);
                }
                if let Some(count) = launched(what) {
                    known.counts.get_or_insert_default().push((func, count));
                }
            }
            [number, "ranks" | "rank", what @ ..] => {
                self.rest.extend(number.parse().ok().zip(launched(what)).map(|(n, count)| (func, n, count)));
            }
            _ => {}
        }
    }

    /// With the ranks that are not named, where their number says that all of them launched the same.
    fn whole(mut self, dead: &[(u32, String)]) -> Communicator {
        let most = self.ranks.keys().next_back().map_or(0, |r| r.saturating_add(1)).min(RANKS);
        let size = self.size.max(most);
        for (func, number, count) in std::mem::take(&mut self.rest) {
            let named = |r: &u32| {
                let counts = self.ranks.get(r).and_then(|known| known.counts.as_ref());
                self.missing.contains(r) || counts.is_some_and(|c| c.iter().any(|(f, _)| *f == func))
            };
            let unnamed: Vec<u32> = (0..size).filter(|r| !named(r)).collect();
            if unnamed.len() != number as usize {
                continue;
            }
            for rank in unnamed {
                let known = self.ranks.entry(rank).or_insert_with(|| unnamed_rank(rank));
                known.counts.get_or_insert_default().push((func, count));
            }
        }
        let gone = |r: &Rank| dead.iter().any(|(pid, host)| (*pid, host) == (r.pid, &r.host));
        let ranks = self.ranks.into_values().map(|r| Rank { gone: gone(&r), ..r }).collect();
        Communicator { hash: self.hash, second: String::new(), size, ranks }
    }
}

fn unnamed_rank(rank: u32) -> Rank {
    // A host for each, so that they are told apart, and pid 0 for a process that is not known.
    Rank { rank, host: format!("{NOT_NAMED}, of rank {rank}"), cuda_dev: -1, nvml_dev: -1, ..Rank::default() }
}

/// `… launched up to operation 64`, or `… not launched any operations`.
fn launched(words: &[&str]) -> Option<u64> {
    if words.windows(3).any(|w| w == ["not", "launched", "any"]) {
        return Some(0);
    }
    let at = words.windows(3).position(|w| w == ["up", "to", "operation"])?;
    words.get(at + 3)?.parse().ok()
}

/// `… -- GPU 3 managed by process 1650386 on node node1`.
fn place(line: &str) -> Rank {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |word: &str| words.iter().position(|w| *w == word).and_then(|at| words.get(at + 1)).copied();
    let device = after("GPU").and_then(|n| n.parse().ok()).unwrap_or(-1);
    Rank {
        host: after("node").unwrap_or(NOT_NAMED).to_owned(),
        pid: after("process").and_then(|n| n.parse().ok()).unwrap_or(0),
        cuda_dev: device,
        nvml_dev: device,
        ..Rank::default()
    }
}
