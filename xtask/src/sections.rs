//! Programs that measure, and the sections of pages in docs/ that hold what they print, between markers.

use std::{env, fs, ops::Range, process::Command};

use anyhow::{Context as _, Result};

use crate::toolchain;

/// Beside the program that runs now, but in the release profile.
pub(crate) fn program(name: &str) -> Result<Command> {
    let xtask = env::current_exe()?;
    let target = xtask.parent().and_then(|profile| profile.parent()).map(|target| target.join("release").join(name));
    target.filter(|p| p.is_file()).map(Command::new).with_context(|| format!("the build made no program `{name}`"))
}

/// Puts the sections of `output` into the page at `path`.
pub(crate) fn write(path: &str, kind: &str, output: &str) -> Result<()> {
    let file = toolchain::repository().join(path);
    let page = fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
    fs::write(&file, replaced(path, &page, kind, output)?).with_context(|| format!("cannot write {path}"))
}

/// The page with every section that `output` has in the place of its own.
fn replaced(path: &str, page: &str, kind: &str, output: &str) -> Result<String> {
    let mut page = page.to_owned();
    let mark = format!("<!-- {kind}:");
    for name in output.lines().filter_map(|l| l.strip_prefix(&mark)?.strip_suffix(" -->")) {
        let section = between(output, kind, name).with_context(|| format!("no end of {name} in the output"))?;
        let old = between(&page, kind, name).with_context(|| format!("{path} has no place for {name}"))?;
        page.replace_range(old, &output[section]);
    }
    Ok(page)
}

/// Where the text between two markers begins and ends.
fn between(text: &str, kind: &str, name: &str) -> Option<Range<usize>> {
    let (open, close) = (format!("<!-- {kind}:{name} -->"), format!("<!-- /{kind}:{name} -->"));
    let begin = text.find(&open)? + open.len();
    Some(begin..begin + text[begin..].find(&close)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_is_replaced() {
        let page = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n<!-- bench:y -->\nkept\n<!-- /bench:y -->\n";
        let output = "<!-- bench:x -->\nnew\nlines\n<!-- /bench:x -->";
        let new = replaced("p", page, "bench", output).unwrap();
        assert_eq!(new, page.replace("old", "new\nlines"));
        assert_eq!(replaced("p", &new, "bench", output).unwrap(), new);
    }

    #[test]
    fn a_section_without_a_place_is_told() {
        let error = replaced("p", "a", "bench", "<!-- bench:x -->\n<!-- /bench:x -->").unwrap_err().to_string();
        assert!(error.contains("p has no place for x"), "{error}");
    }
}
