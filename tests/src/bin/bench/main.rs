//! `cargo xtask bench`: what Mycroft costs a job and a host, and how soon it speaks. Prints Markdown, in sections
//! between markers, which xtask puts into docs/performance.md.
//!
//! On a machine that others use too, single numbers mean little: everything is repeated and told with its spread.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "talking to a person is what this program is for")]

mod agent;
mod cost;
mod delay;
mod http;
mod library;
mod machine;
mod overhead;
mod resources;
mod stats;

use anyhow::{Result, bail};

/// The release of NCCL that jobs run on.
const NCCL: &str = "2.27.5";

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    quick: bool,
}

impl Scale {
    fn of<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

type Section = fn(Scale) -> Result<String>;

const SECTIONS: &[(&str, Section)] = &[
    ("overhead", overhead::measure),
    ("cost", cost::measure),
    ("agent", resources::measure),
    ("time", delay::measure),
];

fn main() -> Result<()> {
    let (mut quick, mut only) = (false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => only = args.next(),
            other => bail!("{other}: bench takes --quick and --only SECTION"),
        }
    }
    if let Some(name) = &only
        && SECTIONS.iter().all(|(n, _)| n != name)
    {
        bail!("no section {name}: there are {}", SECTIONS.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "));
    }
    print_section("machine", &machine::describe()?);
    for (name, measure) in SECTIONS {
        if only.as_ref().is_none_or(|o| o == name) {
            print_section(name, &measure(Scale { quick })?);
        }
    }
    Ok(())
}

fn print_section(name: &str, text: &str) {
    println!("<!-- bench:{name} -->\n{}\n<!-- /bench:{name} -->", text.trim());
}

/// A sign of life, not part of the result.
fn note(text: &str) {
    eprintln!("  {text}");
}
