//! What lies in deploy/, judged by the programs that read it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mycroft_agent::rules::REGISTRY;

fn prometheus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus")
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests_pass() {
    for args in [["check", "rules", "mycroft.rules.yml"], ["test", "rules", "mycroft.test.yml"]] {
        let out = Command::new("promtool").args(args).current_dir(prometheus()).output();
        let out = out.expect("Debian's promtool: run `cargo xtask setup`, which puts it on the path of the tests");
        let said = [out.stdout, out.stderr].concat();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said));
    }
}

/// An alert on a metric that does not exist never fires, and nothing else would tell.
#[test]
fn alerts_name_metrics_and_rules_that_exist() {
    let page = mycroft_agent::report::metrics::page();
    let text = fs::read_to_string(prometheus().join("mycroft.rules.yml")).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = text.split(|c| !is_name(c)).collect();
    let metrics: Vec<_> = words.iter().filter(|w| w.starts_with("mycroft_")).collect();
    assert!(metrics.len() >= 3, "{metrics:?}");
    for metric in metrics {
        assert!(page.contains(&format!("`{metric}`")), "{metric} is not in docs/metrics.md");
    }
    for rule in words.iter().filter(|w| w.starts_with("MYC")) {
        assert!(REGISTRY.iter().any(|r| r.id == *rule), "{rule} is no rule");
    }
}
