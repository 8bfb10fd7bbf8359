//! Loads the eBPF object, attaches it to library files, reads its maps.

use std::{collections::BTreeMap, fs::File, io, os::fd::AsRawFd as _, sync::Arc};

use aya::{
    Ebpf, EbpfLoader, include_bytes_aligned,
    maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray, RingBuf},
    programs::{
        ProgramError, UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};
use mycroft_common::{
    abi::{CommKey, CommState, Config, GroupState, ProcessEntry},
    counters::Counter,
    layout::KernelLayout,
    memory::Plain,
};
use thiserror::Error;

use super::{Plan, Program, Ring};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mycroft.bpf.o"));

/// Library files that can be attached at once; the size of the `LAYOUTS` map.
const LIBRARIES: usize = 256;

/// Why probing failed.
#[derive(Debug, Error)]
pub enum ProbeError {
    #[error("cannot load the eBPF programs: {0}\n  {hint}", hint = load_hint(.0))]
    Load(#[source] Box<aya::EbpfError>),
    #[error("the kernel refuses program {program}: {error}\n  {hint}", hint = program_hint(.error))]
    Program {
        program: &'static str,
        #[source]
        error: Box<ProgramError>,
    },
    #[error("the eBPF object has no {0}: the build is broken")]
    Absent(&'static str),
    #[error("cannot use map {map}: {error}")]
    Map {
        map: &'static str,
        #[source]
        error: Box<MapError>,
    },
    #[error("cannot attach {program} at file offset {offset:#x}: {error}\n  {hint}", hint = program_hint(.error))]
    Attach {
        program: &'static str,
        offset: u64,
        #[source]
        error: Box<ProgramError>,
    },
    #[error("{LIBRARIES} NCCL library files are traced already; this one is not")]
    TooManyLibraries,
    #[error("cannot watch the ring buffer: {0}")]
    Ring(#[source] io::Error),
}

const PRIVILEGE: &str = "run as root, or with CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and (kernels since mid-2025) CAP_SYS_ADMIN; `mycroft check` says what is missing";

fn load_hint(error: &aya::EbpfError) -> &'static str {
    if format!("{error:?}").contains("PermissionDenied") || format!("{error:?}").contains("code: 1,") {
        PRIVILEGE
    } else {
        "`mycroft check` says what this kernel offers"
    }
}

fn program_hint(error: &ProgramError) -> &'static str {
    let text = format!("{error:?}");
    if text.contains("PermissionDenied") || text.contains("code: 1,") || text.contains("code: 13,") {
        PRIVILEGE
    } else {
        "`mycroft check` says what this kernel offers"
    }
}

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Size of the ring buffer, rounded up to a power of two; bytes.
    pub ring_bytes: u32,
    /// Trace only processes that were [`Prober::adopt`]ed.
    pub listed_only: bool,
    /// Also probe `ncclLaunchKernel`: a second probe an operation, for the time of each kernel launch.
    pub launches: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ring_bytes: 4 << 20, listed_only: false, launches: false }
    }
}

/// A place among the attached library files; comes back in every event's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LibIndex(pub u16);

/// A plain value as aya wants it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Raw<T>(T);

// SAFETY: `Raw` is transparent and `T: Plain` has no padding and is valid for every bit pattern, which is
// what `Pod` asks.
unsafe impl<T: Plain + 'static> aya::Pod for Raw<T> {}

/// The programs in the kernel and where they are attached. Dropping it detaches all; so does the end of the
/// process, however it ends, as nothing is pinned.
pub struct Prober {
    ebpf: Ebpf,
    counters: PerCpuArray<MapData, u64>,
    processes: BpfHashMap<MapData, u32, Raw<ProcessEntry>>,
    comms: BpfHashMap<MapData, Raw<CommKey>, Raw<CommState>>,
    groups: BpfHashMap<MapData, u32, Raw<GroupState>>,
    layouts: Array<MapData, Raw<KernelLayout>>,
    links: Vec<Option<Vec<(Program, UProbeLink)>>>,
    launches: bool,
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("libraries", &self.links.iter().flatten().count()).finish_non_exhaustive()
    }
}

macro_rules! map {
    ($ebpf:expr, $name:literal, $kind:ty) => {{
        let map = $ebpf.take_map($name).ok_or(ProbeError::Absent($name))?;
        <$kind>::try_from(map).map_err(|error| ProbeError::Map { map: $name, error: Box::new(error) })?
    }};
}

impl Prober {
    /// Loads all programs. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Without the privileges, or where the kernel refuses a program; the message says what to do.
    pub fn load(settings: Settings) -> Result<(Self, Ring), ProbeError> {
        let ring_bytes = settings.ring_bytes.clamp(4096, 1 << 30).next_power_of_two();
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("EVENTS", ring_bytes)
            .load(OBJECT)
            .map_err(|e| ProbeError::Load(Box::new(e)))?;
        // Programs first: they refer to the maps by the descriptors that taking a map out may close.
        for (program, _) in Program::TABLE {
            uprobe(&mut ebpf, program)?
                .load()
                .map_err(|error| ProbeError::Program { program: program.name(), error: Box::new(error) })?;
        }
        let config = Config { listed_only: settings.listed_only.into(), wake_bytes: ring_bytes / 4 };
        map!(ebpf, "CONFIG", Array<MapData, Raw<Config>>)
            .set(0, Raw(config), 0)
            .map_err(|error| ProbeError::Map { map: "CONFIG", error: Box::new(error) })?;
        let ring = Ring::new(map!(ebpf, "EVENTS", RingBuf<MapData>)).map_err(ProbeError::Ring)?;
        let prober = Self {
            counters: map!(ebpf, "COUNTERS", PerCpuArray<MapData, u64>),
            processes: map!(ebpf, "PROCESSES", BpfHashMap<MapData, u32, Raw<ProcessEntry>>),
            comms: map!(ebpf, "COMMS", BpfHashMap<MapData, Raw<CommKey>, Raw<CommState>>),
            groups: map!(ebpf, "GROUPS", BpfHashMap<MapData, u32, Raw<GroupState>>),
            layouts: map!(ebpf, "LAYOUTS", Array<MapData, Raw<KernelLayout>>),
            links: Vec::new(),
            launches: settings.launches,
            ebpf,
        };
        Ok((prober, ring))
    }

    /// Attaches a plan to a library file, for all processes that map it now or later.
    ///
    /// # Errors
    /// If one probe can't be attached; those already attached are taken off again.
    pub fn attach(&mut self, file: &Arc<File>, plan: &Plan) -> Result<LibIndex, ProbeError> {
        let slot = match self.links.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.links.len() < LIBRARIES => {
                self.links.push(None);
                self.links.len() - 1
            }
            None => return Err(ProbeError::TooManyLibraries),
        };
        self.layouts
            .set(slot as u32, Raw(plan.layout), 0)
            .map_err(|error| ProbeError::Map { map: "LAYOUTS", error: Box::new(error) })?;
        // The kernel resolves this to the inode at once, so neither a rename nor the end of the process
        // through whose root we opened it matters.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut links = Vec::with_capacity(plan.points.len());
        let launches = self.launches;
        for point in plan.points.iter().filter(|p| launches || p.program != Program::Launch) {
            links.push((point.program, self.attach_one(&path, slot, point)?));
        }
        self.links[slot] = Some(links);
        Ok(LibIndex(slot as u16))
    }

    fn attach_one(&mut self, path: &str, slot: usize, point: &super::Point) -> Result<UProbeLink, ProbeError> {
        let fail = |error| ProbeError::Attach {
            program: point.program.name(),
            offset: point.file_offset,
            error: Box::new(error),
        };
        let program = uprobe(&mut self.ebpf, point.program)?;
        let at = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(point.file_offset),
            cookie: Some(slot as u64),
        };
        let id = program.attach(at, path, UProbeScope::AllProcesses).map_err(fail)?;
        program.take_link(id).map_err(fail)
    }

    /// Takes the probes off a library file.
    pub fn detach(&mut self, lib: LibIndex) {
        if let Some(slot) = self.links.get_mut(usize::from(lib.0)) {
            *slot = None;
        }
    }

    /// Number of attached probes by program.
    #[must_use]
    pub fn attached(&self) -> BTreeMap<Program, usize> {
        let mut counts = BTreeMap::new();
        for (program, _) in self.links.iter().flatten().flatten() {
            *counts.entry(*program).or_default() += 1;
        }
        counts
    }

    /// States that a library's probes speak for a process, or that its events are not wanted.
    ///
    /// # Errors
    /// If the map is full.
    pub fn adopt(&mut self, pid: u32, lib: LibIndex, wanted: bool) -> Result<(), ProbeError> {
        let entry = ProcessEntry { lib: lib.0, wanted: wanted.into() };
        self.processes
            .insert(pid, Raw(entry), 0)
            .map_err(|error| ProbeError::Map { map: "PROCESSES", error: Box::new(error) })
    }

    /// Forgets a process that is gone, with its communicators and threads: its pid may be used again.
    pub fn forget(&mut self, pid: u32) {
        // Absent is as good as removed.
        self.processes.remove(&pid).ok();
        let keys: Vec<_> = self.comms.keys().filter_map(Result::ok).filter(|k| k.0.pid == pid).collect();
        for key in keys {
            self.comms.remove(&key).ok();
        }
    }

    /// A counter, over all CPUs.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(&(counter as u32), 0).map_or(0, |per_cpu| per_cpu.iter().sum())
    }

    /// The kernel's own copy of every communicator's newest state.
    #[must_use]
    pub fn comm_states(&self) -> Vec<(CommKey, CommState)> {
        self.comms.iter().filter_map(Result::ok).map(|(k, v)| (k.0, v.0)).collect()
    }

    /// The kernel's own copy of one communicator's newest state.
    #[must_use]
    pub fn comm_state(&self, pid: u32, ptr: u64) -> Option<CommState> {
        self.comms.get(&Raw(CommKey { ptr, pid, pad: 0 }), 0).ok().map(|s| s.0)
    }

    /// Where a thread stands between group calls, if it has made any.
    #[must_use]
    pub fn group_state(&self, tid: u32) -> Option<GroupState> {
        self.groups.get(&tid, 0).ok().map(|g| g.0)
    }
}

fn uprobe(ebpf: &mut Ebpf, program: Program) -> Result<&mut UProbe, ProbeError> {
    let name = program.name();
    ebpf.program_mut(name)
        .ok_or(ProbeError::Absent(name))?
        .try_into()
        .map_err(|error| ProbeError::Program { program: name, error: Box::new(error) })
}
