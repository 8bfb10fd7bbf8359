//! Phrases that several rules share.

use mycroft_common::nccl;

use super::{
    View,
    verdict::{Evidence, Source},
};
use crate::model::{
    Comm, Exit, Mark, Member, Process, Signature, State,
    event::fact::PythonThread,
    ids::{Nanos, SECOND},
};

/// `0-2, 5`.
#[must_use]
pub fn ranks(list: &[u32]) -> String {
    let mut sorted = list.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut out = String::new();
    let mut rest = sorted.as_slice();
    while let [first, ..] = rest {
        let run = rest.iter().zip(u64::from(*first)..).take_while(|(r, want)| u64::from(**r) == *want).count();
        let last = first + (run as u32 - 1);
        let sep = if out.is_empty() { "" } else { ", " };
        out += &match run {
            1 => format!("{sep}{first}"),
            2 => format!("{sep}{first}, {last}"),
            _ => format!("{sep}{first}-{last}"),
        };
        rest = rest.get(run..).unwrap_or(&[]);
    }
    out
}

/// `rank 3` or `ranks 0-2, 5`.
#[must_use]
pub fn ranks_noun(list: &[u32]) -> String {
    match list {
        [one] => format!("rank {one}"),
        many => format!("ranks {}", ranks(many)),
    }
}

/// `rank 3 (pid 1234)`, with its rank in the job and its host where these say more.
#[must_use]
pub fn rank_and_pid(view: &View<'_>, member: &Member) -> String {
    let process = view.state.processes.get(&member.proc);
    let job = process.and_then(|p| p.job_rank).filter(|r| *r != member.rank);
    let job = job.map_or_else(String::new, |r| format!("rank {r} of the job, "));
    let host = if view.state.hosts.len() > 1 {
        format!("host {}, ", view.state.host_name(member.proc.host))
    } else {
        String::new()
    };
    if member.proc.pid == 0 {
        return format!("rank {} ({job}its process is not known)", member.rank);
    }
    format!("rank {} ({job}{host}pid {})", member.rank, member.proc.pid)
}

/// `4.0 MiB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", n as f64 / 1_073_741_824.0),
    }
}

/// An `ncclResult_t` in NCCL's own words.
#[must_use]
pub fn nccl_result(code: i32) -> String {
    let name = match code {
        0 => "no error",
        1 => "an unhandled CUDA error",
        2 => "an unhandled system error",
        3 => "an internal error",
        4 => "an invalid argument",
        5 => "invalid usage",
        6 => "a remote error",
        7 => "an operation in progress",
        _ => "an error that this release does not know",
    };
    format!("{name} (ncclResult_t {code})")
}

/// `30 ms`, or `2.1 s` from a second on.
#[must_use]
pub fn milliseconds(span: Nanos) -> String {
    if span >= SECOND { seconds(span) } else { format!("{:.0} ms", span as f64 / 1e6) }
}

/// `2.1 s`.
#[must_use]
pub fn seconds(span: Nanos) -> String {
    format!("{:.1} s", span as f64 / SECOND as f64)
}

/// `AllReduce #57`.
#[must_use]
pub fn op_number(signature: &Signature, seq: u64) -> String {
    format!("{} #{seq}", signature.func.name())
}

/// `AllReduce #57`, as the ranks that launched it called it.
#[must_use]
pub fn expected(comm: &Comm, seq: u64) -> String {
    let called = comm.window.get(seq).and_then(|s| s.majority()).map(|v| v.signature.func);
    let in_work = || comm.active().filter(|m| m.launched.is_some_and(|l| l.seq == seq)).find_map(Member::in_work);
    called.or_else(in_work).map_or_else(|| format!("collective #{seq}"), |f| format!("{} #{seq}", f.name()))
}

/// `AllReduce #57`, or `collective #57` where the call was not seen.
#[must_use]
pub fn mark(mark: &Mark) -> String {
    mark.signature.map_or_else(|| format!("collective #{}", mark.seq), |s| op_number(&s, mark.seq))
}

/// What a rank launched last: as called, or as its transfers tell.
#[must_use]
pub fn newest(member: &Member) -> Option<String> {
    let last = member.launched?;
    let in_work = member.in_work().filter(|_| last.signature.is_none());
    Some(in_work.map_or_else(|| mark(&last), |func| format!("{} #{}", func.name(), last.seq)))
}

/// `AllReduce, 100000 float32, sum`.
#[must_use]
pub fn signature(s: &Signature) -> String {
    let mut text = s.func.name().to_owned();
    if s.count > 0 {
        text += &format!(", {} {}", s.count, nccl::datatype_name(s.datatype));
    }
    if s.func.reduces() && s.redop != Signature::UNTOLD {
        text.push_str(", ");
        text.push_str(if s.redop < 0 { "custom" } else { nccl::redop_name(s.redop) });
    }
    if s.func.has_root() && s.root != Signature::UNTOLD {
        text += &format!(", root {}", s.root);
    }
    text
}

/// `communicator 0x… (4 ranks)`, with its name where the caller gave it one.
#[must_use]
pub fn comm(c: &Comm) -> String {
    let name = c.members.values().find_map(|m| m.name.as_deref()).filter(|n| !n.is_empty());
    let name = name.map_or_else(String::new, |n| format!(" \"{n}\""));
    format!("communicator {}{name} ({} ranks)", c.id, c.id.nranks)
}

/// `killed by signal 9 (SIGKILL)`.
#[must_use]
pub fn exit(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(n) => format!("killed by signal {n}{}", signal_name(n)),
        Exit::Replaced => "replaced itself by another program".to_owned(),
        Exit::Unknown => "gone; this kernel does not tell how it ended".to_owned(),
    }
}

fn signal_name(n: i32) -> &'static str {
    match n {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// What the last look at a process saw, such as `sleeping in clock_nanosleep (wchan hrtimer_nanosleep)`.
#[must_use]
pub fn activity(process: Option<&Process>) -> Option<(Nanos, String)> {
    let a = process?.activity.as_ref()?;
    let mut text = a.state_text().to_owned();
    if let Some(call) = &a.syscall {
        text.push_str(" in ");
        text.push_str(call);
    }
    if let Some(wchan) = &a.wchan {
        text += &format!(" (wchan {wchan})");
    }
    Some((a.at, text))
}

/// Evidence of what a rank launched last.
#[must_use]
pub fn last_launch(state: &State, member: &Member) -> Evidence {
    let newest: Option<Mark> = match (member.launched, member.last_other) {
        (Some(a), Some(b)) => Some(if a.ts >= b.ts { a } else { b }),
        (a, b) => a.or(b),
    };
    let (text, source) = last_launch_text(state, member, newest);
    Evidence { at: newest.map_or(state.now, |m| m.ts), source, text }
}

fn last_launch_text(state: &State, member: &Member, newest: Option<Mark>) -> (String, Source) {
    let rank = member.rank;
    let text = match newest {
        Some(Mark { signature: None, seq, .. }) if Source::of_calls(state, member) != Source::NcclProbe => {
            format!("rank {rank} launched all up to #{seq}, and none since")
        }
        Some(Mark { signature: None, seq, .. }) => {
            let text = format!("rank {rank}'s NCCL counts {} collectives launched, and none since", seq + 1);
            return (text, Source::NcclMemory);
        }
        Some(m @ Mark { signature: Some(s), .. }) => format!(
            "rank {rank} launched {} ({}) {} ago, its last",
            mark(&m),
            signature(&s),
            seconds(state.now.saturating_sub(m.ts))
        ),
        None => format!("rank {} has launched nothing since Mycroft attached", member.rank),
    };
    (text, Source::of_calls(state, member))
}

/// Evidence of what the process of a rank is doing, if it was looked at.
#[must_use]
pub fn doing(state: &State, member: &Member) -> Option<Evidence> {
    let (at, text) = activity(state.processes.get(&member.proc))?;
    Some(Evidence {
        at,
        source: Source::Proc,
        text: if member.tid == member.proc.pid {
            format!("pid {} (main thread) is {text}", member.proc.pid)
        } else {
            format!("pid {} (thread that called NCCL) is {text}", member.proc.pid)
        },
    })
}

/// What collectors read of a rank's process, if it is fresh.
#[must_use]
pub fn collected(state: &State, member: &Member) -> Vec<Evidence> {
    const FRESH: Nanos = 5 * SECOND;
    let fresh = |at: Nanos| state.now.saturating_sub(at) < FRESH;
    let Some(process) = state.processes.get(&member.proc) else { return Vec::new() };
    let pid = member.proc.pid;
    let blocked = process.blocked.as_ref().filter(|(at, _)| fresh(*at)).map(|(at, on)| Evidence {
        at: *at,
        source: Source::Proc,
        text: format!("pid {pid}'s thread {} is in a system call on {}", on.tid, on.target),
    });
    let python = process.python.as_ref().filter(|(at, _)| fresh(*at)).into_iter().flat_map(|(at, threads)| {
        let told = threads.iter().filter(|t| t.tid == Some(member.tid) || t.holds_gil);
        told.map(|t| Evidence { at: *at, source: Source::Python, text: python_thread(pid, t) })
    });
    blocked.into_iter().chain(python).collect()
}

/// `pid 17's MainThread is in load_batch (train.py:88) <- main (train.py:120); holds the GIL`.
fn python_thread(pid: u32, thread: &PythonThread) -> String {
    let name = thread.name.as_deref().unwrap_or("Python thread");
    let gil = if thread.holds_gil { "; holds the GIL" } else { "" };
    format!("pid {pid}'s {name} is in {}{gil}", thread.frames.join(" <- "))
}

/// What the communicator is used to, and how long it may stand still.
#[must_use]
pub fn patience(view: &View<'_>, comm: &Comm) -> Evidence {
    Evidence {
        at: view.now(),
        source: Source::Derived,
        text: format!(
            "usual: over the last collectives no rank was more than {:.3} s late; patience here is {}",
            comm.rhythm.largest_skew() as f64 / SECOND as f64,
            seconds(comm.rhythm.patience(view.patience))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_fold_runs() {
        assert_eq!(ranks(&[3, 0, 1, 2, 5]), "0-3, 5");
        assert_eq!(ranks(&[1, 0]), "0, 1");
        assert_eq!(ranks(&[]), "");
        assert_eq!(ranks_noun(&[7]), "rank 7");
        assert_eq!(ranks_noun(&[7, u32::MAX]), "ranks 7, 4294967295");
    }
}
