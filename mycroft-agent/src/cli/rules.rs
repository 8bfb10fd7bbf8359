//! `mycroft rules`: what Mycroft can find.

#![expect(clippy::print_stdout, reason = "the command's output")]

use super::{HEALTHY, UNKNOWN, args::Rules};
use crate::rules::{REGISTRY, Rule};

pub(super) fn run(args: &Rules) -> u8 {
    let Some(id) = &args.id else {
        for rule in REGISTRY {
            println!("{} {:<24} {}", rule.id, rule.name, rule.summary);
        }
        return HEALTHY;
    };
    match REGISTRY.iter().find(|r| r.id.eq_ignore_ascii_case(id) || r.name == id) {
        Some(rule) => {
            print!("{}", rule_page(rule));
            HEALTHY
        }
        None => {
            anstream::eprintln!("mycroft: no rule {id}; `mycroft rules` lists them");
            UNKNOWN
        }
    }
}

/// The page of a rule under docs/rules.
#[must_use]
pub fn rule_page(rule: &Rule) -> String {
    format!("# {} {}\n\n{}\n\n{}", rule.id, rule.name, rule.summary, rule.doc)
}
