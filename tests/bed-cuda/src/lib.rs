//! Test bed: the CUDA runtime and the GPU kernels that `libnccl` needs, on host threads.
//!
//! Preloaded into a test process. Once `libnccl` is mapped, every public CUDA runtime function inside it is
//! redirected here (module `attach`); NCCL's own host code, proxies and sockets run unchanged. See `docs/testbed.md`.
#![expect(clippy::print_stderr, reason = "the only way a preloaded library has to report")]

#[macro_use]
mod log;
mod api;
mod app;
mod attach;
#[path = "../../bed/src/control_words.rs"]
mod control_words;
mod device;
mod driver;
mod emu;
mod error;
mod event;
mod knobs;
mod launch;
mod memory;
mod stream;
mod symbols;
mod yielding;
