//! `sched_yield`, which NCCL's proxies call all the time while they wait, as a short sleep.
//!
//! On a GPU node each proxy has a CPU. Here eight proxies and "GPUs" share two, and Linux 6.18 starves the whole
//! machine, its own kernel threads included, for minutes when a handful of threads call `sched_yield` in a loop (its
//! log says `rcu_preempt kthread starved`, the CPU being in `do_sched_yield`). What a proxy does and sees is the same;
//! it looks less often.

/// The kernel adds its timer slack of 50 us. Longer naps do not speed a job up, shorter ones cost more than they gain:
/// each ends with an interrupt.
const NAP_NS: libc::c_long = 50_000;

/// The C library's function of this name, for all that is in the process.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "found by name, not by path")]
pub extern "C" fn sched_yield() -> libc::c_int {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: reads `nap`, writes nothing.
    unsafe { libc::nanosleep(&raw const nap, std::ptr::null_mut()) };
    0
}
