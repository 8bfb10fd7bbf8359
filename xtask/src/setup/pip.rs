//! Fetching a pinned wheel with pip, and what its failures mean in one line.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow, bail};

use super::wheels::Wheel;
use crate::{exec, preflight};

const NO_PIP: &str = "no python3 with pip, which fetches NCCL: apt-get install python3-pip";

/// The wheel in `scratch`, its hash checked by pip.
pub(crate) fn download(wheel: &Wheel, scratch: &Path) -> Result<PathBuf> {
    let pip = || {
        let mut python = Command::new("python3");
        python.args(["-m", "pip"]);
        python
    };
    if !preflight::on_path("python3") || exec::output(pip().arg("--version")).is_err() {
        bail!(NO_PIP);
    }
    let requirement = scratch.join("requirements.txt");
    fs::write(&requirement, format!("nvidia-nccl-cu12=={} --hash=sha256:{}\n", wheel.release, wheel.sha256))?;
    let to = scratch.join("wheel");
    let temp = scratch.join("pip");
    fs::create_dir(&temp)?;

    let mut command = pip();
    command
        .args(["download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"])
        .args(["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2"])
        .arg("--requirement")
        .arg(&requirement)
        .arg("--dest")
        .arg(&to)
        // so that its part of the disk is the one whose space was checked, and is cleared with the rest
        .env("TMPDIR", &temp);
    let total = wheel.wheel_mb;
    let sign = |_: &str| format!("{} of {total} MB", megabytes(&temp).max(megabytes(&to)));
    let ended = exec::logged(&mut command, &scratch.join("pip.log"), sign)?;
    if !ended.success {
        return Err(anyhow!(meaning(&ended.output, wheel)));
    }
    let file = fs::read_dir(&to)?.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "whl"));
    file.context("pip fetched no wheel")
}

/// pip tells the cause in many lines of which the last is often the least telling.
fn meaning(output: &str, wheel: &Wheel) -> String {
    let Wheel { release, sha256, .. } = wheel;
    let has = |words: &[&str]| words.iter().any(|w| output.contains(w));
    if has(&["DO NOT MATCH THE HASHES"]) {
        let got = output.lines().find_map(|l| l.trim().strip_prefix("Got")).unwrap_or("another").trim();
        return format!(
            "the wheel of NCCL {release} has sha256 {got}, xtask/wheels.txt expects {sha256}: it is not used"
        );
    }
    let no_network =
        ["Retrying (", "NewConnectionError", "Max retries exceeded", "Temporary failure in name resolution"];
    if has(&no_network) {
        return "the Python package index cannot be reached: check the network, or name a mirror in PIP_INDEX_URL"
            .into();
    }
    if has(&["No matching distribution found"]) {
        return format!(
            "the Python package index has no nvidia-nccl-cu12 {release} for this system's Python and C library"
        );
    }
    if has(&["No space left on device"]) {
        return "the disk is full: free some space, or set MYCROFT_CACHE to a directory on another disk".into();
    }
    format!("pip could not fetch NCCL {release}:\n{}", exec::tail(output))
}

fn megabytes(dir: &Path) -> u64 {
    fn bytes(dir: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(dir) else { return 0 };
        let size = |e: fs::DirEntry| match e.metadata() {
            Ok(m) if m.is_dir() => bytes(&e.path()),
            Ok(m) => m.len(),
            Err(_) => 0,
        };
        entries.flatten().map(size).sum()
    }
    bytes(dir) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::wheels::Choice;

    fn meaning_of(output: &str) -> String {
        meaning(output, &Choice::only("2.27.5").wheels().unwrap()[0])
    }

    #[test]
    fn a_wrong_hash_is_told_with_both() {
        let text = meaning_of(
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    \
             nvidia-nccl-cu12==2.27.5:\n        Expected sha256 ad73\n             Got        beef\n",
        );
        assert!(text.contains("sha256 beef") && text.contains("ad730cf1"), "{text}");
    }

    #[test]
    fn no_network_is_told_though_pip_ends_with_no_distribution() {
        let text = meaning_of(
            "WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError'\n\
             ERROR: No matching distribution found for nvidia-nccl-cu12==2.27.5\n",
        );
        assert!(text.contains("cannot be reached"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn no_fitting_wheel_and_the_unforeseen() {
        assert!(meaning_of("ERROR: No matching distribution found for x").contains("no nvidia-nccl-cu12 2.27.5"));
        assert!(meaning_of("something else").ends_with("something else"));
    }
}
