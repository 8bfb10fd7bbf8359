//! The operations that a proxy has in work.
//!
//! The progress thread is the only writer, and never frees an operation while it lives; one that is done goes to a
//! list of free ones by the same `next` field (`removeOp`, `src/proxy.cc`). So an operation is read, its counters are
//! read, and it is read again: if it still is the same operation, the counters are its own.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    memory::{Piece, ReadError, Remote},
    raw::Raw,
};
use crate::discover::layout::ProxyLayout;

/// Operations followed at most. A rank has one for each connection in use: two for each channel of a ring, and up to
/// some hundreds of sends and receives.
const OPS_MAX: usize = 4096;
/// Operations counted behind another on its connection.
const BEHIND_MAX: u32 = 16;

/// State of an operation that is in no list (`ncclProxyOpNone`).
const NONE: i32 = 0;
/// Taken and not begun (`ncclProxyOpReady`): its counters are not set yet.
const READY: i32 = 1;
/// `ncclProxyOpProgress`.
const PROGRESS: i32 = 2;

/// What all connections of an operation share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) address: u64,
    pub(super) op_count: u64,
    pub(super) n_subs: u32,
    pub(super) begun: bool,
    pub(super) slice: u64,
    pub(super) tree: bool,
    pub(super) protocol: u8,
    pub(super) func: Option<u8>,
    pub(super) algorithm: Option<u8>,
    next: u64,
    next_peer: u64,
}

impl Head {
    /// `None` for what can't be an operation in work.
    fn parse(address: u64, raw: Raw<'_>, proxy: &ProxyLayout) -> Option<Self> {
        let at = &proxy.args;
        let state = raw.i32(at.state);
        let n_subs = u32::try_from(raw.i32(at.n_subs)).ok().filter(|n| (1..=proxy.max_subs).contains(n))?;
        if state == NONE || !(READY..=PROGRESS).contains(&state) {
            return None;
        }
        Some(Self {
            address,
            op_count: raw.u64(at.op_count),
            n_subs,
            begun: state == PROGRESS,
            slice: u64::try_from(raw.i32(at.slice_steps)).ok().filter(|s| (1..=64).contains(s))?,
            tree: is_tree(proxy, raw.u8(at.pattern)),
            protocol: raw.u8(at.protocol),
            func: at.coll.map(|offset| raw.u8(offset)),
            algorithm: at.algorithm.map(|offset| raw.u8(offset)),
            next: raw.u64(at.next),
            next_peer: raw.u64(at.next_peer),
        })
    }

    /// Whether this and a later look saw one operation. What is behind it may have changed.
    pub(super) fn same(&self, later: &Self) -> bool {
        (self.address, self.op_count, self.n_subs, self.begun)
            == (later.address, later.op_count, later.n_subs, later.begun)
    }
}

/// `ncclPatternTreeUp`, `TreeDown` and `TreeUpDown`; not `NvlsTree`, whose rules are others.
fn is_tree(proxy: &ProxyLayout, pattern: u8) -> bool {
    proxy.patterns.get(&pattern.into()).is_some_and(|name| name.starts_with("Tree"))
}

/// An operation and how many wait behind it.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) head: Head,
    pub(super) behind: u32,
}

/// The part of `ncclProxyArgs` behind its subs.
fn tail_of(proxy: &ProxyLayout) -> (u32, usize) {
    (proxy.args.progress, (proxy.args.size - proxy.args.progress) as usize)
}

/// Reads the heads of the operations at `addresses`; `None` for what is none.
pub(super) fn heads(
    memory: &impl Remote,
    proxy: &ProxyLayout,
    addresses: &[u64],
) -> Result<Vec<Option<Head>>, ReadError> {
    let (start, size) = tail_of(proxy);
    let mut bytes = vec![0u8; addresses.len() * size];
    let mut pieces: Vec<_> = addresses
        .iter()
        .zip(bytes.chunks_exact_mut(size))
        .map(|(a, into)| Piece { address: a.wrapping_add(start.into()), into })
        .collect();
    memory.read(&mut pieces)?;
    let parse = |(a, bytes): (&u64, &[u8])| Head::parse(*a, Raw { bytes, start }, proxy);
    Ok(addresses.iter().zip(bytes.chunks_exact(size)).map(parse).collect())
}

/// The operations in work, and all that were looked at on the way.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub(super) listed: Vec<Listed>,
    pub(super) visited: Vec<u64>,
}

/// Walks the list that begins at `active`. `known` are the addresses that the last walk visited; their heads come in one
/// read, and as the list rarely changes in between, no other is needed then.
pub(super) fn list(memory: &impl Remote, proxy: &ProxyLayout, active: u64, known: &[u64]) -> Result<List, ReadError> {
    if active == 0 {
        return Ok(List::default());
    }
    let found = heads(memory, proxy, known)?;
    let heads = found.into_iter().flatten().map(|h| (h.address, h)).collect();
    let mut walk = Walk { memory, proxy, heads };
    let mut seen = BTreeSet::new();
    let mut listed = Vec::new();
    let mut at = active;
    while at != 0 && listed.len() < OPS_MAX && seen.insert(at) {
        let Some(head) = walk.head(at)? else { break };
        let behind = walk.behind(&head, &mut seen)?;
        at = head.next;
        listed.push(Listed { head, behind });
    }
    Ok(List { listed, visited: seen.into_iter().collect() })
}

struct Walk<'m, M> {
    memory: &'m M,
    proxy: &'m ProxyLayout,
    heads: BTreeMap<u64, Head>,
}

impl<M: Remote> Walk<'_, M> {
    fn head(&mut self, at: u64) -> Result<Option<Head>, ReadError> {
        if let Some(head) = self.heads.get(&at) {
            return Ok(Some(head.clone()));
        }
        let head = heads(self.memory, self.proxy, &[at])?.into_iter().next().flatten();
        self.heads.extend(head.clone().map(|h| (at, h)));
        Ok(head)
    }

    fn behind(&mut self, head: &Head, seen: &mut BTreeSet<u64>) -> Result<u32, ReadError> {
        let (mut behind, mut at) = (0, head.next_peer);
        while at != 0 && behind < BEHIND_MAX && seen.insert(at) {
            let Some(next) = self.head(at)? else { break };
            behind += 1;
            at = next.next_peer;
        }
        Ok(behind)
    }
}
