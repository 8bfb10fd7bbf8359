//! What can be typed.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::{
    app::Options,
    model::{ids::Nanos, rhythm::Patience},
    probe::Settings,
};

/// Names the rank that holds up an NCCL job, from outside the job.
#[derive(Debug, Parser)]
#[command(
    name = "mycroft",
    version,
    about,
    after_help = "Exit codes: 0 healthy, 1 finding, 2 could not tell or could not run."
)]
pub struct Args {
    /// Say more on standard error (twice: everything)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what this machine offers and what to do about what is missing
    Check(Check),
    /// Trace all NCCL jobs on this host and tell findings as they come
    Watch(Watch),
    /// Give one answer about now: healthy, a finding, or could not tell
    Diagnose(Diagnose),
    /// Show the chain of waits from a symptom to its first cause, as text or as a drawing
    Explain(Explain),
    /// Show how far each transfer of each communicator is, and who waits for whom
    Flows(Flows),
    /// Read files of a job (Flight Recorder dumps, RAS output, Inspector records, logs) and give the same kind of answer
    Import(Import),
    /// Run as the node's daemon, with metrics for Prometheus
    Agent(Agent),
    /// List the rules, or print the page of one
    Rules(Rules),
    /// Print the completions for a shell
    Completions(Completions),
    /// Write the man pages into a folder
    Man(Man),
}

#[derive(Debug, ClapArgs)]
pub struct Check {
    /// One JSON record a line
    #[arg(long)]
    pub json: bool,
    /// Also look at this library file, whether or not a process maps it
    #[arg(long, value_name = "FILE")]
    pub library: Vec<PathBuf>,
}

/// What all tracing commands share.
#[derive(Debug, ClapArgs)]
pub struct Trace {
    /// Trace only this process (may be repeated)
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// A rank may always be this late, whatever the job's habits
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub patience_least: Duration,
    /// While fewer than eight collectives have been seen, a rank may be this late
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub patience_unknown: Duration,
    /// No rank may be later than this, whatever the job's habits
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub patience_most: Duration,
    /// Where layouts of NCCL libraries are kept between runs
    #[arg(long, value_name = "DIR", default_value = "/var/cache/mycroft", env = "MYCROFT_CACHE_DIR")]
    pub cache_dir: PathBuf,
    /// Also probe every kernel launch: a second probe an operation, for the time of the last launch
    #[arg(long)]
    pub launches: bool,
    /// Look at the flows of a communicator that is at work this often; 0: never
    #[arg(long, value_name = "MS", default_value = "100", value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub sample: u32,
    /// Do not run this collector of evidence on suspects: host, python (may be repeated)
    #[arg(long, value_name = "NAME", value_parser = ["host", "python"])]
    pub no_collect: Vec<String>,
    /// Size of the kernel's ring buffer, in MiB
    #[arg(long, value_name = "MIB", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub ring: u32,
}

impl Trace {
    pub(super) fn options(&self) -> Options {
        let nanos = |d: Duration| Nanos::try_from(d.as_nanos()).unwrap_or(Nanos::MAX);
        let least = nanos(self.patience_least);
        Options {
            settings: Settings { ring_bytes: self.ring << 20, listed_only: false, launches: self.launches },
            patience: Patience {
                least,
                unknown: nanos(self.patience_unknown),
                // A `most` below the `least` would make the bounds cross.
                most: nanos(self.patience_most).max(least),
            },
            only: self.pid.iter().copied().collect(),
            cache: Some(self.cache_dir.clone()),
            keep_unused: None,
            sample: (self.sample > 0).then(|| Duration::from_millis(self.sample.into())),
            no_collect: self.no_collect.iter().cloned().collect(),
        }
    }
}

#[derive(Debug, ClapArgs)]
pub struct Watch {
    #[command(flatten)]
    pub trace: Trace,
    /// Stop after this long
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// One JSON record a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Diagnose {
    #[command(flatten)]
    pub trace: Trace,
    /// Watch for at most this long before giving an answer
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    pub within: Duration,
    /// Ask the agent that listens here first; it has watched for longer
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19400")]
    pub agent: SocketAddr,
    /// Do not ask an agent
    #[arg(long)]
    pub no_agent: bool,
    /// One JSON record a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Explain {
    #[command(flatten)]
    pub diagnose: Diagnose,
    /// Write who waits for whom to this file, for Graphviz
    #[arg(long, value_name = "FILE")]
    pub dot: Option<PathBuf>,
    /// Draw who waits for whom into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct Flows {
    #[command(flatten)]
    pub trace: Trace,
    /// Look for this long, then show what is
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub within: Duration,
    /// Only communicators whose hash begins like this, such as 0x2f3c
    #[arg(long, value_name = "HASH")]
    pub comm: Option<String>,
    /// One JSON record a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Import {
    /// Files, or folders of files: those of all ranks of one job
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// One JSON record a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Agent {
    #[command(flatten)]
    pub trace: Trace,
    /// Where /metrics, /healthz, /readyz and /api are served
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:19400", env = "MYCROFT_LISTEN")]
    pub listen: SocketAddr,
}

#[derive(Debug, ClapArgs)]
pub struct Rules {
    /// Print the page of this rule, such as MYC001
    pub id: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct Completions {
    /// The shell that reads them
    pub shell: clap_complete::Shell,
}

#[derive(Debug, ClapArgs)]
pub struct Man {
    /// Where mycroft.1 and the pages of its commands go
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    Duration::try_from_secs_f64(value).map_err(|e| format!("{text} s: {e}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn bounds_never_cross() {
        let args =
            Args::try_parse_from(["mycroft", "watch", "--patience-least", "90", "--patience-most", "60"]).unwrap();
        let Command::Watch(w) = args.command else { panic!() };
        let p = w.trace.options().patience;
        assert!(p.least <= p.most);
        assert!(Args::try_parse_from(["mycroft", "watch", "--for", "-1"]).is_err());
        assert!(Args::try_parse_from(["mycroft", "watch", "--for", "nan"]).is_err());
    }
}
