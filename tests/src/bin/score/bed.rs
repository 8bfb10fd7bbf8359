//! Results of the test bed, on real NCCL: made by its tests, told here.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::table::share;

/// One run, a line of the file.
#[derive(Debug, Deserialize)]
pub(crate) struct Row {
    class: String,
    nccl: String,
    /// The right rank and component were named.
    pub right: bool,
    /// An innocent rank was accused.
    pub wrong: bool,
    detect_s: Option<f64>,
    name_s: Option<f64>,
}

pub(crate) fn read(path: &str) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_str(line).with_context(|| {
                format!("{path}, line {}: wanted {{class, nccl, right, wrong, detect_s, name_s}}", i + 1)
            })
        })
        .collect()
}

pub(crate) fn table(rows: &[Row]) -> String {
    let mut by: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        by.entry((&row.class, &row.nccl)).or_default().push(row);
    }
    let mut text =
        "| fault | NCCL | runs | right culprit | wrong accusations | to detect, s (p50 / p90 / worst) | to name, s |\n\
                    | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for ((class, nccl), rows) in by {
        text += &format!(
            "| {class} | {nccl} | {} | {} | {} | {} | {} |\n",
            rows.len(),
            share(rows.iter().filter(|r| r.right).count(), rows.len()),
            rows.iter().filter(|r| r.wrong).count(),
            spread(rows.iter().filter_map(|r| r.detect_s).collect()),
            spread(rows.iter().filter_map(|r| r.name_s).collect())
        );
    }
    text
}

/// The 90th percentile and the worst of the times to detect, and of those to name.
pub(crate) fn times(rows: &[Row]) -> [(f64, f64); 2] {
    let of = |f: fn(&Row) -> Option<f64>| {
        let mut list: Vec<f64> = rows.iter().filter_map(f).collect();
        list.sort_by(f64::total_cmp);
        (at(&list, 90), at(&list, 100))
    };
    [of(|r| r.detect_s), of(|r| r.name_s)]
}

fn at(sorted: &[f64], percent: usize) -> f64 {
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0.0)
}

fn spread(mut list: Vec<f64>) -> String {
    list.sort_by(f64::total_cmp);
    format!("{:.1} / {:.1} / {:.1}", at(&list, 50), at(&list, 90), at(&list, 100))
}
