//! `cargo xtask tidy`: the rules of this repository that no compiler checks. `cargo test` checks them too.

mod code;
mod modules;
mod pages;
mod repo;
mod text;
mod unsafe_code;

use anyhow::Result;

use crate::toolchain;
use repo::{Problem, Repo};

type Rule = fn(&Repo) -> Vec<Problem>;

const RULES: &[(&str, Rule)] = &[
    ("modules are used in their order", modules::order),
    ("model, graph and rules only compute", modules::purity),
    ("aya is known in one folder", modules::aya),
    ("nothing is unfinished", text::unfinished),
    ("sources are short", text::length),
    ("nothing large or built is committed", text::size),
    ("nothing depends on one machine", text::machines),
    ("each rule has a page and tests", pages::pages),
    ("unsafe has its places", unsafe_code::allowed),
];

pub(crate) fn run() -> Result<bool> {
    let broken = broken()?;
    for line in &broken {
        println!("{line}");
    }
    println!("tidy: {} rules, {} problems", RULES.len(), broken.len());
    Ok(broken.is_empty())
}

fn broken() -> Result<Vec<String>> {
    let repo = Repo::open(toolchain::repository())?;
    let mut broken = Vec::new();
    for (name, rule) in RULES {
        broken.extend(rule(&repo).iter().map(|p| format!("{}: {} ({name})", p.place, p.what)));
    }
    Ok(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let broken = broken().unwrap();
        assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    }

    #[test]
    fn the_repository_is_seen() {
        let repo = Repo::open(toolchain::repository()).unwrap();
        assert!(repo.has("Cargo.toml") && repo.has("xtask/src/main.rs"));
    }
}
