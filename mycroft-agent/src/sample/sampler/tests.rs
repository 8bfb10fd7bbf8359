//! The sampler against memory of this very process that a thread rewrites meanwhile.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::*;
use crate::{
    discover::layout::{
        CommLayout, LayoutSource,
        proxy::{ArgsLayout, ConnectionLayout, MemLayout, RecvLayout, SendLayout, StateLayout, SubLayout},
    },
    sample::memory::Process,
};

const OPS: usize = 16;
/// Bytes of each structure in the arena, and where they begin.
const ARGS: usize = 0x100;
const ARGS_AT: usize = 0x400;
const CONNECTIONS_AT: usize = ARGS_AT + OPS * ARGS;
const CONNECTION: usize = 0x100;
const BYTES: usize = CONNECTIONS_AT + OPS * CONNECTION;

/// Memory laid out as by [`layout`]: communicator, proxy state, operations, connections with their resources.
struct Arena(Vec<AtomicU64>);

fn layout() -> NcclLayout {
    let proxy = ProxyLayout {
        state: StateLayout {
            active: 0,
            ops_pool: 8,
            progress_thread: 16,
            next_ops: 24,
            async_result: Some(0x20),
            ..StateLayout::default()
        },
        args: ArgsLayout {
            size: ARGS as u32,
            progress: 0x80,
            n_subs: 0x88,
            op_count: 0x90,
            slice_steps: 0x98,
            state: 0xa0,
            next: 0xa8,
            next_peer: 0xb0,
            protocol: 0xb8,
            ..ArgsLayout::default()
        },
        max_subs: 1,
        sub: SubLayout {
            size: 0x80,
            connection: 0,
            channel: 8,
            n_steps: 0x10,
            n_bytes: 0x18,
            peer: 0x20,
            base: 0x28,
            posted: 0x30,
            received: 0x38,
            flushed: 0x40,
            transmitted: 0x48,
            done: 0x50,
        },
        connection: ConnectionLayout { size: 0x20, send: 0, transport: 4, resources: 8, ..ConnectionLayout::default() },
        send: SendLayout { recv_mem: 0, net_dev: 8, step: 0x10, ..SendLayout::default() },
        recv: RecvLayout { send_mem: 0, net_dev: 8, step: 0x10, ..RecvLayout::default() },
        mem: MemLayout { head: 0, tail: 0, slot: 8, slot_stride: 8, slot_width: 8 },
        ..ProxyLayout::default()
    };
    NcclLayout {
        build_id: None,
        version: None,
        source: LayoutSource::Dwarf,
        comm: CommLayout { proxy_state: Some(0), async_result: Some(0x20), ..CommLayout::default() },
        shared: None,
        job_comm: None,
        functions: BTreeMap::new(),
        proxy: Some(proxy),
        proxy_problem: None,
    }
}

impl Arena {
    /// A communicator whose proxy has [`OPS`] operations in work, each on a connection of its own.
    fn new() -> Self {
        let arena = Self((0..BYTES / 8).map(|_| AtomicU64::new(0)).collect());
        arena.set(0, arena.address(0x100));
        arena.set(0x100, arena.op(0));
        for op in 0..OPS {
            let connection = CONNECTIONS_AT + op * CONNECTION;
            let next = if op + 1 < OPS { arena.op(op + 1) } else { 0 };
            let at = ARGS_AT + op * ARGS;
            arena.set(at, arena.address(connection));
            arena.set(at + 0x10, 64);
            arena.set(at + 0x20, op as u64);
            arena.set(at + 0x88, 1);
            arena.set(at + 0x98, 2);
            arena.set(at + 0xa0, 2);
            arena.set(at + 0xa8, next);
            arena.set(at + 0xb8, 2);
            arena.begin(op, 1);
            // send, transport NET, then resources with the memory behind them
            arena.set(connection, 1 | 2 << 32);
            arena.set(connection + 8, arena.address(connection + 0x20));
            arena.set(connection + 0x20, arena.address(connection + 0x40));
        }
        arena
    }

    fn address(&self, at: usize) -> u64 {
        std::ptr::from_ref(&self.0[at / 8]) as u64
    }

    fn op(&self, op: usize) -> u64 {
        self.address(ARGS_AT + op * ARGS)
    }

    fn set(&self, at: usize, value: u64) {
        self.0[at / 8].store(value, Ordering::SeqCst);
    }

    /// As `ncclProxyOpToArgs` and the first round of `sendProxyProgress` do: number, counters, state.
    fn begin(&self, op: usize, number: u64) {
        let at = ARGS_AT + op * ARGS;
        self.set(at + 0xa0, 0);
        self.set(at + 0x90, number << 1 | 1);
        self.set(at + 0x28, number * 1000);
        for counter in [0x30, 0x48, 0x50] {
            self.set(at + counter, 0);
        }
        self.set(at + 0xa0, 2);
    }

    /// One slice further: as a proxy does, the one ahead first.
    fn advance(&self, op: usize, number: u64, step: u64) {
        let at = ARGS_AT + op * ARGS;
        for counter in [0x30, 0x48, 0x50] {
            self.set(at + counter, step);
        }
        self.set(CONNECTIONS_AT + op * CONNECTION + 0x40, number * 1000 + step);
    }
}

fn sampler(arena: &Arena) -> (Sampler, Process) {
    let memory = Process::new(std::process::id());
    (Sampler::new(&memory, Arc::new(layout()), arena.address(0), 64).unwrap(), memory)
}

#[test]
fn what_is_there_is_what_is_told() {
    let arena = Arena::new();
    arena.advance(3, 1, 8);
    arena.set(CONNECTIONS_AT + 3 * CONNECTION + 0x40, 1012);
    let (mut sampler, memory) = sampler(&arena);
    let sample = sampler.sample(&memory).unwrap();
    assert_eq!(sample.flows.len(), OPS);
    let flow = sample.flows.iter().find(|f| f.peer == Some(3)).unwrap();
    let op = flow.op.unwrap();
    assert_eq!((flow.way, flow.p2p, flow.transport), (Way::Send, true, Transport::Net));
    assert_eq!((op.number, op.base, op.steps, op.slice), (1, 1000, 64, 2));
    assert_eq!((op.posted, op.ready, op.transmitted, op.done), (8, 12, 8, 8));
    let calls = memory.calls();
    sampler.sample(&memory).unwrap();
    assert!(memory.calls() - calls <= 8, "{} calls a look, whatever the number of operations", memory.calls() - calls);
}

/// As `ncclCommGetAsyncError` tells it: the communicator's, or else its proxy's.
#[test]
fn errors_are_told_and_what_is_none_is_not() {
    let arena = Arena::new();
    let (mut sampler, memory) = sampler(&arena);
    let mut error = |of_comm: u64, of_proxy: u64| {
        arena.set(0x20, of_comm);
        arena.set(0x120, of_proxy);
        sampler.sample(&memory).unwrap().error
    };
    assert_eq!(error(0, 0), None);
    assert_eq!(error(7, 0), None, "in progress");
    assert_eq!(error(0, 6), Some(6));
    assert_eq!(error(7, 6), Some(6));
    assert_eq!(error(1, 6), Some(1));
    assert_eq!(error(0xffff_ffff, 9), None, "no ncclResult_t");
}

/// The target of docs/performance.md: no broken invariant in a million reads under churn.
#[test]
fn counters_of_two_operations_are_never_mixed() {
    const READS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let arena = Arena::new();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !end.load(Ordering::Relaxed) {
                number += 1;
                (0..OPS).for_each(|op| arena.begin(op, number));
                for step in (0..=64).step_by(2) {
                    (0..OPS).for_each(|op| arena.advance(op, number, step));
                }
            }
        });
        let (mut sampler, memory) = sampler(&arena);
        while sampler.stats.ops < READS {
            for op in sampler.sample(&memory).unwrap().flows.iter().filter_map(|f| f.op) {
                assert_eq!(op.base, op.number * 1000, "counters of another operation");
                assert!(op.done <= op.transmitted && op.transmitted <= op.ready && op.ready <= op.steps, "{op:?}");
            }
        }
        end.store(true, Ordering::Relaxed);
        let stats = sampler.stats;
        println!("{stats:?}");
        assert_eq!(stats.broken, 0);
    });
}

/// A process that rewrites everything on purpose: nothing panics, nothing loops, what is told stays possible.
#[test]
fn a_hostile_process_does_no_harm() {
    let arena = Arena::new();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            while !end.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // anything but the pointer to the proxy state, without which there is nothing to sample
                let at = 8 + random as usize % (BYTES - 8);
                let value = match random >> 61 {
                    0 => 0,
                    1 => u64::MAX,
                    2 => arena.op((random >> 8) as usize % OPS),
                    3 => arena.address((random >> 8) as usize % BYTES),
                    4 => 1 << (random >> 8 & 63),
                    5 => (random >> 8) % 70,
                    _ => random,
                };
                arena.set(at, value);
                if random.is_multiple_of(64) {
                    let fresh = Arena::new();
                    for (word, new) in arena.0.iter().zip(&fresh.0) {
                        let value = new.load(Ordering::Relaxed);
                        let inside = value.wrapping_sub(fresh.address(0)) < BYTES as u64;
                        let moved = value.wrapping_sub(fresh.address(0)).wrapping_add(arena.address(0));
                        word.store(if inside { moved } else { value }, Ordering::Relaxed);
                    }
                }
            }
        });
        let (mut sampler, memory) = sampler(&arena);
        let mut told = 0;
        for _ in 0..20_000 {
            let Ok(sample) = sampler.sample(&memory) else { continue };
            assert!(sample.error.is_none_or(|e| matches!(e, 1..=6 | 8)), "{:?}", sample.error);
            for op in sample.flows.iter().filter_map(|f| f.op) {
                told += 1;
                assert!(op.done <= op.transmitted && op.transmitted <= op.steps && op.posted <= op.steps, "{op:?}");
                assert!(op.ready <= op.steps && op.consumed <= op.steps, "{op:?}");
            }
        }
        end.store(true, Ordering::Relaxed);
        assert!(told > 0, "the walk was never sound: the test shows nothing");
    });
}
