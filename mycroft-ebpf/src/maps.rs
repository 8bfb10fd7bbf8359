//! Every map, with the reason for its size.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use mycroft_common::{
    abi::{CommKey, CommState, Config, GroupState, ProcessEntry},
    counters::Counter,
    layout::KernelLayout,
};

/// 4 MiB hold 31,000 operations: 0.6 s at 50,000 a second, while the agent looks every few ms. The agent may
/// set another size before it loads the object.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// A node runs tens of NCCL processes; 16,384 leaves room for one that starts and kills them in a loop.
#[map]
pub static PROCESSES: HashMap<u32, ProcessEntry> = HashMap::with_max_entries(16_384, 0);

/// 8 GPUs × a few hundred communicators (4D parallel, expert groups) and as much again.
#[map]
pub static COMMS: HashMap<CommKey, CommState> = HashMap::with_max_entries(8_192, 0);

/// Threads that use groups. Least recently used ones go: a thread that has not called for long is at depth 0.
#[map]
pub static GROUPS: LruHashMap<u32, GroupState> = LruHashMap::with_max_entries(16_384, 0);

/// Threads inside a communicator's creation → the communicator's address. They end, so LRU is safe.
#[map]
pub static INITS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(4_096, 0);

/// One entry per library file; the index is the attach cookie.
#[map]
pub static LAYOUTS: Array<KernelLayout> = Array::with_max_entries(256, 0);

#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);

#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// Adds 1 to a counter of this CPU.
#[inline(always)]
pub fn bump(counter: Counter) {
    if let Some(p) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the pointer is to this CPU's slot of a live map value; nothing else runs on it meanwhile
        // that writes it (uprobe programs do not nest on one CPU).
        unsafe { *p += 1 }
    }
}
