use super::fields::Fields;
use super::*;
use crate::discover::dwarf::{Field, Structs};
use crate::discover::testing::{VERSIONS, nccl_library};

fn layout_of(version: &str) -> NcclLayout {
    let file = nccl_library(version);
    let nccl = NcclFile::open(&file).unwrap().unwrap();
    NcclLayout::from_dwarf(&nccl).unwrap()
}

/// The expected values were read from the same files by another program.
#[test]
fn offsets_are_those_of_the_wheels() {
    let common = |rank, at: [u32; 7], more: [u32; 6]| {
        let [bus_id, node, op_count, proxy_state, async_result, abort_flag, init_state] = at;
        let [n_channels, peer_info, net, name, end_magic, intra_next] = more;
        CommLayout {
            size: 0,
            comm_hash: rank - 8,
            rank,
            n_ranks: rank + 4,
            cuda_dev: rank + 8,
            nvml_dev: rank + 12,
            bus_id,
            node: Some(node),
            n_nodes: Some(node + 4),
            local_rank: Some(node + 8),
            op_count: Some(op_count),
            coll_op_count: Some(op_count + 8),
            seq_number: None,
            shared_res: Some(136),
            proxy_state: Some(proxy_state),
            async_result: Some(async_result),
            abort_flag: Some(abort_flag),
            init_state: Some(init_state),
            start_magic: Some(0),
            end_magic: Some(end_magic),
            n_channels: Some(n_channels),
            channels: Some(160),
            peer_info: Some(peer_info),
            net: Some(net),
            name: Some(name),
            intra_next: Some(intra_next),
        }
    };
    let expected = [
        CommLayout {
            size: 11176,
            coll_op_count: None,
            shared_res: Some(120),
            start_magic: None,
            end_magic: None,
            channels: Some(144),
            name: None,
            ..common(9176, [9208, 9348, 9408, 10768, 10520, 10528, 11160], [9416, 9104, 9120, 0, 0, 10616])
        },
        CommLayout {
            size: 16288,
            coll_op_count: None,
            shared_res: Some(128),
            channels: Some(152),
            name: None,
            ..common(13536, [13568, 13708, 13792, 15216, 14972, 14976, 15704], [13800, 13464, 13480, 0, 16280, 15064])
        },
        CommLayout {
            size: 1_080_320,
            seq_number: Some((1_074_512, 5)),
            ..common(
                1_066_168,
                [1_066_200, 1_066_348, 1_066_432, 1_068_144, 1_067_844, 1_067_848, 1_074_456],
                [1_066_448, 26272, 26320, 1_074_432, 1_080_312, 1_067_992],
            )
        },
        CommLayout {
            size: 1_199_592,
            seq_number: Some((1_191_544, 5)),
            ..common(
                1_181_400,
                [1_181_432, 1_181_580, 1_181_688, 1_184_520, 1_184_252, 1_184_256, 1_191_488],
                [1_181_704, 26784, 26832, 1_191_448, 1_199_584, 1_184_368],
            )
        },
        CommLayout {
            size: 1_196_536,
            seq_number: Some((1_193_800, 5)),
            ..common(
                1_181_416,
                [1_181_448, 1_181_608, 1_181_720, 1_185_416, 1_185_144, 1_185_152, 1_193_744],
                [1_181_736, 26784, 26848, 1_193_672, 1_196_528, 1_185_264],
            )
        },
    ];
    for (version, comm) in VERSIONS.into_iter().zip(expected) {
        let layout = layout_of(version);
        assert_eq!(layout.version.unwrap().to_string(), version);
        assert_eq!(layout.comm, comm, "{version}");
        let old = version == "2.21.5" || version == "2.18.3";
        assert_eq!(layout.shared.map(|s| s.coll_op_count), Some(if old { 784 } else { 1552 }));
        assert_eq!(layout.job_comm, Some(if old { 80 } else { 104 }));
    }
}

/// The names that the agent prints are those of the library.
#[test]
fn functions_are_numbered_as_in_the_agent() {
    for version in VERSIONS {
        let functions = layout_of(version).functions;
        assert!(functions.len() >= 8, "{version}");
        for (code, name) in functions {
            assert_eq!(mycroft_common::nccl::Func::from_code(code).name(), name, "{version}");
        }
    }
}

#[test]
fn the_counter_depends_on_the_release() {
    let layout = layout_of("2.27.5");
    let with = |version: Option<(u32, u32)>, seq_number| {
        let mut layout = layout.clone();
        layout.version = version.map(|(minor, patch)| Version { major: 2, minor, patch });
        layout.comm.seq_number = seq_number;
        let kernel = layout.to_kernel().unwrap();
        (kernel.seq_kind, kernel.seq_offset, kernel.seq_extra)
    };
    let array = Some((1_074_512, 5));
    assert_eq!(with(Some((27, 5)), array), (SEQ_ARRAY, 1_074_512, 5));
    assert_eq!(with(Some((26, 2)), Some((8, 40))), (SEQ_ARRAY, 8, SEQ_FUNCS_MAX as u32));
    assert_eq!(with(Some((27, 5)), None), (SEQ_NONE, 0, 0));
    assert_eq!(with(Some((25, 1)), array), (SEQ_COMM, 1_066_440, 0));
    assert_eq!(with(Some((24, 3)), array), (SEQ_COMM, 1_066_440, 0));
    assert_eq!(with(Some((23, 4)), array), (SEQ_SHARED, 136, 1552));
    assert_eq!(with(None, array), (SEQ_NONE, 0, 0));
    assert_eq!(with(None, None), (SEQ_SHARED, 136, 1552));

    let kernel = layout.to_kernel().unwrap();
    assert_eq!((kernel.comm_rank, kernel.comm_bus_id), (1_066_168, 1_066_200));
    assert_eq!(kernel.job_comm, 104);
}

#[test]
fn a_field_out_of_place_is_named() {
    let good = layout_of("2.27.5");
    let mut layout = good.clone();
    layout.comm.cuda_dev += 4;
    let error = layout.to_kernel().unwrap_err().to_string();
    assert_eq!(error, "ncclComm.cudaDev is at 1066180, expected at 1066176");
    let mut layout = good;
    layout.comm.rank = 0;
    assert!(layout.to_kernel().is_err());
}

fn info(fields: &[(&str, u64, u64)]) -> Fields {
    let place = |(name, offset, size): &(&str, u64, u64)| {
        let field = Field { offset: *offset, size: *size, count: None, bits: None };
        ((*name).to_owned(), field)
    };
    Fields(Structs {
        found: vec![Some(crate::discover::dwarf::Struct {
            name: "ncclInfo".to_owned(),
            unit: String::new(),
            size: 80,
            fields: fields.iter().map(place).collect(),
        })],
        problems: Vec::new(),
    })
}

#[test]
fn another_nccl_info_is_refused() {
    assert!(info(&INFO).check_info().is_ok());
    let mut moved = INFO;
    moved[8].1 = 64;
    let error = info(&moved).check_info().unwrap_err().to_string();
    assert_eq!(error, "ncclInfo.comm is at 64, expected at 56");
    let mut grown = INFO;
    grown[4].2 = 4;
    let error = info(&grown).check_info().unwrap_err().to_string();
    assert_eq!(error, "ncclInfo.count has 4 bytes, expected 8");
    let error = info(&INFO[1..]).check_info().unwrap_err().to_string();
    assert_eq!(error, "no layout for ncclInfo.coll");
}

/// Likewise.
#[test]
fn the_proxy_is_where_it_is_in_the_wheels() {
    // progressState.active, args: size, state, next; sub: size, base, done; connection: resources;
    // send: recvMem, step; recv: sendMem, step; slots
    let expected = [
        ("2.18.3", [216 + 1072, 7088, 6952, 7064, 216, 32, 72, 56, 21056, 21192, 21056, 21216, 128, 4, 4]),
        ("2.21.5", [320 + 1072, 11240, 11088, 11200, 344, 88, 128, 56, 21056, 21192, 21056, 21216, 136, 24, 8]),
        ("2.27.5", [328 + 1072, 33008, 32856, 32968, 512, 120, 160, 56, 1416, 1552, 1416, 1576, 136, 24, 8]),
        ("2.29.7", [360 + 1072, 33016, 32856, 32976, 512, 120, 160, 56, 1416, 1552, 1416, 1576, 136, 24, 8]),
        ("2.32.3", [352 + 1080, 33016, 32856, 32976, 512, 120, 160, 64, 1416, 1560, 1416, 1584, 144, 32, 8]),
    ];
    for (version, expected) in expected {
        let layout = layout_of(version);
        assert_eq!(layout.proxy_problem, None, "{version}");
        let p = layout.proxy.unwrap();
        let found = [
            p.state.active,
            p.args.size,
            p.args.state,
            p.args.next,
            p.sub.size,
            p.sub.base,
            p.sub.done,
            p.connection.resources,
            p.send.recv_mem,
            p.send.step,
            p.recv.send_mem,
            p.recv.step,
            p.mem.slot,
            p.mem.slot_stride,
            p.mem.slot_width,
        ];
        assert_eq!(found, expected, "{version}");
        assert_eq!(p.max_subs, if version == "2.18.3" || version == "2.21.5" { 32 } else { 64 }, "{version}");
        let send = if version == "2.18.3" || version == "2.21.5" { 11 } else { 13 };
        assert_eq!(p.patterns[&send], "Send", "{version}");
        assert_eq!(p.patterns[&0], "Ring", "{version}");
    }
}
