//! Programs that the build left beside this test.

use std::path::PathBuf;

/// Path of a built program such as `mycroft`.
///
/// # Panics
/// If it is not built: the message says how.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("this program's own path");
    let mut dir = exe.parent().expect("a program lies in a folder").to_owned();
    if dir.file_name().is_some_and(|n| n == "deps") {
        dir.pop();
    }
    let path = dir.join(name);
    assert!(path.is_file(), "{} is not built: run `cargo xtask test`", path.display());
    path
}

/// The folder in which `cargo xtask setup` keeps what it fetches.
#[must_use]
pub fn cache() -> PathBuf {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    var("MYCROFT_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("mycroft")))
        .or_else(|| Some(var("HOME")?.join(".cache/mycroft")))
        .expect("neither MYCROFT_CACHE nor HOME is set")
}
