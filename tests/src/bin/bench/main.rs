//! What Mycroft costs, measured: `cargo xtask bench` runs this and puts its tables into docs/performance.md.

#![expect(clippy::print_stdout, reason = "prints its tables")]

mod cost;
mod overhead;
mod stats;
mod verdict;

use anyhow::Result;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|a| a == "--quick");
    let only = args.iter().position(|a| a == "--only").and_then(|i| args.get(i + 1)).cloned();
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    println!("{}", machine());
    if wanted("cost") {
        println!("{}", cost::per_operation(quick));
    }
    if wanted("agent") {
        println!("{}", cost::agent(quick));
    }
    if wanted("time") {
        println!("{}", verdict::time(quick)?);
    }
    if wanted("overhead") {
        println!("{}", overhead::job(quick)?);
    }
    Ok(())
}

fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).map_or("?", |l| l.trim_start_matches([':', '\t', ' ']));
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    format!("Machine: {cores} cores of {model}, virtual; Linux {}.\n", read("/proc/sys/kernel/osrelease").trim())
}
