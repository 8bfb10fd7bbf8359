//! The eBPF programs: context in, extract, emit. Thin on purpose; what they extract is in `mycroft-common`.
//!
//! Every program returns 0: the return value of a uprobe program has no meaning for us.
#![no_std]
#![allow(unexpected_cfgs, reason = "the macros of aya-ebpf name cfgs of their own")]

mod comm;
mod emit;
mod group;
mod maps;
mod op;
mod user;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: nothing here can panic once compiled, or the verifier refuses the program.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
