//! The device half of NCCL on host threads: ring collectives, AllReduce over a tree, and send/recv.
//!
//! A launch becomes one thread a channel (a CUDA block). It shares with NCCL's host half what a real kernel shares:
//! the launch's work descriptors, each connection's step counters (tail: what the sender has filled, head: what the
//! receiver has freed), the sizes of the slots, and the buffer of eight slots. Where these lie comes from the library's
//! own debug information, through the harness ([`layout`]).

mod block;
mod combine;
mod conn;
mod func;
mod layout;
mod lines;
mod p2p;
mod place;
mod ring;
mod rounds;
mod step;
mod tree;
mod work;
mod work_old;

use std::sync::OnceLock;

use crate::launch::Launch;
use block::{Aborted, Block};
use func::{Algo, Function, Functions};
use layout::Layout;
use ring::Part;

struct Model {
    layout: Layout,
    functions: Functions,
}

fn model() -> Result<&'static Model, &'static str> {
    static MODEL: OnceLock<Result<Model, String>> = OnceLock::new();
    let made = MODEL.get_or_init(|| {
        let path = std::env::var_os("BED_LAYOUT").ok_or("BED_LAYOUT is not set")?;
        let text = std::fs::read_to_string(&path).map_err(|e| format!("BED_LAYOUT {}: {e}", path.display()))?;
        let layout = Layout::parse(&text)?;
        let functions = Functions::read(layout.version)?;
        Ok(Model { layout, functions })
    });
    made.as_ref().map_err(String::as_str)
}

/// Whether kernels can be run at all; asked before a launch is accepted.
pub(crate) fn ready() -> Result<(), &'static str> {
    model().map(|_| ())
}

/// Runs a kernel to its end, on the stream's thread.
pub(crate) fn run(launch: &Launch) {
    let Ok(model) = model() else { return };
    trace!("begin {}", launch.name);
    block::run_all(model, launch);
    trace!("end {}", launch.name);
}

/// One block's side of a collective.
fn collective(block: &Block<'_>, function: Function, part: &Part) -> Result<(), Aborted> {
    trace!("{:?} {:?} {:?} on channel {}", function.coll, function.algo, function.proto, block.channel_id);
    if function.algo == Algo::Tree { tree::run(block, function, part) } else { ring::run(block, function, part) }
}

/// What the emulation cannot do must not pass for a hang: the process ends.
fn unsupported(what: &str) -> ! {
    report!("emulation: {what}; there are rings, and trees for AllReduce, with buffers that are not registered");
    std::process::abort()
}
