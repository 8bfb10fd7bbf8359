//! One small file of each kind, for tests.

pub(crate) const RAS_TEXT: &str = "\
Job summary
===========

  Nodes    Processes          GPUs  Processes      GPUs
(total)   per node   per process    (total)   (total)
      2            2             1          4         4

Communicators... (0.00s)
=============

Group     Comms      Nodes     Ranks     Ranks     Ranks   Status  Errors
    #  in group   per comm  per node  per comm  in group
    0         1          2         2         4         3  RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 72 on node node2 managing GPU 1

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 1 managed by process 72 on node node2

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 64
  Rank 1 has launched up to operation 60 -- GPU 1 managed by process 66 on node node1
";

pub(crate) const RAS_JSON: &str = r#"{
  "nccl_version": "2.28.9", "timestamp": "2026-09-23 11:55:37", "communicators_count": 1,
  "communicators": [
    {"hash": "0xf31e5874c3f25459", "secondary_hash": "0xc4:0x2f", "size": 3, "ranks_count": 2, "missing_ranks_count": 1,
      "ranks": [
        {"rank": 0, "host": "10.0.0.1", "pid": 6299, "cuda_dev": 0, "nvml_dev": 0,
          "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "abort_flag": false},
          "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 101}},
        {"rank": 1, "host": "10.0.0.2", "pid": 6247, "cuda_dev": 0, "nvml_dev": 0,
          "status": {"init_state": 0, "async_error": 6, "finalize_called": false, "abort_flag": true},
          "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 100}}
      ],
      "missing_ranks": [
        {"rank": 2, "host": "10.0.0.3", "pid": 6001, "cuda_dev": 0, "nvml_dev": 0
         "status": {"unresponsive": true, "considered_dead": true}}
      ]}
  ],
  "ras": {"collection_time_sec": 0.001, "timeouts_count": 0}
}"#;

pub(crate) const INSPECTOR: &str = r#"{"header":{"id":"0x7f8c","rank":0,"n_ranks":2},"metadata":{"dump_timestamp_us":1748030377748202,"hostname":"n0","pid":7},"coll_perf":{"coll":"AllReduce","coll_sn":9,"coll_msg_size_bytes":65536}}
{"header":{"id":"0x7f8c","rank":1,"n_ranks":2},"metadata":{"dump_timestamp_us":1748030377748202,"hostname":"n1","pid":8},"coll_perf":{"coll":"AllReduce","coll_sn":4,"coll_msg_size_bytes":65536}}
{"header":{"id":"0x7f8c","rank":1,"n_ranks":2},"metadata":{"dump_timestamp_us":1748030377748202,"hostname":"n1","pid":8},"p2p_perf":{"p2p":"Send","p2p_sn":4}}
"#;

pub(crate) const NCCL_LOG: &str = "\
node1:100:200 [0] NCCL INFO ncclCommInitRank comm 0x7f10 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xabc - Init START
node1:100:200 [0] NCCL INFO comm 0x7f10 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xabc - Init COMPLETE
node1:101:201 [1] NCCL INFO comm 0x7f20 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 1c000 commId 0xabc - Init COMPLETE
node1:100:200 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 comm 0x7f10 [nranks=2] stream 0x71
node1:101:201 [1] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 comm 0x7f20 [nranks=2] stream 0x71
node1:100:200 [0] NCCL INFO Send: opCount 1 sendbuff 0x1 recvbuff (nil) count 64 datatype 7 op 0 root 1 comm 0x7f10 [nranks=2] stream 0x71
node1:101:201 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4> with status=12 opcode=0 len=0 vendor err 129
";
