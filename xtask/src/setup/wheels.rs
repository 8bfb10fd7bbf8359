//! The table of pinned NCCL releases, `xtask/wheels.txt`, and the choice among them.

use anyhow::{Context as _, Result, bail};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wheel {
    pub(crate) release: String,
    pub(crate) sha256: String,
    pub(crate) wheel_mb: u64,
    pub(crate) library_mb: u64,
    by_default: bool,
}

/// Which releases of NCCL to have, and to test with.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Choice {
    /// A release of NCCL to use instead of the default ones; may be repeated
    #[arg(long = "nccl", value_name = "RELEASE", value_delimiter = ',')]
    releases: Vec<String>,
    /// Use every release that xtask/wheels.txt lists
    #[arg(long, conflicts_with = "releases")]
    all_nccl: bool,
}

impl Choice {
    pub(crate) fn only(release: &str) -> Self {
        Self { releases: vec![release.to_owned()], all_nccl: false }
    }

    pub(crate) fn all() -> Self {
        Self { releases: Vec::new(), all_nccl: true }
    }

    pub(crate) fn wheels(&self) -> Result<Vec<Wheel>> {
        self.among(parse(include_str!("../../wheels.txt"))?)
    }

    fn among(&self, known: Vec<Wheel>) -> Result<Vec<Wheel>> {
        if self.all_nccl {
            return Ok(known);
        }
        if self.releases.is_empty() {
            return Ok(known.into_iter().filter(|w| w.by_default).collect());
        }
        let find = |release: &String| {
            let wheel = known.iter().find(|w| w.release == *release);
            wheel.cloned().with_context(|| {
                let all: Vec<_> = known.iter().map(|w| w.release.as_str()).collect();
                format!("no NCCL {release} in xtask/wheels.txt, which has {}: add a line for it", all.join(", "))
            })
        };
        self.releases.iter().map(find).collect()
    }
}

fn parse(table: &str) -> Result<Vec<Wheel>> {
    let lines = (1..).zip(table.lines()).filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
    lines.map(|(n, l)| wheel(l).with_context(|| format!("xtask/wheels.txt, line {n}"))).collect()
}

fn wheel(line: &str) -> Result<Wheel> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[release, sha256, wheel_mb, library_mb, by_default] = &words[..] else {
        bail!("five columns expected, {} found", words.len());
    };
    if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
        bail!("{sha256} is no sha256 in hex");
    }
    let by_default = match by_default {
        "yes" => true,
        "no" => false,
        other => bail!("yes or no expected, {other} found"),
    };
    Ok(Wheel {
        release: release.to_owned(),
        sha256: sha256.to_owned(),
        wheel_mb: wheel_mb.parse().context("size of the wheel")?,
        library_mb: library_mb.parse().context("size of the library")?,
        by_default,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn releases(choice: &Choice) -> Vec<String> {
        choice.wheels().unwrap().into_iter().map(|w| w.release).collect()
    }

    #[test]
    fn the_default_is_the_oldest_supported_and_the_most_used() {
        assert_eq!(releases(&Choice::default()), ["2.21.5", "2.27.5"]);
    }

    #[test]
    fn all_and_some_can_be_asked_for() {
        assert_eq!(releases(&Choice::all()).len(), 5);
        assert_eq!(releases(&Choice::only("2.32.3")), ["2.32.3"]);
    }

    #[test]
    fn an_unknown_release_is_told_with_the_known_ones() {
        let error = Choice::only("9.9.9").wheels().unwrap_err().to_string();
        assert!(error.contains("9.9.9") && error.contains("2.27.5"), "{error}");
    }

    #[test]
    fn a_bad_line_is_refused_by_number() {
        for bad in ["2.1 abc 1 2 yes", "2.1", &format!("2.1 {} 1 2 maybe", "a".repeat(64))] {
            let error = parse(&format!("# head\n{bad}\n")).unwrap_err();
            assert!(format!("{error:#}").starts_with("xtask/wheels.txt, line 2: "), "{error:#}");
        }
    }
}
