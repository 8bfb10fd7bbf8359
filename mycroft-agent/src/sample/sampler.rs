//! One look after the other at the transfers of one communicator.

use std::{collections::BTreeMap, sync::Arc};

use mycroft_common::nccl::Func;

use super::{
    links::{self, Link, NetEnd},
    memory::{Piece, ReadError, Remote},
    raw::Raw,
    walk::{self, Head, Listed},
};
use crate::{
    discover::layout::{NcclLayout, ProxyLayout, proxy::STEPS},
    event::{Flow, FlowOp, Protocol, Transport, Way},
};

/// Looks at an operation that changes under the eyes, before it is left for the next sample.
const TRIES: u32 = 3;
/// Samples between two readings of the links, while all are connected and while some are not: connections are made when
/// they are first needed.
const LINKS_EVERY: u64 = 100;
const LINKS_EVERY_OPEN: u64 = 10;
/// Bytes of a network's name at most.
const NAME_MAX: usize = 64;
/// `ncclInProgress`, and the largest `ncclResult_t` that is known: what lies above is no error of NCCL's.
const IN_PROGRESS: u32 = 7;
const RESULT_MAX: u32 = 8;

/// Why a communicator can't be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The library's layout does not tell where the proxy's state is.
    #[error("flows can't be followed: {0}")]
    NoLayout(String),
    /// It has none, or is gone.
    #[error("no proxy state: the communicator at 0x{0:x} is not set up, or gone")]
    NoProxy(u64),
}

/// Counts over the life of a sampler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub samples: u64,
    /// Operations read.
    pub ops: u64,
    /// Of them, those that changed while they were read, and were read again.
    pub torn: u64,
    /// Operations left out of a sample: they changed at every try.
    pub given_up: u64,
    /// Operations whose counters contradicted each other although they had not changed.
    pub broken: u64,
}

/// What one look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub flows: Vec<Flow>,
    /// The progress thread has left operations that were handed to it.
    pub untaken: bool,
    /// Its handle, the address of its `struct pthread`; 0 before there is one.
    pub progress_thread: u64,
    /// The error that `ncclCommGetAsyncError` would tell.
    pub error: Option<i32>,
}

/// Follows one communicator of one process.
#[derive(Clone, Debug)]
pub struct Sampler {
    layout: Arc<NcclLayout>,
    /// Address of the `ncclComm`.
    comm: u64,
    n_ranks: u32,
    state: u64,
    net: Option<String>,
    links: Vec<Link>,
    /// By address of the connection.
    ends: BTreeMap<u64, NetEnd>,
    visited: Vec<u64>,
    pub stats: Stats,
}

impl Sampler {
    /// # Errors
    /// The layout has no proxy, or the communicator none.
    pub fn new(memory: &impl Remote, layout: Arc<NcclLayout>, comm: u64, n_ranks: u32) -> Result<Self, SampleError> {
        let no_layout = |why: &str| SampleError::NoLayout(why.to_owned());
        if layout.proxy.is_none() {
            return Err(no_layout(layout.proxy_problem.as_deref().unwrap_or("no layout of the proxy")));
        }
        let pointer = layout.comm.proxy_state.ok_or_else(|| no_layout("no ncclComm.proxyState"))?;
        let state = memory.u64(comm.wrapping_add(pointer.into()))?;
        if state == 0 {
            return Err(SampleError::NoProxy(comm));
        }
        let net = layout.comm.net.and_then(|at| net_name(memory, comm.wrapping_add(at.into())));
        Ok(Self {
            layout,
            comm,
            n_ranks,
            state,
            net,
            links: Vec::new(),
            ends: BTreeMap::new(),
            visited: Vec::new(),
            stats: Stats::default(),
        })
    }

    /// Name of the network in use.
    #[must_use]
    pub fn net(&self) -> Option<&str> {
        self.net.as_deref()
    }

    /// Address of the `ncclProxyState`.
    #[must_use]
    pub fn proxy_state(&self) -> u64 {
        self.state
    }

    /// Looks once.
    ///
    /// # Errors
    /// The memory can't be read (any more), or the communicator is gone.
    pub fn sample(&mut self, memory: &impl Remote) -> Result<Sample, SampleError> {
        let layout = Arc::clone(&self.layout);
        let Some(proxy) = &layout.proxy else { return Ok(Sample::default()) };
        let now = Overview::read(memory, proxy, &self.layout, self.comm, self.state)?;
        self.refresh_links(memory, proxy)?;
        self.stats.samples += 1;
        let (ops, visited) = match self.read_ops(memory, proxy, now.active) {
            // The memory that operations are in goes with the progress thread.
            Err(ReadError::Unreadable(_)) if !self.visited.is_empty() => {
                self.visited.clear();
                self.read_ops(memory, proxy, now.active)?
            }
            other => other?,
        };
        self.visited = visited;
        Ok(Sample {
            flows: self.flows(memory, proxy, ops)?,
            untaken: now.untaken,
            progress_thread: now.progress_thread,
            error: now.error,
        })
    }

    fn refresh_links(&mut self, memory: &impl Remote, proxy: &ProxyLayout) -> Result<(), ReadError> {
        let open = self.links.iter().all(|l| l.transport == Transport::Unconnected);
        let every = if open { LINKS_EVERY_OPEN } else { LINKS_EVERY };
        if !self.stats.samples.is_multiple_of(every) {
            return Ok(());
        }
        self.links = links::read(memory, &self.layout.comm, proxy, self.comm, self.n_ranks)?;
        let connections: Vec<u64> =
            self.links.iter().filter(|l| l.transport == Transport::Net).map(|l| l.connection).collect();
        self.ends = links::net_ends(memory, proxy, &connections)?;
        Ok(())
    }

    /// The operations in work with their counters, and what to read first next time.
    fn read_ops(
        &mut self,
        memory: &impl Remote,
        proxy: &ProxyLayout,
        active: u64,
    ) -> Result<(Vec<OnConnection>, Vec<u64>), ReadError> {
        let list = walk::list(memory, proxy, active, &self.visited)?;
        self.stats.ops += list.listed.len() as u64;
        let mut done = Vec::new();
        let mut open = list.listed;
        let mut odd = Odd::new();
        for attempt in 0..TRIES {
            if open.is_empty() {
                break;
            }
            self.stats.torn += if attempt > 0 { open.len() as u64 } else { 0 };
            open = self.read_counters(memory, proxy, open, &mut done, &mut odd)?;
        }
        self.stats.given_up += open.len() as u64;
        Ok((done, list.visited))
    }

    /// Reads the counters of `ops` into `done`; those that changed meanwhile are returned as they are now.
    fn read_counters(
        &mut self,
        memory: &impl Remote,
        proxy: &ProxyLayout,
        ops: Vec<Listed>,
        done: &mut Vec<OnConnection>,
        odd: &mut Odd,
    ) -> Result<Vec<Listed>, ReadError> {
        let subs = read_subs(memory, proxy, &ops)?;
        self.learn(memory, proxy, &subs)?;
        let gpu = self.read_gpu(memory, proxy, &subs)?;
        let addresses: Vec<u64> = ops.iter().map(|o| o.head.address).collect();
        let after = walk::heads(memory, proxy, &addresses)?;
        let mut again = Vec::new();
        for (((op, after), subs), gpu) in ops.into_iter().zip(after).zip(subs).zip(gpu) {
            // One that has ended meanwhile is no longer in work: nothing is missing without it.
            let Some(after) = after else { continue };
            if !op.head.same(&after) {
                again.push(Listed { head: after, behind: op.behind });
                continue;
            }
            let parsed = subs.iter().zip(gpu).map(|(sub, gpu)| sub.op(&op, gpu)).collect::<Option<Vec<_>>>();
            match parsed {
                Some(parsed) => done.extend(subs.iter().map(|s| s.connection).zip(parsed)),
                // The same again: it is not that one counter was read before and another after a step.
                None if odd.get(&op.head.address) == Some(&subs) => self.stats.broken += 1,
                None => {
                    odd.insert(op.head.address, subs);
                    again.push(op);
                }
            }
        }
        Ok(again)
    }

    /// Gets to know connections that are no links, as those of sends and receives.
    fn learn(&mut self, memory: &impl Remote, proxy: &ProxyLayout, subs: &[Vec<Sub>]) -> Result<(), ReadError> {
        let mut new: Vec<u64> =
            subs.iter().flatten().map(|s| s.connection).filter(|c| !self.ends.contains_key(c)).collect();
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() {
            self.ends.extend(links::net_ends(memory, proxy, &new)?);
        }
        Ok(())
    }

    /// What the GPU says of each sub: the counter that it writes, and the sizes in the slots.
    fn read_gpu(
        &self,
        memory: &impl Remote,
        proxy: &ProxyLayout,
        subs: &[Vec<Sub>],
    ) -> Result<Vec<Vec<Option<Gpu>>>, ReadError> {
        let at = &proxy.mem;
        let size = (at.slot + STEPS * at.slot_stride) as usize;
        let ends: Vec<Option<NetEnd>> = subs.iter().flatten().map(|s| self.ends.get(&s.connection).copied()).collect();
        let mut bytes = vec![0u8; ends.len() * size];
        let mut pieces: Vec<_> = ends
            .iter()
            .zip(bytes.chunks_exact_mut(size))
            .filter_map(|(end, into)| {
                let end = (*end)?;
                let into = if end.way == Way::Send { into } else { into.get_mut(..at.head as usize + 8)? };
                Some(Piece { address: end.memory, into })
            })
            .collect();
        memory.read(&mut pieces)?;
        let mut gpus = ends.iter().zip(bytes.chunks_exact(size)).map(|(end, bytes)| {
            let raw = Raw::new(bytes);
            let end = (*end)?;
            let counter = raw.u64(if end.way == Way::Send { at.tail } else { at.head });
            let filled = (0..STEPS).filter(|slot| slot_filled(raw, proxy, *slot)).fold(0, |set, slot| set | 1 << slot);
            Some(Gpu { way: end.way, counter, filled })
        });
        Ok(subs.iter().map(|s| gpus.by_ref().take(s.len()).collect()).collect())
    }

    fn flows(&self, memory: &impl Remote, proxy: &ProxyLayout, ops: Vec<OnConnection>) -> Result<Vec<Flow>, ReadError> {
        let steps = self.read_steps(memory, proxy)?;
        let mut ops: BTreeMap<u64, Vec<SubOp>> = ops.into_iter().fold(BTreeMap::new(), |mut map, (at, op)| {
            map.entry(at).or_insert_with(Vec::new).push(op);
            map
        });
        let mut flows = Vec::new();
        for link in self.links.iter().filter(|l| l.transport != Transport::Unconnected) {
            let op = ops.remove(&link.connection).and_then(|found| found.into_iter().next());
            flows.push(Flow {
                channel: link.channel,
                peer: Some(link.peer),
                way: link.way,
                parent: link.parent,
                p2p: false,
                transport: link.transport,
                net_dev: self.ends.get(&link.connection).map(|e| e.net_dev),
                steps: steps.get(&link.connection).copied(),
                behind: op.as_ref().map_or(0, |o| o.behind),
                op: op.map(|o| o.op),
            });
        }
        for (connection, sub) in ops.into_iter().flat_map(|(c, subs)| subs.into_iter().map(move |s| (c, s))) {
            let Some(end) = self.ends.get(&connection) else { continue };
            flows.push(Flow {
                channel: sub.channel,
                peer: sub.peer.filter(|p| sub.p2p && *p < self.n_ranks),
                way: end.way,
                parent: false,
                p2p: sub.p2p,
                transport: Transport::Net,
                net_dev: Some(end.net_dev),
                steps: steps.get(&connection).copied(),
                behind: sub.behind,
                op: Some(sub.op),
            });
        }
        flows.sort_by_key(|f| (f.p2p, f.channel, f.way, f.peer));
        Ok(flows)
    }

    fn read_steps(&self, memory: &impl Remote, proxy: &ProxyLayout) -> Result<BTreeMap<u64, u64>, ReadError> {
        let place = |end: &NetEnd| {
            let step = if end.way == Way::Send { proxy.send.step } else { proxy.recv.step };
            end.resources.wrapping_add(step.into())
        };
        let words = links::words(memory, self.ends.values().map(place))?;
        Ok(self.ends.keys().copied().zip(words).collect())
    }
}

fn slot_filled(raw: Raw<'_>, proxy: &ProxyLayout, slot: u32) -> bool {
    let at = proxy.mem.slot + slot * proxy.mem.slot_stride;
    let size = if proxy.mem.slot_width == 4 { raw.i32(at).into() } else { raw.i64(at) };
    size != -1
}

/// `ncclComm.ncclNet` points to a table whose first word points to a name.
fn net_name(memory: &impl Remote, at: u64) -> Option<String> {
    let table = memory.u64(at).ok().filter(|t| *t != 0)?;
    let name = memory.u64(table).ok()?;
    memory.text(name, NAME_MAX).ok().filter(|n| !n.is_empty())
}

/// The state of a proxy as a whole.
struct Overview {
    active: u64,
    progress_thread: u64,
    untaken: bool,
    error: Option<i32>,
}

impl Overview {
    fn read(
        memory: &impl Remote,
        proxy: &ProxyLayout,
        layout: &NcclLayout,
        comm: u64,
        state: u64,
    ) -> Result<Self, SampleError> {
        let at = &proxy.state;
        let [mut owner, mut active, mut thread, mut pool] = [[0u8; 8]; 4];
        let [mut next, mut of_comm, mut of_proxy] = [[0u8; 4]; 3];
        let pointer = layout.comm.proxy_state.unwrap_or(0);
        let mut pieces = vec![
            Piece { address: comm.wrapping_add(pointer.into()), into: &mut owner },
            Piece { address: state.wrapping_add(at.active.into()), into: &mut active },
            Piece { address: state.wrapping_add(at.progress_thread.into()), into: &mut thread },
            Piece { address: state.wrapping_add(at.ops_pool.into()), into: &mut pool },
            Piece { address: state.wrapping_add(at.next_ops.into()), into: &mut next },
        ];
        let result = |base: u64, offset: Option<u32>, into| {
            offset.map(|offset| Piece { address: base.wrapping_add(offset.into()), into })
        };
        pieces.extend(result(comm, layout.comm.async_result, &mut of_comm));
        pieces.extend(result(state, at.async_result, &mut of_proxy));
        memory.read(&mut pieces)?;
        if u64::from_ne_bytes(owner) != state {
            return Err(SampleError::NoProxy(comm));
        }
        let (pool, thread) = (u64::from_ne_bytes(pool), u64::from_ne_bytes(thread));
        let waiting = |index: i32| index >= 0;
        let in_pool = match pool {
            0 => false,
            pool => waiting(memory.u32(pool.wrapping_add(proxy.pool.next_ops.into()))?.cast_signed()),
        };
        Ok(Self {
            active: u64::from_ne_bytes(active),
            progress_thread: thread,
            untaken: thread != 0 && (in_pool || (pool != 0 && waiting(i32::from_ne_bytes(next)))),
            // The communicator's own comes first, as in NCCL.
            error: error(of_comm).or_else(|| error(of_proxy)),
        })
    }
}

/// An error in a field that holds an `ncclResult_t`.
fn error(field: [u8; 4]) -> Option<i32> {
    let result = u32::from_ne_bytes(field);
    ((1..=RESULT_MAX).contains(&result) && result != IN_PROGRESS).then_some(result.cast_signed())
}

/// What a GPU has written for a connection.
#[derive(Clone, Copy, Debug)]
struct Gpu {
    way: Way,
    /// Send: `tail`. Recv: `head`.
    counter: u64,
    /// Slots that hold data, a bit each.
    filled: u32,
}

/// One connection's counters as they are in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sub {
    connection: u64,
    channel: i32,
    peer: i32,
    n_steps: i32,
    n_bytes: i64,
    base: u64,
    posted: u64,
    received: u64,
    transmitted: u64,
    done: u64,
}

/// A connection's part of an operation, checked.
#[derive(Clone, Copy, Debug)]
struct SubOp {
    channel: u32,
    peer: Option<u32>,
    p2p: bool,
    behind: u32,
    op: FlowOp,
}

/// Counters that contradicted each other, by the address of their operation.
type Odd = BTreeMap<u64, Vec<Sub>>;

/// The part of an operation on one connection, with the address of that.
type OnConnection = (u64, SubOp);

fn read_subs(memory: &impl Remote, proxy: &ProxyLayout, ops: &[Listed]) -> Result<Vec<Vec<Sub>>, ReadError> {
    let size = proxy.sub.size as usize;
    let mut bytes: Vec<Vec<u8>> = ops.iter().map(|o| vec![0u8; o.head.n_subs as usize * size]).collect();
    let mut pieces: Vec<_> =
        ops.iter().zip(&mut bytes).map(|(o, into)| Piece { address: o.head.address, into }).collect();
    memory.read(&mut pieces)?;
    let subs = |bytes: &Vec<u8>| bytes.chunks_exact(size).map(|b| Sub::parse(Raw::new(b), proxy)).collect();
    Ok(bytes.iter().map(subs).collect())
}

impl Sub {
    fn parse(raw: Raw<'_>, proxy: &ProxyLayout) -> Self {
        let at = &proxy.sub;
        Self {
            connection: raw.u64(at.connection),
            channel: raw.i32(at.channel),
            peer: raw.i32(at.peer),
            n_steps: raw.i32(at.n_steps),
            n_bytes: raw.i64(at.n_bytes),
            base: raw.u64(at.base),
            posted: raw.u64(at.posted),
            received: raw.u64(at.received),
            transmitted: raw.u64(at.transmitted),
            done: raw.u64(at.done),
        }
    }

    /// `None` if the counters contradict each other.
    fn op(&self, listed: &Listed, gpu: Option<Gpu>) -> Option<SubOp> {
        let head = &listed.head;
        let steps = u64::try_from(self.n_steps).ok()?;
        let way = gpu.map(|g| g.way);
        let mut op = FlowOp {
            number: head.op_count >> 1,
            func: head.func.map(|f| Func::from_code(f.into())),
            protocol: Protocol::from_code(head.protocol),
            algorithm: head.algorithm,
            tree: head.tree,
            begun: head.begun,
            steps,
            slice: head.slice,
            slice_bytes: u64::try_from(self.n_bytes).unwrap_or(0),
            base: 0,
            posted: 0,
            ready: 0,
            received: 0,
            transmitted: 0,
            consumed: 0,
            done: 0,
        };
        if head.begun {
            op.base = self.base;
            (op.posted, op.transmitted, op.done) = (self.posted, self.transmitted, self.done);
            if !(op.done <= op.transmitted && op.transmitted <= op.posted && op.posted <= steps) {
                return None;
            }
            match (way, gpu) {
                (Some(Way::Send), Some(gpu)) => op.ready = ready(&op, head, gpu),
                (Some(Way::Recv), Some(gpu)) => {
                    op.received = self.received;
                    if !(op.transmitted <= op.received && op.received <= op.posted) {
                        return None;
                    }
                    let consumed = gpu.counter.saturating_sub(op.base);
                    op.consumed = consumed.clamp(op.done, op.transmitted);
                }
                _ => {}
            }
        }
        Some(SubOp {
            channel: u32::try_from(self.channel).ok()?,
            peer: u32::try_from(self.peer).ok(),
            p2p: head.op_count & 1 == 1,
            behind: listed.behind,
            op,
        })
    }
}

/// Steps that the GPU has made ready to send. It may have been seen a moment later than the other counters, so it is kept
/// to what they allow.
fn ready(op: &FlowOp, head: &Head, gpu: Gpu) -> u64 {
    let most = (op.done + u64::from(STEPS)).min(op.steps).max(op.transmitted);
    if Protocol::from_code(head.protocol) == Protocol::Ll {
        // The GPU does not count; it fills slots, and the proxy empties them.
        let full = |step: &u64| gpu.filled & (1 << ((op.base + step) % u64::from(STEPS))) != 0;
        let slices = (op.transmitted..most.min(op.posted)).step_by(head.slice as usize).take_while(full).count();
        return op.transmitted + slices as u64 * head.slice;
    }
    gpu.counter.saturating_sub(op.base).clamp(op.transmitted, most)
}

#[cfg(test)]
mod tests;
