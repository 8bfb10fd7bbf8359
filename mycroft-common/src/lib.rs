//! What the eBPF programs and the agent agree on: event layouts, struct offsets handed to the kernel,
//! loss counters and NCCL's public codes.
//!
//! Owns: every byte that crosses the kernel boundary. Must not: allocate, do I/O, know aya.
#![no_std]

pub mod abi;
pub mod counters;
pub mod layout;
pub mod memory;
pub mod nccl;

/// Symbols that bpf-linker keeps: one per program and map of `mycroft-ebpf`.
///
/// `mycroft-agent/build.rs` passes them on; a name that is missing here is dropped from the object.
pub const EXPORTS: &[&str] = &[
    "nccl_enqueue",
    "nccl_launch",
    "nccl_group_start",
    "nccl_group_end",
    "nccl_init_entry",
    "nccl_init_return",
    "nccl_destroy",
    "nccl_abort",
    "nccl_finalize",
    "EVENTS",
    "PROCESSES",
    "COMMS",
    "GROUPS",
    "INITS",
    "LAYOUTS",
    "CONFIG",
    "COUNTERS",
    "LICENSE",
];
