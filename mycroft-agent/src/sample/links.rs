//! The connections of a communicator to its neighbours in rings and trees.

use std::collections::BTreeMap;

use super::{
    memory::{Piece, ReadError, Remote},
    raw::Raw,
};
use crate::{
    discover::layout::{CommLayout, ProxyLayout},
    event::{Transport, Way},
};

/// `MAXCHANNELS`, the same in every release.
const CHANNELS_MAX: u32 = 64;
/// Children of a rank in a tree (`NCCL_MAX_TREE_ARITY`).
const CHILDREN: u32 = 3;

/// One direction to one neighbour on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) channel: u32,
    pub(super) peer: u32,
    pub(super) way: Way,
    /// The peer is this rank's parent in the channel's tree.
    pub(super) parent: bool,
    pub(super) transport: Transport,
    /// Address of the `ncclProxyConnection`; 0 where this process has none.
    pub(super) connection: u64,
}

/// What the proxy knows of a connection that goes over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetEnd {
    pub(super) way: Way,
    /// Address of the `sendNetResources` or `recvNetResources`.
    pub(super) resources: u64,
    /// Address of the memory that this side looks at: `recvMem` to send, `sendMem` to receive.
    pub(super) memory: u64,
    pub(super) net_dev: i32,
}

/// Reads a rank's links. Channels that make no sense are left out.
pub(super) fn read(
    memory: &impl Remote,
    comm: &CommLayout,
    proxy: &ProxyLayout,
    address: u64,
    n_ranks: u32,
) -> Result<Vec<Link>, ReadError> {
    let (Some(channels), Some(count)) = (comm.channels, comm.n_channels) else {
        return Ok(Vec::new());
    };
    let count = memory.u32(address.wrapping_add(count.into()))?.min(CHANNELS_MAX);
    let size = proxy.channel.size as usize;
    let mut bytes = vec![0u8; count as usize * size];
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    memory.bytes(address.wrapping_add(channels.into()), &mut bytes)?;
    let mut wanted = Vec::new();
    for (channel, bytes) in (0..count).zip(bytes.chunks_exact(size)) {
        let raw = Raw::new(bytes);
        let peers = raw.u64(proxy.channel.peers);
        let neighbours = neighbours(raw, proxy, n_ranks);
        let up = u32::try_from(raw.i32(proxy.channel.tree_up)).ok();
        let want = |(peer, way)| Wanted { channel, peer, way, parent: up == Some(peer), peers };
        wanted.extend(neighbours.into_iter().map(want));
    }
    connectors(memory, proxy, &wanted)
}

#[derive(Clone, Copy)]
struct Wanted {
    channel: u32,
    peer: u32,
    way: Way,
    parent: bool,
    /// Address of the channel's array of peers.
    peers: u64,
}

/// Ring: receive from the one before, send to the next. Tree: both ways with parent and children.
fn neighbours(channel: Raw<'_>, proxy: &ProxyLayout, n_ranks: u32) -> Vec<(u32, Way)> {
    let at = &proxy.channel;
    let mut found = vec![(channel.i32(at.ring_prev), Way::Recv), (channel.i32(at.ring_next), Way::Send)];
    let family = (0..CHILDREN).map(|i| at.tree_down + 4 * i).chain([at.tree_up]);
    for peer in family.map(|offset| channel.i32(offset)) {
        found.extend([(peer, Way::Recv), (peer, Way::Send)]);
    }
    let mut found: Vec<(u32, Way)> = found
        .into_iter()
        .filter_map(|(peer, way)| Some((u32::try_from(peer).ok().filter(|p| *p < n_ranks)?, way)))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn connectors(memory: &impl Remote, proxy: &ProxyLayout, wanted: &[Wanted]) -> Result<Vec<Link>, ReadError> {
    let slots = wanted.iter().map(|w| w.peers.wrapping_add(8 * u64::from(w.peer)));
    let peers = words(memory, slots)?;
    let size = proxy.connector.size as usize;
    let mut bytes = vec![0u8; wanted.len() * size];
    // A peer that this rank never spoke to on the channel has none.
    let known: Vec<_> = wanted.iter().zip(&peers).filter(|(_, p)| **p != 0).collect();
    let mut pieces: Vec<Piece<'_>> = known
        .iter()
        .zip(bytes.chunks_exact_mut(size))
        .map(|((w, peer), into)| {
            let offset = if w.way == Way::Send { proxy.peer.send } else { proxy.peer.recv };
            Piece { address: peer.wrapping_add(offset.into()), into }
        })
        .collect();
    memory.read(&mut pieces)?;
    let ends: Vec<Link> =
        known.iter().zip(bytes.chunks_exact(size)).map(|((w, _), bytes)| link(w, Raw::new(bytes), proxy)).collect();
    transports(memory, proxy, ends)
}

fn link(wanted: &Wanted, connector: Raw<'_>, proxy: &ProxyLayout) -> Link {
    let at = &proxy.connector;
    let here = connector.i32(at.same_process) != 0;
    let transport = match (connector.i32(at.connected) != 0, here) {
        (false, _) => Transport::Unconnected,
        (true, false) => Transport::Elsewhere,
        // until the connection itself is read
        (true, true) => Transport::Unknown(-1),
    };
    let connection = if transport == Transport::Unknown(-1) { connector.u64(at.connection) } else { 0 };
    Link { channel: wanted.channel, peer: wanted.peer, way: wanted.way, parent: wanted.parent, transport, connection }
}

fn transports(memory: &impl Remote, proxy: &ProxyLayout, mut links: Vec<Link>) -> Result<Vec<Link>, ReadError> {
    let with: Vec<&mut Link> = links.iter_mut().filter(|l| l.connection != 0).collect();
    let at = &proxy.connection;
    let mut codes = vec![[0u8; 4]; with.len()];
    let mut pieces: Vec<_> = with
        .iter()
        .zip(&mut codes)
        .map(|(l, into)| Piece { address: l.connection.wrapping_add(at.transport.into()), into })
        .collect();
    memory.read(&mut pieces)?;
    for (link, code) in with.into_iter().zip(codes) {
        link.transport = Transport::from_code(i32::from_ne_bytes(code));
    }
    Ok(links)
}

/// The network's part of `connections`; those of other transports, or half made, are absent.
pub(super) fn net_ends(
    memory: &impl Remote,
    proxy: &ProxyLayout,
    connections: &[u64],
) -> Result<BTreeMap<u64, NetEnd>, ReadError> {
    let at = &proxy.connection;
    let size = at.size as usize;
    let mut bytes = vec![0u8; connections.len() * size];
    let mut pieces: Vec<_> = connections
        .iter()
        .zip(bytes.chunks_exact_mut(size))
        .map(|(address, into)| Piece { address: *address, into })
        .collect();
    memory.read(&mut pieces)?;
    let net: Vec<(u64, Way, u64)> = connections
        .iter()
        .zip(bytes.chunks_exact(size))
        .filter_map(|(address, bytes)| {
            let raw = Raw::new(bytes);
            let resources = raw.u64(at.resources);
            let net = Transport::from_code(raw.i32(at.transport)) == Transport::Net && resources != 0;
            net.then(|| (*address, if raw.i32(at.send) != 0 { Way::Send } else { Way::Recv }, resources))
        })
        .collect();
    let mut fields = vec![([0u8; 8], [0u8; 4]); net.len()];
    let mut pieces = Vec::new();
    for ((_, way, resources), (memory_field, dev_field)) in net.iter().zip(&mut fields) {
        let (memory_at, dev_at) = match way {
            Way::Send => (proxy.send.recv_mem, proxy.send.net_dev),
            Way::Recv => (proxy.recv.send_mem, proxy.recv.net_dev),
        };
        pieces.push(Piece { address: resources.wrapping_add(memory_at.into()), into: memory_field });
        pieces.push(Piece { address: resources.wrapping_add(dev_at.into()), into: dev_field });
    }
    memory.read(&mut pieces)?;
    let mut ends = BTreeMap::new();
    for ((address, way, resources), (memory, dev)) in net.into_iter().zip(fields) {
        let memory = u64::from_ne_bytes(memory);
        if memory != 0 {
            ends.insert(address, NetEnd { way, resources, memory, net_dev: i32::from_ne_bytes(dev) });
        }
    }
    Ok(ends)
}

/// 64-bit words at these addresses.
pub(super) fn words(memory: &impl Remote, at: impl Iterator<Item = u64>) -> Result<Vec<u64>, ReadError> {
    let at: Vec<u64> = at.collect();
    let mut words = vec![[0u8; 8]; at.len()];
    let mut pieces: Vec<_> = at.iter().zip(&mut words).map(|(a, into)| Piece { address: *a, into }).collect();
    memory.read(&mut pieces)?;
    Ok(words.into_iter().map(u64::from_ne_bytes).collect())
}
