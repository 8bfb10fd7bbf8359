//! Where the proxy's state lies: who is connected to whom, and how far each transfer is.
//!
//! Names are those of NCCL's `src/include/proxy.h`, `src/transport/net.cc`, `src/include/comm.h`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LayoutError, Version, fields::Fields};
use crate::discover::dwarf::StructSpec;

/// Declares the layout of one of NCCL's structs: field, its path in the source, its bytes. `optional` fields
/// are not in every release.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident = $c:literal $(in $unit:literal)? {
        $($(#[$fdoc:meta])* $field:ident: $path:literal $size:literal,)*
    } $(optional { $($(#[$odoc:meta])* $ofield:ident: $opath:literal $osize:literal,)* })?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            /// Bytes of the whole struct.
            pub size: u32,
            $($(#[$fdoc])* pub $field: u32,)*
            $($($(#[$odoc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $ofield: Option<u32>,)*)?
        }

        impl $name {
            pub(super) const SPEC: StructSpec<'static> = StructSpec {
                name: $c,
                unit: layout!(@unit $($unit)?),
                fields: &[$($path,)* $($($opath,)*)?],
            };

            pub(super) fn read(fields: &Fields, name: &str) -> Result<Self, LayoutError> {
                Ok(Self {
                    size: fields.size(name)?,
                    $($field: fields.required(name, $path, $size)?,)*
                    $($($ofield: fields.optional(name, $opath, $osize)?,)*)?
                })
            }
        }
    };
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
}

layout! {
    /// `ncclSharedResources`: what communicators that share connections have in common.
    SharedLayout = "ncclSharedResources" {
        /// Pointer to the communicator that made it.
        owner: "owner" 8,
        proxy_state: "proxyState" 8,
        coll_op_count: "collOpCount" 8,
    }
}

layout! {
    /// `ncclChannel`: the rank's neighbours, by rank in the communicator.
    ChannelLayout = "ncclChannel" {
        ring_prev: "ring.prev" 4,
        ring_next: "ring.next" 4,
        /// Pointer to an array of pointers to `ncclChannelPeer`, by rank.
        peers: "peers" 8,
        tree_up: "tree.up" 4,
        /// Three ranks, -1 where there is none.
        tree_down: "tree.down" 12,
    }
}

layout! {
    /// `ncclConnector`: one direction to a peer on a channel.
    ConnectorLayout = "ncclConnector" {
        connected: "connected" 4,
        same_process: "proxyConn.sameProcess" 4,
        /// Pointer to the `ncclProxyConnection`; of another process's memory where `same_process` is 0.
        connection: "proxyConn.connection" 8,
    }
}

layout! {
    /// `ncclProxyOpsPool`: operations handed to the progress thread.
    PoolLayout = "ncclProxyOpsPool" {
        /// Index of the first that was not taken; -1 for none.
        next_ops: "nextOps" 4,
    }
}

layout! {
    /// `ncclPeerInfo`: what a rank told the others of itself when the communicator was made.
    PeerInfoLayout = "ncclPeerInfo" {
        rank: "rank" 4,
        cuda_dev: "cudaDev" 4,
        /// Equal for ranks of one host; salted with the communicator's hash.
        host_hash: "hostHash" 8,
        pid_hash: "pidHash" 8,
        bus_id: "busId" 8,
    }
}

layout! {
    /// `ncclProxyState`: one for each set of shared resources.
    StateLayout = "ncclProxyState" {
        tp_rank: "tpRank" 4,
        tp_n_ranks: "tpnRanks" 4,
        tp_local_n_ranks: "tpLocalnRanks" 4,
        cuda_dev: "cudaDev" 4,
        /// Pointer to the table of the network in use, whose first word points to its name.
        net: "ncclNet" 8,
        /// Handle of the service thread.
        thread: "thread" 8,
        /// Pointer to the pool in which operations wait to be taken by the progress thread.
        ops_pool: "progressState.opsPool" 8,
        /// Handle of the progress thread; 0 before there is one.
        progress_thread: "progressState.thread" 8,
        /// First operation in work.
        active: "progressState.active" 8,
        /// Index of the next operation of a batch that was taken and is not in work yet; -1 for none.
        next_ops: "progressState.nextOps" 4,
    } optional {
        async_result: "asyncResult" 4,
    }
}

layout! {
    /// `ncclProxyArgs`: an operation in work on one connection, or on a few that share buffers.
    ArgsLayout = "ncclProxyArgs" {
        /// Pointer to the function that moves it on.
        progress: "progress" 8,
        n_subs: "nsubs" 4,
        done: "done" 4,
        op_count: "opCount" 8,
        slice_steps: "sliceSteps" 4,
        chunk_steps: "chunkSteps" 4,
        dtype: "dtype" 1,
        red_op: "redOp" 1,
        pattern: "pattern" 1,
        protocol: "protocol" 1,
        state: "state" 4,
        idle: "idle" 4,
        next: "next" 8,
        next_peer: "nextPeer" 8,
    } optional {
        coll: "coll" 1,
        algorithm: "algorithm" 1,
    }
}

layout! {
    /// `ncclProxySubArgs`: one connection's part of an operation. Counters are in steps from `base`.
    SubLayout = "ncclProxySubArgs" {
        connection: "connection" 8,
        channel: "channelId" 4,
        n_steps: "nsteps" 4,
        n_bytes: "nbytes" 8,
        peer: "peer" 4,
        base: "base" 8,
        posted: "posted" 8,
        received: "received" 8,
        flushed: "flushed" 8,
        transmitted: "transmitted" 8,
        done: "done" 8,
    }
}

layout! {
    /// `ncclProxyConnection`: one end of a connection.
    ConnectionLayout = "ncclProxyConnection" {
        send: "send" 4,
        transport: "transport" 4,
        shared: "shared" 4,
        same_process: "sameProcess" 4,
        /// Pointer to the transport's functions.
        tcomm: "tcomm" 8,
        resources: "transportResources" 8,
        state: "state" 4,
    }
}

layout! {
    /// `sendNetResources` (`sendResources` up to 2.18).
    SendLayout = "sendNetResources" in "transport/net.cc" {
        send_mem: "sendMem" 8,
        recv_mem: "recvMem" 8,
        tp_remote_rank: "tpRemoteRank" 4,
        net_dev: "netDev" 4,
        use_gdr: "useGdr" 4,
        channel: "channelId" 4,
        /// Steps that all operations so far have used.
        step: "step" 8,
    }
}

layout! {
    /// `recvNetResources` (`recvResources` up to 2.18).
    RecvLayout = "recvNetResources" in "transport/net.cc" {
        send_mem: "sendMem" 8,
        recv_mem: "recvMem" 8,
        tp_remote_rank: "tpRemoteRank" 4,
        net_dev: "netDev" 4,
        use_gdr: "useGdr" 4,
        need_flush: "needFlush" 4,
        channel: "channelId" 4,
        step: "step" 8,
    }
}

/// `ncclSendMem` and `ncclRecvMem`: what GPU and proxy tell each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemLayout {
    /// `ncclSendMem.head`: steps that the receiver has used up.
    pub head: u32,
    /// `ncclRecvMem.tail`: steps that the sender has filled.
    pub tail: u32,
    /// Size of the data in each slot: offset of the first, bytes to the next, bytes of the number. From 2.20
    /// `connFifo[].size`, before `sizesFifo[]`; -1 marks an empty slot.
    pub slot: u32,
    pub slot_stride: u32,
    pub slot_width: u32,
}

/// `ncclChannelPeer`: the connectors to one peer, [`CONNS`] for each direction: the first for collectives, the other
/// for sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelPeerLayout {
    pub send: u32,
    pub recv: u32,
}

/// `NCCL_MAX_CONNS`; the same in every release.
pub const CONNS: u32 = 2;

/// Slots of a connection, `NCCL_STEPS`; the same in every release.
pub const STEPS: u32 = 8;

/// All that is needed to follow flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyLayout {
    pub channel: ChannelLayout,
    pub peer: ChannelPeerLayout,
    pub connector: ConnectorLayout,
    pub peer_info: PeerInfoLayout,
    pub pool: PoolLayout,
    pub state: StateLayout,
    pub args: ArgsLayout,
    /// `NCCL_PROXY_MAX_SUBS`.
    pub max_subs: u32,
    pub sub: SubLayout,
    pub connection: ConnectionLayout,
    pub send: SendLayout,
    pub recv: RecvLayout,
    pub mem: MemLayout,
    /// `ncclPattern_t`, without the prefix `ncclPattern`.
    pub patterns: BTreeMap<i32, String>,
}

const PEER: StructSpec<'static> = StructSpec { name: "ncclChannelPeer", unit: None, fields: &["send", "recv"] };
const SEND_MEM: StructSpec<'static> = StructSpec { name: "ncclSendMem", unit: None, fields: &["head"] };
const RECV_MEM: StructSpec<'static> =
    StructSpec { name: "ncclRecvMem", unit: None, fields: &["tail", "connFifo", "connFifo.size", "sizesFifo"] };

/// Last release in which the network's resources have the names of [`OLD_NAMES`].
const OLD_NAMES_UNTIL: Version = Version { major: 2, minor: 18, patch: u32::MAX };
const OLD_NAMES: [&str; 2] = ["sendResources", "recvResources"];

/// What to look for in a library of that release.
pub(super) fn specs(version: Option<Version>) -> Vec<StructSpec<'static>> {
    let [send, recv] = net_names(version);
    vec![
        SharedLayout::SPEC,
        ChannelLayout::SPEC,
        PEER,
        ConnectorLayout::SPEC,
        PoolLayout::SPEC,
        PeerInfoLayout::SPEC,
        StateLayout::SPEC,
        ArgsLayout::SPEC,
        SubLayout::SPEC,
        ConnectionLayout::SPEC,
        StructSpec { name: send, ..SendLayout::SPEC },
        StructSpec { name: recv, ..RecvLayout::SPEC },
        SEND_MEM,
        RECV_MEM,
    ]
}

fn net_names(version: Option<Version>) -> [&'static str; 2] {
    if version.is_some_and(|v| v <= OLD_NAMES_UNTIL) {
        OLD_NAMES
    } else {
        [SendLayout::SPEC.name, RecvLayout::SPEC.name]
    }
}

impl ProxyLayout {
    pub(super) fn read(
        fields: &Fields,
        version: Option<Version>,
        patterns: BTreeMap<i32, String>,
    ) -> Result<Self, LayoutError> {
        let [send, recv] = net_names(version);
        let args = ArgsLayout::read(fields, ArgsLayout::SPEC.name)?;
        let sub = SubLayout::read(fields, SubLayout::SPEC.name)?;
        // The parts come first and fill all bytes up to the next member.
        let max_subs = args.progress.checked_div(sub.size).unwrap_or(0);
        if max_subs == 0 {
            return Err(LayoutError::Missing(format!("{}: no room for subs", ArgsLayout::SPEC.name)));
        }
        Ok(Self {
            channel: ChannelLayout::read(fields, ChannelLayout::SPEC.name)?,
            peer: channel_peer(fields)?,
            connector: ConnectorLayout::read(fields, ConnectorLayout::SPEC.name)?,
            pool: PoolLayout::read(fields, PoolLayout::SPEC.name)?,
            peer_info: PeerInfoLayout::read(fields, PeerInfoLayout::SPEC.name)?,
            state: StateLayout::read(fields, StateLayout::SPEC.name)?,
            args,
            max_subs,
            sub,
            connection: ConnectionLayout::read(fields, ConnectionLayout::SPEC.name)?,
            send: SendLayout::read(fields, send)?,
            recv: RecvLayout::read(fields, recv)?,
            mem: mem(fields)?,
            patterns,
        })
    }
}

fn channel_peer(fields: &Fields) -> Result<ChannelPeerLayout, LayoutError> {
    let place = |way| {
        let found = fields.array(PEER.name, way, CONNS)?;
        found.ok_or_else(|| LayoutError::Missing(format!("{}.{way}", PEER.name)))
    };
    let ((send, size), (recv, _)) = (place("send")?, place("recv")?);
    let connector = fields.size(ConnectorLayout::SPEC.name)?;
    if size != connector {
        let field = format!("an element of {}.send", PEER.name);
        return Err(LayoutError::Size { field, expected: connector.into(), found: size.into() });
    }
    Ok(ChannelPeerLayout { send, recv })
}

fn mem(fields: &Fields) -> Result<MemLayout, LayoutError> {
    let head = fields.required(SEND_MEM.name, "head", 8)?;
    let tail = fields.required(RECV_MEM.name, "tail", 8)?;
    if let Some((_, stride)) = fields.array(RECV_MEM.name, "connFifo", STEPS)? {
        let slot = fields.required(RECV_MEM.name, "connFifo.size", 8)?;
        return Ok(MemLayout { head, tail, slot, slot_stride: stride, slot_width: 8 });
    }
    let (slot, width) = fields
        .array(RECV_MEM.name, "sizesFifo", STEPS)?
        .ok_or_else(|| LayoutError::Missing("ncclRecvMem: neither connFifo nor sizesFifo".to_owned()))?;
    Ok(MemLayout { head, tail, slot, slot_stride: width, slot_width: width })
}
