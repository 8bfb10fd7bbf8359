//! `cargo xtask layouts`: writes the table of struct layouts that comes with the agent, from NVIDIA's own wheels.
//!
//! One wheel at a time is fetched, read and thrown away: all of them have more than 20 GB. The hash that the package index
//! gives for a wheel is checked by pip; what is taken from it is numbers, which a test compares with the pinned wheels.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cache::{Cache, Scratch},
    exec,
    progress::{self, Step},
    setup, stream,
    toolchain::{self, Rustc},
};

const TABLE: &str = "mycroft-agent/src/discover/layouts.json";
const PACKAGES: [&str; 3] = ["cu11", "cu12", "cu13"];
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];
/// Kinds of platform under which NVIDIA has published wheels; pip takes each only by its exact name.
const PLATFORMS: [&str; 13] = [
    "manylinux1",
    "manylinux2010",
    "manylinux2014",
    "manylinux_2_5",
    "manylinux_2_12",
    "manylinux_2_17",
    "manylinux_2_18",
    "manylinux_2_24",
    "manylinux_2_26",
    "manylinux_2_27",
    "manylinux_2_28",
    "manylinux_2_31",
    "manylinux_2_34",
];
/// Older releases have other structures.
const OLDEST: (u32, u32) = (2, 18);

/// Takes the library out of the wheel.
const UNPACK: &str = "
import glob, shutil, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + '/*.whl')[0]) as z:
    name = [n for n in z.namelist() if n.endswith('/libnccl.so.2')][0]
    with z.open(name) as member, open(folder + '/libnccl.so.2', 'wb') as file:
        shutil.copyfileobj(member, file, 1 << 20)
";

pub(crate) fn run() -> Result<bool> {
    let (cache, rustc) = (Cache::open()?, Rustc::in_use()?);
    let mut steps = setup::build_steps(&cache, &rustc);
    steps.push(Step::gate("build", build));
    steps.push(Step::gate("layouts", || table(&cache)));
    Ok(progress::run(steps).passed())
}

fn build() -> Result<String> {
    let mut cargo = toolchain::cargo();
    cargo.args(["build", "--release", "--package", "mycroft-tests", "--bin", "layouts"]);
    if !stream::run(&mut cargo, |_| false)?.success {
        bail!("cannot build; once more with `{}`", exec::shown(&cargo));
    }
    Ok("the reader of layouts".into())
}

fn reader() -> Result<PathBuf> {
    let xtask = env::current_exe()?;
    let target = xtask.parent().and_then(Path::parent).map(|target| target.join("release/layouts"));
    target.filter(|p| p.is_file()).context("the build made no program `layouts`")
}

fn table(cache: &Cache) -> Result<String> {
    let (mut lines, mut missing) = (String::new(), Vec::new());
    for package in PACKAGES {
        for release in releases(package)? {
            for machine in MACHINES {
                let scratch = cache.scratch("layouts")?;
                match extract(&scratch, package, &release, machine) {
                    Ok(line) => lines += &line,
                    Err(error) => missing.push(format!("{package} {release} {machine}: {error:#}")),
                }
                progress::note(&format!("{package} {release} {machine}, {} layouts", lines.lines().count()));
            }
        }
    }
    missing.iter().for_each(|m| progress::note(&format!("left out: {m}")));
    if lines.is_empty() {
        bail!("no wheel could be read");
    }
    let text = merge(&lines)?;
    fs::write(toolchain::repository().join(TABLE), &text)?;
    Ok(format!("{} builds in {TABLE} ({} KB), {} left out", lines.lines().count(), text.len() >> 10, missing.len()))
}

fn pip() -> Command {
    let mut python = Command::new("python3");
    python.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
    python
}

fn releases(package: &str) -> Result<Vec<String>> {
    let text = exec::output(pip().args(["index", "versions", &format!("nvidia-nccl-{package}")]))?;
    let list =
        text.lines().find_map(|l| l.trim().strip_prefix("Available versions:")).context("pip lists no releases")?;
    let number = |release: &str| {
        let mut parts = release.split('.').map(|p| p.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    };
    Ok(list.split(',').map(str::trim).filter(|r| number(r) >= OLDEST).map(str::to_owned).collect())
}

fn extract(scratch: &Scratch, package: &str, release: &str, machine: &str) -> Result<String> {
    let mut download = pip();
    download.args(["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest"]);
    download.arg(scratch.path()).arg(format!("nvidia-nccl-{package}=={release}"));
    for platform in PLATFORMS {
        download.arg("--platform").arg(format!("{platform}_{machine}"));
    }
    exec::output(&mut download).map_err(|_| anyhow::anyhow!("no such wheel"))?;
    exec::output(Command::new("python3").args(["-c", UNPACK]).arg(scratch.path()))?;
    exec::output(Command::new(reader()?).args(["extract", package]).arg(scratch.path().join("libnccl.so.2")))
}

fn merge(lines: &str) -> Result<String> {
    let mut child = Command::new(reader()?).arg("merge").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no input")?.write_all(lines.as_bytes())?;
    let out = child.wait_with_output()?;
    if !out.status.success() {
        bail!("layouts merge: {}", out.status);
    }
    Ok(String::from_utf8(out.stdout)?)
}
