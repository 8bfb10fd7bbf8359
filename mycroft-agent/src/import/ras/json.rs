//! The report as JSON, 2.28.7 and later.

use mycroft_common::nccl::Func;
use serde_json::Value;

use super::{Communicator, Rank, UNTOLD, tell};
use crate::{
    event::{Nanos, ids::SECOND},
    import::{
        roster::Roster,
        value::{flag, items, number, text},
    },
};

/// Functions that RAS counts, under the names it gives them.
const COUNTED: [Func; 5] = [Func::Broadcast, Func::Reduce, Func::AllGather, Func::ReduceScatter, Func::AllReduce];

pub(in crate::import) fn is_report(v: &Value) -> bool {
    v.get("communicators").is_some_and(Value::is_array)
}

/// Tells what the report says; returns its moment, if it tells one.
pub(in crate::import) fn read(report: &Value, roster: &mut Roster) -> Option<Nanos> {
    let at = text(report.get("timestamp")).and_then(moment);
    for comm in items(report.get("communicators")).iter().filter_map(communicator) {
        tell(&comm, at.unwrap_or(UNTOLD), roster);
    }
    at
}

fn communicator(v: &Value) -> Option<Communicator> {
    let hash = text(v.get("hash"))?;
    let hash = u64::from_str_radix(hash.trim_start_matches("0x"), 16).ok()?;
    let size = u32::try_from(number(v.get("size"))?).ok()?;
    let mut ranks: Vec<Rank> = items(v.get("ranks")).iter().filter_map(rank).collect();
    ranks.extend(items(v.get("missing_ranks")).iter().filter_map(missing));
    let second = text(v.get("secondary_hash")).unwrap_or_default().to_owned();
    Some(Communicator { hash, second, size, ranks })
}

fn rank(v: &Value) -> Option<Rank> {
    let status = |key| v.get("status").and_then(|s| s.get(key));
    let counts = v
        .get("collective_counts")
        .map(|counts| COUNTED.iter().map(|f| (*f, number(counts.get(f.name())).unwrap_or(0))).collect::<Vec<_>>());
    let code = |key| number(status(key)).and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    // While a communicator is being made its state is ncclInProgress, 7: no error.
    let error = [code("async_error"), code("init_state")].into_iter().find(|c| *c != 0 && *c != 7).unwrap_or(0);
    Some(Rank { counts, error, aborted: flag(status("abort_flag")), ..place(v)? })
}

/// A rank that gave no answer. It is not called gone before RAS itself gives it up.
fn missing(v: &Value) -> Option<Rank> {
    let dead = v.get("status").and_then(|s| s.get("considered_dead"));
    Some(Rank { gone: flag(dead), ..place(v)? })
}

fn place(v: &Value) -> Option<Rank> {
    let small = |key| number(v.get(key)).and_then(|n| u32::try_from(n).ok());
    let device = |key| small(key).and_then(|n| i32::try_from(n).ok()).unwrap_or(-1);
    Some(Rank {
        rank: small("rank")?,
        host: text(v.get("host")).unwrap_or("?").to_owned(),
        pid: small("pid")?,
        cuda_dev: device("cuda_dev"),
        nvml_dev: device("nvml_dev"),
        ..Rank::default()
    })
}

/// `2026-09-23 11:55:37` as seconds, as if it were UTC: RAS does not write its zone, and only differences matter.
fn moment(text: &str) -> Option<Nanos> {
    let (date, time) = text.trim().split_once(' ')?;
    let parts = |s: &str, by| s.split(by).map(|n| n.parse::<u64>().ok()).collect::<Option<Vec<u64>>>();
    let ([year, month, day], [hour, minute, second]) =
        (parts(date, '-')?.try_into().ok()?, parts(time, ':')?.try_into().ok()?);
    let in_range = (1970..3000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some((((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * SECOND)
}

/// Days from 1970 on. The year begins in March here, so that the leap day is its last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        assert_eq!(moment("1970-01-01 00:00:00"), Some(0));
        assert_eq!(moment("2026-09-23 11:55:37"), Some(1_790_164_537 * SECOND));
        assert_eq!(moment("2024-02-29 23:59:59"), Some(1_709_251_199 * SECOND));
        assert_eq!(moment("2026-13-01 00:00:00"), None);
        assert_eq!(moment("yesterday"), None);
    }
}
