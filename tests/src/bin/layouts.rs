//! Writes the table of layouts that comes with the agent; `cargo xtask layouts` calls it.
//!
//! `layouts extract PACKAGE FILE` prints the layout of one library as a line, `layouts merge` makes the table of such
//! lines.

#![expect(clippy::print_stdout, reason = "the program's output")]

use std::{fs::File, io::Read as _};

use anyhow::{Context as _, Result, bail};
use mycroft_agent::discover::{
    bundle::{self, Build},
    elf::NcclFile,
    layout::NcclLayout,
};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["extract", package, file] => extract(package, file),
        ["merge"] => merge(),
        _ => bail!("usage: layouts extract PACKAGE FILE | layouts merge"),
    }
}

fn extract(package: &str, path: &str) -> Result<()> {
    let file = File::open(path).context(path.to_owned())?;
    let nccl = NcclFile::open(&file)?.context("no NCCL library")?;
    let layout = NcclLayout::from_dwarf(&nccl)?;
    if let Some(problem) = &layout.proxy_problem {
        bail!("{problem}");
    }
    let build = Build {
        version: layout.version.context("no release")?.to_string(),
        machine: bundle::machine_name(nccl.machine()).to_owned(),
        package: package.to_owned(),
        build_id: nccl.build_id().context("no build-id")?.to_owned(),
    };
    println!("{}", serde_json::to_string(&(build, layout))?);
    Ok(())
}

fn merge() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut all: Vec<(Build, NcclLayout)> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let number = |b: &Build| b.version.split('.').filter_map(|n| n.parse::<u32>().ok()).collect::<Vec<_>>();
    all.sort_by(|(a, _), (b, _)| (number(a), a).cmp(&(number(b), b)));
    let entries = bundle::merge(all);
    let lines: Vec<String> = entries.iter().map(entry_text).collect::<Result<_>>()?;
    println!("[\n{}\n]", lines.join(",\n"));
    Ok(())
}

/// A line for each build and each struct.
fn entry_text(entry: &bundle::Entry) -> Result<String> {
    let builds: Vec<String> = entry.builds.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let layout = serde_json::to_value(&entry.layout)?;
    let fields = layout.as_object().context("a layout is an object")?;
    let mut lines = Vec::new();
    for (name, value) in fields {
        match value.as_object().filter(|_| name == "proxy") {
            Some(proxy) => {
                let inner: Vec<String> = proxy.iter().map(|(n, v)| format!("    {n:?}: {v}")).collect();
                lines.push(format!("   {name:?}: {{\n{}}}", inner.join(",\n")));
            }
            None => lines.push(format!("   {name:?}: {value}")),
        }
    }
    Ok(format!(" {{\"builds\": [\n   {}],\n  \"layout\": {{\n{}}}}}", builds.join(",\n   "), lines.join(",\n")))
}
