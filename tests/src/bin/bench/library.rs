//! The load library as NCCL is compiled: functions begin with a `push`.
//!
//! The kernel emulates a probed `push`. Other first instructions it lets the process run alone, with a second trap
//! after them. In the tests' build of the library the probed functions begin with a `cmp` and a `xor`: the compiler
//! moves the `push` behind the first branch, or does without.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

#[derive(Debug)]
pub(crate) struct Pushing(TempDir);

impl Pushing {
    pub(crate) fn build() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/loadlib.c");
        let mut cc = Command::new("cc");
        cc.args(["-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,--build-id"]);
        // Without optimisation every function has a frame.
        cc.args(["-O0", "-fcf-protection=none"]);
        cc.arg("-DLOAD_VERSION=\"2.27.5\"").arg(source).arg("-o").arg(dir.path().join("libnccl.so.2"));
        ensure!(cc.status().context("cc")?.success(), "{cc:?} failed");
        Ok(Self(dir))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("libnccl.so.2")
    }
}
