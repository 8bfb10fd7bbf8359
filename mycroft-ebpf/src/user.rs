//! The traced process's memory, and which process that is.

use aya_ebpf::{
    EbpfContext as _,
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_user},
    programs::ProbeContext,
};
use mycroft_common::{
    abi::{Config, Header, ProcessEntry},
    counters::Counter,
    memory::{Memory, Plain},
};

use crate::maps::{CONFIG, PROCESSES, bump};

/// Memory of the current task, read without faulting pages in.
pub struct User;

impl Memory for User {
    #[inline(always)]
    fn read<T: Plain>(&self, addr: u64) -> Option<T> {
        // SAFETY: the helper checks every access itself and fails instead of faulting; `T: Plain` is valid
        // for whatever bytes come back.
        unsafe { bpf_probe_read_user(addr as *const T) }.ok()
    }
}

/// Who fired a probe.
pub struct Caller {
    pub lib: u16,
    pub pid: u32,
    pub tid: u32,
}

impl Caller {
    /// The current task, or `None` if its events are not wanted, or another probe on the same instruction
    /// speaks for its process.
    #[inline(always)]
    pub fn wanted(ctx: &ProbeContext) -> Option<Self> {
        // SAFETY: `ctx` is the context that the kernel handed to this program.
        let lib = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u16;
        let both = bpf_get_current_pid_tgid();
        let caller = Self { lib, pid: (both >> 32) as u32, tid: both as u32 };
        let entry = PROCESSES.get_ptr(caller.pid);
        let accepted = match entry {
            Some(p) => {
                // SAFETY: a pointer to a live map value, read by value; a concurrent change tears at worst
                // between two u16, and either mix is harmless.
                let e = unsafe { *p };
                e.wanted != 0 && e.lib == lib
            }
            None => caller.claim(),
        };
        if !accepted {
            return None;
        }
        bump(Counter::Hits);
        Some(caller)
    }

    /// First event of a process: this library's probes speak for it from now on.
    #[inline(always)]
    fn claim(&self) -> bool {
        if config().listed_only != 0 {
            return false;
        }
        let entry = ProcessEntry { lib: self.lib, wanted: 1 };
        if PROCESSES.insert(self.pid, entry, BPF_NOEXIST as u64).is_ok() {
            return true;
        }
        match PROCESSES.get_ptr(self.pid) {
            // SAFETY: as in `wanted`.
            Some(p) => unsafe { (*p).lib == self.lib && (*p).wanted != 0 },
            None => {
                // Full: events go on, at the risk of counting twice where one file is mounted twice.
                bump(Counter::ProcessesFull);
                true
            }
        }
    }

    #[inline(always)]
    pub fn header(&self, kind: u16, flags: u32) -> Header {
        // SAFETY: the helper has no preconditions.
        let ts_ns = unsafe { bpf_ktime_get_ns() };
        Header { kind, lib: self.lib, flags, ts_ns, pid: self.pid, tid: self.tid }
    }
}

#[inline(always)]
pub fn config() -> Config {
    CONFIG.get(0).copied().unwrap_or_default()
}
