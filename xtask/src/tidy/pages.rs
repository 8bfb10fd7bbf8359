//! A verdict is citable: each rule has a page that says what it means, and tests that show when it speaks.

use super::repo::{File, Problem, Repo};

const RULES: &str = "mycroft-agent/src/rules/";
const PAGES: &str = "docs/rules/";

pub(super) fn pages(repo: &Repo) -> Vec<Problem> {
    let mut problems = Vec::new();
    let rules: Vec<(&File, Option<String>)> = repo.files.iter().filter_map(|f| Some((f, number(&f.path)?))).collect();
    for (file, id) in &rules {
        match id {
            None => {
                problems.push(file.problem(1, "a rule's file is named myc, three digits, and what follows after _"))
            }
            Some(id) if !repo.has(&format!("{PAGES}{id}.md")) => {
                problems.push(file.problem(1, format!("{id} has no page {PAGES}{id}.md")));
            }
            Some(_) => {}
        }
        if !file.text().is_some_and(|t| t.contains("#[cfg(test)]")) {
            problems.push(file.problem(1, "a rule without tests"));
        }
    }
    for file in &repo.files {
        let id = file.path.strip_prefix(PAGES).and_then(|p| p.strip_suffix(".md")).filter(|p| p.starts_with("MYC"));
        if id.is_some_and(|id| rules.iter().all(|(_, rule)| rule.as_deref() != Some(id))) {
            problems.push(file.problem(1, "a page of no rule"));
        }
    }
    problems
}

/// For a rule's file its number, if it is named as it should.
fn number(path: &str) -> Option<Option<String>> {
    let name = path.strip_prefix(RULES)?.strip_suffix(".rs")?.strip_prefix("myc")?;
    let (digits, rest) = name.split_at_checked(3).unwrap_or((name, ""));
    let good =
        digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()) && (rest.is_empty() || rest.starts_with('_'));
    Some(good.then(|| format!("MYC{digits}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "mycroft-agent/src/rules/myc003_missing_rank.rs";
    const PAGE: &str = "docs/rules/MYC003.md";
    const TESTED: &str = "fn f() {}\n#[cfg(test)]\nmod tests {}";

    #[test]
    fn a_rule_with_page_and_tests_is_fine() {
        let others = [("mycroft-agent/src/rules/engine.rs", ""), ("docs/rules/README.md", "")];
        assert_eq!(pages(&Repo::of(&[&[(RULE, TESTED), (PAGE, "")], &others[..]].concat())).len(), 0);
    }

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(pages(&Repo::of(&[(RULE, TESTED)])).len(), 1);
        assert_eq!(pages(&Repo::of(&[(RULE, ""), (PAGE, "")])).len(), 1);
        assert_eq!(pages(&Repo::of(&[(PAGE, "")])).len(), 1);
        assert_eq!(pages(&Repo::of(&[("mycroft-agent/src/rules/myc3.rs", TESTED)])).len(), 1);
    }
}
