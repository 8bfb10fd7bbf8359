//! What the machine must bring by itself; each lack is one line that says the way out.

use std::{env, path::Path};

use anyhow::{Result, bail};
use nix::unistd::Uid;

use crate::toolchain::Rustc;

/// A program from the system, the Debian package it is in, and what it is for.
struct Program {
    name: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program { name: "cc", package: "gcc", purpose: "links every Rust program" },
    Program { name: "ld", package: "binutils", purpose: "links every Rust program" },
    Program { name: "strip", package: "binutils", purpose: "makes the symbol-free libraries of some tests" },
    Program { name: "ip", package: "iproute2", purpose: "makes the network namespaces of the test bed" },
];

/// To build and to run the bed.
pub(crate) fn system(rustc: &Rustc) -> Result<String> {
    let mut lacks = Vec::new();
    let (os, arch) = (env::consts::OS, env::consts::ARCH);
    if (os, arch) != ("linux", "x86_64") {
        lacks.push(format!("this machine is {os} on {arch}: Mycroft is built and tested on Linux on x86_64 only"));
    }
    let pinned = pinned_toolchain();
    if older(&rustc.release, pinned) {
        let found = &rustc.release;
        lacks.push(format!("rustc {found} is too old: rustup toolchain install {pinned} (and unset RUSTUP_TOOLCHAIN)"));
    }
    lacks.extend(PROGRAMS.iter().filter(|p| !on_path(p.name)).map(|p| {
        let Program { name, package, purpose } = p;
        format!("no `{name}`, which {purpose}: apt-get install {package}")
    }));
    told(&lacks, &format!("rustc {}, cc, ld, strip and ip are there", rustc.release))
}

/// To attach probes; `otherwise` says what works without.
pub(crate) fn kernel(otherwise: &str) -> Result<String> {
    let mut lacks = Vec::new();
    if !Uid::effective().is_root() {
        lacks.push(format!("not root, which attaching probes needs: run it as root{otherwise}"));
    }
    let btf = Path::new("/sys/kernel/btf/vmlinux");
    if !btf.exists() {
        let btf = btf.display();
        lacks.push(format!(
            "no {btf}: boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (every distribution's since 2021)"
        ));
    }
    told(&lacks, "root, and a kernel with BTF")
}

pub(crate) fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn told(lacks: &[String], good: &str) -> Result<String> {
    match lacks {
        [] => Ok(good.to_owned()),
        lacks => bail!("{}", lacks.join("\nerror: ")),
    }
}

/// The channel that rust-toolchain.toml names.
fn pinned_toolchain() -> &'static str {
    let file = include_str!("../../rust-toolchain.toml");
    let channel = file.lines().find_map(|l| l.strip_prefix("channel = "));
    channel.unwrap_or_default().trim_matches('"')
}

fn older(release: &str, than: &str) -> bool {
    let numbers = |v: &str| -> Vec<u32> {
        let plain = v.split('-').next().unwrap_or(v);
        plain.split('.').map_while(|n| n.parse().ok()).collect()
    };
    numbers(release) < numbers(than)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(older("1.94.1", "1.95.0"));
        assert!(older("1.9.0", "1.95.0"));
        assert!(!older("1.95.0", "1.95.0"));
        assert!(!older("1.100.0-nightly", "1.95.0"));
    }

    #[test]
    fn the_pinned_toolchain_is_a_release() {
        assert!(!older(pinned_toolchain(), "1.95.0"), "{}", pinned_toolchain());
    }

    #[test]
    fn every_lack_is_a_line_of_its_own() {
        let error = told(&["no a".into(), "no b".into()], "good").unwrap_err().to_string();
        assert_eq!(error, "no a\nerror: no b");
        assert_eq!(told(&[], "good").unwrap(), "good");
    }

    #[test]
    fn programs_are_looked_up() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program"));
    }
}
