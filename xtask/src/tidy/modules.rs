//! Which module of the agent may know which: the way of the data is the order of the modules.

use super::{
    code::{Code, Path},
    repo::{File, Problem, Repo},
};

const AGENT: &str = "mycroft-agent/src/";

/// A module may use those before it, and itself.
const ORDER: &[&str] = &[
    "event", "simulate", "discover", "probe", "sample", "evidence", "ingest", "import", "model", "graph", "rules",
    "report", "serve",
];
/// They join the others, so they see all and none of the others sees them.
const JOINS: &[&str] = &["app", "cli", "main", "lib"];
/// They only compute: what they need of the world arrives in events, so that a recording gives the same verdict.
const PURE: &[&str] = &["event", "simulate", "model", "graph", "rules"];
/// The only module that knows the eBPF library, so that another version of it is one folder's change.
const KNOWS_AYA: &str = "mycroft-agent/src/probe/";
const EBPF: &str = "mycroft-ebpf/";

pub(super) fn order(repo: &Repo) -> Vec<Problem> {
    agent(repo).flat_map(|(file, module, code)| out_of_order(file, &module, &code)).collect()
}

fn out_of_order(file: &File, module: &[String], code: &Code) -> Vec<Problem> {
    let Some(top) = module.first().filter(|top| !JOINS.contains(&top.as_str())) else {
        return Vec::new();
    };
    let Some(place) = ORDER.iter().position(|m| m == top) else {
        return vec![file.problem(1, format!("module `{top}` has no place in the order: {}", ORDER.join(", ")))];
    };
    let wrong = |path: &Path| {
        let used = used_module(path, module)?;
        let known = ORDER[..=place].contains(&used);
        (!known && !path.is_macro).then(|| {
            file.problem(path.line, format!("`{top}` must not use `{used}`, only {}", ORDER[..=place].join(", ")))
        })
    };
    code.paths().iter().filter_map(wrong).collect()
}

/// The top module that a path from within `module` leads to, if it leaves that module at all.
fn used_module<'a>(path: &'a Path, module: &[String]) -> Option<&'a str> {
    let supers = path.segments.iter().take_while(|s| *s == "super").count();
    let to_root = if path.starts_with(&["crate"]) { 1 } else { supers };
    let at_root = path.starts_with(&["crate"]) || (supers > 0 && supers >= module.len());
    let used = path.segments.get(to_root)?;
    // `use super::*` in a module of tests within the file
    (at_root && used != "*" && used != "self").then_some(used.as_str())
}

pub(super) fn purity(repo: &Repo) -> Vec<Problem> {
    let pure = agent(repo).filter(|(_, module, _)| module.first().is_some_and(|top| PURE.contains(&top.as_str())));
    pure.flat_map(|(file, module, code)| {
        let impure = |path: &Path| {
            let what = world(path)?;
            Some(file.problem(path.line, format!("`{}` only computes: no {what} in it", module[0])))
        };
        code.paths().iter().filter_map(impure).collect::<Vec<_>>()
    })
    .collect()
}

fn world(path: &Path) -> Option<&'static str> {
    const STARTS: &[(&[&str], &str)] = &[
        (&["tokio"], "tokio"),
        (&["aya"], "aya"),
        (&["std", "fs"], "std::fs"),
        (&["std", "net"], "std::net"),
        (&["std", "process"], "std::process"),
        (&["std", "env"], "std::env"),
    ];
    let start = STARTS.iter().find(|(start, _)| path.starts_with(start)).map(|(_, name)| *name);
    start
        .or(path.has(&["Instant", "now"]).then_some("Instant::now"))
        .or(path.has(&["SystemTime"]).then_some("SystemTime"))
}

pub(super) fn aya(repo: &Repo) -> Vec<Problem> {
    let sources = repo.rust().filter(|(file, _)| !file.path.starts_with(KNOWS_AYA));
    sources
        .flat_map(|(file, code)| {
            let kernel = file.path.starts_with(EBPF);
            let wrong = |path: &&Path| match path.segments[0].as_str() {
                "aya_ebpf" | "aya_log_ebpf" => !kernel,
                first => first == "aya" || first.starts_with("aya_") && !first.starts_with("aya_ebpf_"),
            };
            let what = if kernel { "the kernel's side uses aya_ebpf" } else { "only probe/ of the agent knows aya" };
            code.paths().iter().filter(wrong).map(|p| file.problem(p.line, what)).collect::<Vec<_>>()
        })
        .collect()
}

/// The agent's sources, each with the path of its module: `model/op.rs` and `model/op/mod.rs` are `[model, op]`.
fn agent(repo: &Repo) -> impl Iterator<Item = (&File, Vec<String>, Code)> {
    repo.rust().filter_map(|(file, code)| {
        let path = file.path.strip_prefix(AGENT)?.strip_suffix(".rs")?;
        let path = path.strip_suffix("/mod").unwrap_or(path);
        Some((file, path.split('/').map(str::to_owned).collect(), code))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that are refused.
    fn check(rule: fn(&Repo) -> Vec<Problem>, path: &str, text: &str) -> Vec<usize> {
        let problems = rule(&Repo::of(&[(path, text)]));
        problems.iter().map(|p| p.place.rsplit(':').next().unwrap().parse().unwrap()).collect()
    }

    fn agent_check(rule: fn(&Repo) -> Vec<Problem>, path: &str, text: &str) -> Vec<usize> {
        check(rule, &format!("{AGENT}{path}"), text)
    }

    #[test]
    fn to_the_left_is_fine() {
        let text = "use crate::{model::Op, graph::Node};\nuse super::helper;\nfn f() -> crate::ingest::X {}";
        assert_eq!(agent_check(order, "rules/engine.rs", text), [0; 0]);
        assert_eq!(
            agent_check(order, "model/mod.rs", "mod op;\nuse self::op::Op;\n#[cfg(test)] mod t { use super::*; }"),
            [0; 0]
        );
    }

    #[test]
    fn to_the_right_is_refused() {
        assert_eq!(agent_check(order, "model/op.rs", "\nuse crate::{ingest::X,\n rules::Y};"), [3]);
        assert_eq!(agent_check(order, "model/op.rs", "fn f() { crate::report::text() }"), [1]);
        assert_eq!(agent_check(order, "model/op.rs", "use super::super::graph::Node;"), [1]);
        assert_eq!(agent_check(order, "model.rs", "use super::graph::Node;"), [1]);
        assert_eq!(agent_check(order, "serve/http.rs", "use crate::app::App;"), [1]);
    }

    #[test]
    fn joining_modules_see_all_and_comments_do_not_count() {
        assert_eq!(agent_check(order, "app.rs", "use crate::{serve, rules};"), [0; 0]);
        assert_eq!(agent_check(order, "cli/watch.rs", "use crate::app;"), [0; 0]);
        assert_eq!(agent_check(order, "model/op.rs", "// crate::rules::x\n/* use crate::serve; */"), [0; 0]);
        assert_eq!(check(order, "tests/src/lib.rs", "use crate::rules::x;"), [0; 0]);
    }

    #[test]
    fn a_module_without_a_place_is_refused() {
        assert_eq!(agent_check(order, "helpers/x.rs", ""), [1]);
    }

    #[test]
    fn pure_modules_do_not_touch_the_world() {
        let bad = "use std::{fmt, fs};\nuse tokio::time;\nfn f() { Instant::now(); }\nuse std::time::SystemTime;\n\
                   fn g() { std::env::var(x) }\nuse std::net::IpAddr;\nuse std::process;\nuse aya::Ebpf;";
        assert_eq!(agent_check(purity, "rules/engine.rs", bad), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(agent_check(purity, "ingest/ringbuf.rs", bad), [0; 0]);
        let good = "use std::{fmt, time::{Duration, Instant}};\n// std::fs\nfn f(now: Instant) {}";
        assert_eq!(agent_check(purity, "graph/node.rs", good), [0; 0]);
    }

    #[test]
    fn aya_is_known_in_one_folder() {
        assert_eq!(agent_check(aya, "probe/load.rs", "use aya::Ebpf;"), [0; 0]);
        assert_eq!(agent_check(aya, "ingest/ringbuf.rs", "use aya::maps::RingBuf;"), [1]);
        assert_eq!(agent_check(aya, "app.rs", "fn f(e: aya::Ebpf) {}\nuse aya_obj::Object;"), [1, 2]);
        assert_eq!(check(aya, "tests/src/lib.rs", "use aya;"), [1]);
        assert_eq!(check(aya, "mycroft-ebpf/src/lib.rs", "use aya_ebpf::macros::map;"), [0; 0]);
        assert_eq!(check(aya, "mycroft-ebpf/src/lib.rs", "use aya::maps::Map;"), [1]);
        assert_eq!(check(aya, "mycroft-common/src/lib.rs", "// without aya::Pod\nuse aya_ebpf::x;"), [2]);
    }
}
