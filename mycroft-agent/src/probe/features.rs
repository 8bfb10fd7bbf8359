//! What this machine offers to a tracer, and what to do about what it lacks.

use std::{fs, path::Path};

/// One thing that tracing needs or profits from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub what: &'static str,
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What to do, where something is to be done.
    pub remedy: Option<String>,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    Good,
    /// Works, with less.
    Degraded,
    /// Tracing can't work.
    Missing,
}

impl Grade {
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// All findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub findings: Vec<Finding>,
}

/// Capabilities by bit, with what each is for.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "load programs and maps"),
    (38, "CAP_PERFMON", "attach uprobes"),
    (19, "CAP_SYS_PTRACE", "read /proc of other users' processes and their memory"),
    (21, "CAP_SYS_ADMIN", "attach uprobes by perf event (kernels since mid-2025), open /proc/PID/map_files"),
];

impl Features {
    /// Looks at the running machine under `root` (`/` but in tests).
    #[must_use]
    pub fn probe(root: &Path) -> Self {
        Self {
            findings: vec![
                kernel(root),
                capabilities(root),
                btf(root),
                uprobes(root),
                lockdown(root),
                pid_namespace(root),
            ],
        }
    }

    #[must_use]
    pub fn worst(&self) -> Grade {
        self.findings.iter().map(|f| f.grade).max().unwrap_or(Grade::Good)
    }
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok().map(|s| s.trim().to_owned())
}

fn kernel(root: &Path) -> Finding {
    let release = read(root, "proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (grade, remedy) = match version {
        // bpf_get_attach_cookie, by which a probe knows its library.
        v if v < (5, 15) => (Grade::Missing, Some("use Linux 5.15 or later".to_owned())),
        v if v < (6, 15) => {
            (Grade::Degraded, Some("Linux 6.15 or later tells how a process ended (exit code, signal)".to_owned()))
        }
        _ => (Grade::Good, None),
    };
    Finding { what: "kernel", grade, found: format!("Linux {release}"), remedy }
}

fn capabilities(root: &Path) -> Finding {
    let status = read(root, "proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .and_then(|h| u64::from_str_radix(h.trim(), 16).ok())
        .unwrap_or(0);
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| effective & (1 << bit) == 0).collect();
    if lacking.is_empty() {
        return Finding {
            what: "privileges",
            grade: Grade::Good,
            found: "all that is needed".to_owned(),
            remedy: None,
        };
    }
    let names: Vec<_> = lacking.iter().map(|(_, name, _)| *name).collect();
    let why: Vec<_> = lacking.iter().map(|(_, name, why)| format!("{name}: {why}")).collect();
    Finding {
        what: "privileges",
        grade: Grade::Missing,
        found: format!("without {}", names.join(", ")),
        remedy: Some(format!("run as root, or grant: {}", why.join("; "))),
    }
}

fn btf(root: &Path) -> Finding {
    if root.join("sys/kernel/btf/vmlinux").exists() {
        return Finding { what: "BTF", grade: Grade::Good, found: "/sys/kernel/btf/vmlinux".to_owned(), remedy: None };
    }
    Finding {
        what: "BTF",
        grade: Grade::Degraded,
        found: "/sys/kernel/btf/vmlinux is not there".to_owned(),
        remedy: Some(
            "operations are traced all the same; in a container mount /sys/kernel/btf read-only, else use a kernel \
             with CONFIG_DEBUG_INFO_BTF"
                .to_owned(),
        ),
    }
}

fn uprobes(root: &Path) -> Finding {
    if read(root, "sys/bus/event_source/devices/uprobe/type").is_some() {
        return Finding { what: "uprobes", grade: Grade::Good, found: "perf event source".to_owned(), remedy: None };
    }
    Finding {
        what: "uprobes",
        grade: Grade::Missing,
        found: "no uprobe perf event source".to_owned(),
        remedy: Some("use a kernel with CONFIG_UPROBE_EVENTS; in a container mount /sys".to_owned()),
    }
}

fn lockdown(root: &Path) -> Finding {
    let mode = read(root, "sys/kernel/security/lockdown").unwrap_or_default();
    let (grade, remedy) = if mode.contains("[confidentiality]") {
        let remedy = "lockdown=confidentiality forbids reading user memory from BPF; boot with lockdown=integrity";
        (Grade::Missing, Some(remedy.to_owned()))
    } else {
        (Grade::Good, None)
    };
    let found = if mode.is_empty() { "not in use".to_owned() } else { mode };
    Finding { what: "lockdown", grade, found, remedy }
}

fn pid_namespace(root: &Path) -> Finding {
    /// `PROC_PID_INIT_INO` of the kernel.
    const INITIAL: &str = "pid:[4026531836]";
    let link = fs::read_link(root.join("proc/self/ns/pid")).map(|p| p.to_string_lossy().into_owned());
    match link {
        Ok(l) if l == INITIAL => {
            Finding { what: "pid namespace", grade: Grade::Good, found: "the host's".to_owned(), remedy: None }
        }
        other => Finding {
            what: "pid namespace",
            grade: Grade::Missing,
            found: other.unwrap_or_else(|e| e.to_string()),
            remedy: Some("run in the host's pid namespace (hostPID: true, docker --pid=host)".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn grade(features: &Features, what: &str) -> Grade {
        features.findings.iter().find(|f| f.what == what).unwrap().grade
    }

    #[test]
    fn an_old_kernel_without_anything_is_told_point_by_point() {
        let m = machine(&[
            ("proc/sys/kernel/osrelease", "4.18.0-553.el8.x86_64\n"),
            ("proc/self/status", "CapEff:\t0000000000000000\n"),
            ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
        ]);
        let f = Features::probe(m.path());
        for what in ["kernel", "privileges", "uprobes", "lockdown", "pid namespace"] {
            assert_eq!(grade(&f, what), Grade::Missing, "{what}");
        }
        assert_eq!(grade(&f, "BTF"), Grade::Degraded);
        assert!(f.findings.iter().all(|x| x.grade == Grade::Good || x.remedy.is_some()));
    }

    #[test]
    fn one_missing_capability_is_named_with_its_use() {
        let all_but_perfmon = !(1u64 << 38);
        let m = machine(&[("proc/self/status", &format!("CapEff:\t{all_but_perfmon:016x}\n"))]);
        let f = Features::probe(m.path());
        let p = f.findings.iter().find(|x| x.what == "privileges").unwrap();
        assert_eq!(p.found, "without CAP_PERFMON");
        assert!(p.remedy.as_ref().unwrap().contains("attach uprobes"));
    }
}
