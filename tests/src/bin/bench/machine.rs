//! The machine that was measured on, without its name, and what else runs on it.

use std::fs;

use anyhow::Result;

use crate::NCCL;

pub(crate) fn describe() -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let field = |name: &str| cpuinfo.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(": "));
    let model = field("model name").map_or("unknown", |(_, m)| m.trim());
    let virtual_machine = cpuinfo.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor"));
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let memory_kib: u64 = fs::read_to_string("/proc/meminfo")?
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0);
    Ok(format!(
        "{cores} cores of a {model}{}, {:.0} GiB of memory, Linux {}, NCCL {NCCL} on the test bed. \
         Load average when it began: {}.",
        if virtual_machine { ", a virtual machine" } else { "" },
        memory_kib as f64 / f64::from(1 << 20),
        kernel.trim(),
        load_average()?
    ))
}

fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Whether any process but `ours` and init holds BPF links: its probes, too, may sit in the measured job.
pub(crate) fn foreign_tracer(ours: Option<u32>) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != 1 && Some(*pid) != ours).any(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        // `bpf_link`; older kernels write `bpf-link`
        open.filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|to| to.to_str().is_some_and(|t| t.contains("bpf") && t.contains("link")))
    })
}
