//! One line on standard error per message, with process and thread, so that logs of several ranks can be merged.

use std::sync::OnceLock;

/// Whether `BED_TRACE` asks for a line per call.
pub(crate) fn tracing() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("BED_TRACE").is_some_and(|v| v != "0"))
}

pub(crate) fn line(text: &std::fmt::Arguments<'_>) {
    // SAFETY: gettid has no preconditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    eprintln!("bed {}:{tid} {text}", std::process::id());
}

/// Always printed.
macro_rules! report {
    ($($t:tt)*) => { $crate::log::line(&format_args!($($t)*)) };
}

/// Printed when `BED_TRACE` is set.
macro_rules! trace {
    ($($t:tt)*) => { if $crate::log::tracing() { $crate::log::line(&format_args!($($t)*)) } };
}
