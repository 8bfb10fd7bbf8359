//! The load library and its driver, built with the system's C compiler.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use tempfile::TempDir;

/// How the library is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// As NVIDIA's wheels: symbols and DWARF.
    Debug,
    /// Symbols, no DWARF: what NCCL's own makefile gives.
    Symbols,
    /// Neither: what distributions ship.
    Stripped,
}

/// A folder with `libnccl.so.2` and the driver.
#[derive(Debug)]
pub struct Load {
    dir: TempDir,
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

impl Load {
    /// Builds both.
    ///
    /// # Panics
    /// Without a C compiler.
    #[must_use]
    pub fn build(build: Build) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        let library = dir.path().join("libnccl.so.2");
        // Frame pointers make most functions start with a push; some compilers schedule another instruction before it,
        // and then a probe costs more here than in NCCL. Nothing that is tested with this library depends on the cost.
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,--build-id"])
            .arg("-DLOAD_VERSION=\"2.27.5\"")
            .args((build == Build::Debug).then_some("-g"))
            .arg(source.join("loadlib.c"))
            .arg("-o")
            .arg(&library);
        run(&mut cc);
        if build == Build::Stripped {
            run(Command::new("strip").arg("-s").arg(&library));
        }
        let driver = source.join("loaddrive.c");
        run(Command::new("cc")
            .args(["-O2", "-o"])
            .arg(dir.path().join("loaddrive"))
            .arg(driver)
            .args(["-ldl", "-lpthread"]));
        // Tests run it as other users.
        run(Command::new("chmod").arg("-R").arg("a+rX").arg(dir.path()));
        Self { dir }
    }

    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libnccl.so.2")
    }

    #[must_use]
    pub fn driver(&self) -> PathBuf {
        self.dir.path().join("loaddrive")
    }

    /// Starts a driver that has loaded the library and waits for [`Driver::go`].
    #[must_use]
    pub fn start(&self, options: &str) -> Driver {
        self.start_on(&self.library(), options)
    }

    /// The same with another copy of the library.
    #[must_use]
    pub fn start_on(&self, library: &Path, options: &str) -> Driver {
        let mut command = Command::new(self.driver());
        command.arg(library).args(options.split_whitespace()).arg("delay_ms=-1");
        Driver::spawn(command)
    }
}

/// A running driver; killed when dropped.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Driver {
    /// Starts `command`, which runs the driver with `delay_ms=-1`, and waits until it has loaded its library.
    ///
    /// # Panics
    /// If it does not come so far.
    #[must_use]
    pub fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = lines.next().expect("the driver ended").expect("the driver's output");
        assert_eq!(first, "ready");
        Self { child, stdin, lines }
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it run.
    pub fn go(&mut self) {
        let stdin = self.stdin.as_mut().expect("told once");
        stdin.write_all(b"\n").expect("the driver lives");
    }

    /// Waits until one of its threads is done and returns what an operation took, ns.
    ///
    /// # Panics
    /// If the driver ends before.
    pub fn ns_per_op(&mut self) -> f64 {
        let line = self.lines.next().expect("the driver ended").expect("the driver's output");
        line.strip_prefix("ns_per_op ").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("unexpected: {line}"))
    }

    /// Ends a driver that was told to stay.
    pub fn release(&mut self) {
        self.stdin = None;
    }

    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Whether it has not ended.
    pub fn alive(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|s| s.is_none())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
    }
}
