//! Rules on files as text or bytes: what is unfinished, too long, too large, or of one machine only.

use super::repo::{File, Problem, Repo};

const MAX_LINES: usize = 600;
const MAX_BYTES: usize = 1_000_000;

/// Written in pieces, as this file is read by its own rule.
const LATER: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
const UNFINISHED_MACROS: [&str; 2] = [concat!("to", "do"), concat!("unim", "plemented")];
const REGISTRIES: [&str; 5] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("deb.debian", ".org"),
    concat!("registry.npmjs", ".org"),
];
const HOMES: [&str; 2] = [concat!("/ho", "me/"), concat!("/Us", "ers/")];
const ROOTS_HOME: &str = concat!("/ro", "ot/");
/// Whose home a text may name as an example.
const NOBODY: [&str; 4] = ["user", "USER", "me", "alice"];

pub(super) fn unfinished(repo: &Repo) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in &repo.files {
        for (n, line) in lines(file) {
            if let Some(word) = LATER.iter().find(|w| has_word(line, w)) {
                problems.push(file.problem(n, format!("{word}: do it, or file an issue")));
            }
        }
    }
    for (file, code) in repo.rust() {
        for name in UNFINISHED_MACROS {
            problems.extend(
                code.lines_of_sequence(&[name, "!"]).map(|n| file.problem(n, format!("{name}! is unfinished"))),
            );
        }
    }
    problems
}

pub(super) fn length(repo: &Repo) -> Vec<Problem> {
    let sources = repo.files.iter().filter(|f| f.path.ends_with(".rs"));
    let too_long = |file: &File| {
        let count = lines(file).count();
        let what = format!("{count} lines, more than {MAX_LINES}: split it by its concepts");
        (count > MAX_LINES).then(|| file.problem(count, what))
    };
    sources.filter_map(too_long).collect()
}

pub(super) fn size(repo: &Repo) -> Vec<Problem> {
    let refuse = |file: &File| {
        let what = if file.bytes.starts_with(b"\x7fELF") {
            "an ELF file: build or fetch it where it is needed"
        } else if file.path.ends_with(".whl") {
            "a wheel: pin it in xtask/wheels.txt"
        } else if file.bytes.len() > MAX_BYTES {
            "more than 1 MB"
        } else {
            return None;
        };
        Some(file.problem(1, what))
    };
    repo.files.iter().filter_map(refuse).collect()
}

pub(super) fn machines(repo: &Repo) -> Vec<Problem> {
    let mut problems = Vec::new();
    // the lock files are cargo's, which names its registry in them
    for file in repo.files.iter().filter(|f| !f.path.ends_with("Cargo.lock")) {
        for (n, line) in lines(file) {
            if let Some(host) = REGISTRIES.iter().find(|host| line.contains(*host)) {
                problems.push(file.problem(
                    n,
                    format!("names the registry's host {host}: what is fetched from where is a setting of the machine"),
                ));
            }
            if names_a_home(line) {
                problems.push(file.problem(n, "a path in somebody's home: another machine does not have it"));
            }
        }
    }
    problems
}

/// Only where a path begins: `/proc/1/root/…` is nobody's home.
fn names_a_home(line: &str) -> bool {
    let begins =
        |at: usize| line[..at].chars().next_back().is_none_or(|c| c.is_whitespace() || "\"'`(=:,<[".contains(c));
    let somebody = |at: usize, home: &str| {
        let rest = &line[at + home.len()..];
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        !name.is_empty() && !NOBODY.contains(&name.as_str())
    };
    line.match_indices(ROOTS_HOME).any(|(at, _)| begins(at))
        || HOMES.iter().any(|home| line.match_indices(home).any(|(at, _)| begins(at) && somebody(at, home)))
}

fn has_word(line: &str, word: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    line.match_indices(word)
        .any(|(at, _)| edge(line[..at].chars().next_back()) && edge(line[at + word.len()..].chars().next()))
}

fn lines(file: &File) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(file.text().unwrap_or_default().lines())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Repo) -> Vec<Problem>, path: &str, text: &str) -> usize {
        rule(&Repo::of(&[(path, text)])).len()
    }

    #[test]
    fn unfinished_work_is_refused_in_any_text() {
        for word in LATER {
            assert_eq!(count(unfinished, "a.rs", &format!("fn f() {{}} // {word}: more")), 1);
            assert_eq!(count(unfinished, "README.md", &format!("* {word}")), 1);
            assert_eq!(count(unfinished, "a.md", &format!("x{word}S")), 0);
        }
        for name in UNFINISHED_MACROS {
            assert_eq!(count(unfinished, "a.rs", &format!("fn f() {{ {name}!() }}")), 1);
            assert_eq!(count(unfinished, "a.rs", &format!("// {name}!()\nlet {name} = 1;")), 0);
        }
    }

    #[test]
    fn long_sources_are_refused() {
        assert_eq!(count(length, "a.rs", &"x\n".repeat(MAX_LINES)), 0);
        assert_eq!(count(length, "a.rs", &"x\n".repeat(MAX_LINES + 1)), 1);
        assert_eq!(count(length, "Cargo.lock", &"x\n".repeat(MAX_LINES + 1)), 0);
    }

    #[test]
    fn large_and_binary_files_are_refused() {
        assert_eq!(count(size, "a.json", &" ".repeat(MAX_BYTES)), 0);
        assert_eq!(count(size, "a.json", &" ".repeat(MAX_BYTES + 1)), 1);
        assert_eq!(count(size, "libx.so", "\x7fELF\x02"), 1);
        assert_eq!(count(size, "nccl.whl", "PK"), 1);
    }

    #[test]
    fn what_only_one_machine_has_is_refused() {
        for host in REGISTRIES {
            assert_eq!(count(machines, "a.toml", &format!("index = \"https://{host}/x\"")), 1);
            assert_eq!(count(machines, "Cargo.lock", &format!("source = \"{host}\"")), 0);
        }
        for home in HOMES {
            assert_eq!(count(machines, "a.md", &format!("see `{home}jane/x`")), 1);
            assert_eq!(count(machines, "a.md", &format!("see `{home}user/x` and {home}$NAME")), 0);
        }
        assert_eq!(count(machines, "a.sh", &format!("cd {ROOTS_HOME}x")), 1);
        assert_eq!(count(machines, "a.rs", &format!("\"/proc/{{pid}}{ROOTS_HOME}lib\"")), 0);
    }
}
