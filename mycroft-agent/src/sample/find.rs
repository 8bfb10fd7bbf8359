//! The communicators of a process, found in its memory: it may be stuck and make no call ever again.
//!
//! Cheapest way first: NCCL's own list (`ncclComms`, `src/ras/ras.cc`, from 2.24 on, unless NCCL_RAS_ENABLE=0), then a
//! search through the process's private memory.

use std::time::{Duration, Instant};

use mycroft_common::{
    abi::CommIdent,
    layout::KernelLayout,
    memory::{self, Memory, Plain, RankBlock, from_bytes},
    nccl::Func,
};

use super::memory::{ReadError, Remote};
use crate::{
    discover::{
        elf::NcclFile,
        layout::NcclLayout,
        regions::{PageMap, Region},
    },
    event::Ident,
};

/// Entries of NCCL's list that are believed.
const LIST_MAX: u32 = 1 << 16;
/// Bytes read at one go: larger reads fall out of the CPU's caches.
const PIECE: usize = 64 << 10;
/// The search ends after this, found or not.
const SEARCH_MAX: Duration = Duration::from_millis(1500);
/// `NCCL_MAGIC`, at both ends of a living communicator from 2.21 on.
const MAGIC: u64 = 0x0280_0280_0280_0280;
/// GPUs of a host at most: a number that the search can rely on.
const DEVICES_MAX: i32 = 256;
const RANKS_MAX: i32 = 1 << 20;
const NAME_MAX: usize = 128;
/// `ncclInProgress` in `ncclComm::initState`: ranks are still joining.
const IN_PROGRESS: i32 = 7;

/// NCCL's list of its communicators: addresses that the file gives to its two variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    array: u64,
    count: u64,
}

impl List {
    /// `None` before 2.24 and in stripped files.
    #[must_use]
    pub fn of(nccl: &NcclFile<'_>) -> Option<Self> {
        Some(Self { array: nccl.variable("ncclComms")?, count: nccl.variable("nNcclComms")? })
    }
}

/// How a communicator was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// In NCCL's own list.
    List,
    /// By its address, which a call has told.
    Call,
    /// By a search through memory.
    Search,
}

/// A communicator in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub address: u64,
    pub ident: Ident,
    /// Collectives launched, where the release keeps a count that ranks can compare.
    pub collectives: Option<u64>,
    pub by_function: Vec<(Func, u64)>,
    pub name: Option<String>,
    /// State of its creation, an `ncclResult_t`; `None` where the layout does not say where it is kept.
    pub init_state: Option<i32>,
    pub how: How,
}

/// What a look through a process came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub found: Vec<Found>,
    /// Bytes searched.
    pub searched: u64,
    /// The search was given up for time, with so many bytes left.
    pub left: u64,
}

/// A process to look through.
#[derive(Debug)]
pub struct Place<'p, M> {
    pub memory: &'p M,
    pub layout: &'p NcclLayout,
    /// NCCL's list, and what to add to its addresses in this process.
    pub list: Option<(List, u64)>,
}

impl<M: Remote> Place<'_, M> {
    /// By NCCL's list.
    ///
    /// # Errors
    /// If the process can't be read.
    pub fn listed(&self) -> Result<Vec<Found>, ReadError> {
        let Some((list, bias)) = self.list else { return Ok(Vec::new()) };
        let array = self.memory.u64(list.array.wrapping_add(bias))?;
        let count = self.memory.u32(list.count.wrapping_add(bias))?.min(LIST_MAX);
        if array == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0u8; count as usize * 8];
        self.memory.bytes(array, &mut bytes)?;
        let words = bytes.chunks_exact(8).filter_map(from_bytes::<u64>);
        Ok(words.filter(|address| *address != 0).filter_map(|address| self.examine(address, How::List)).collect())
    }

    /// What the communicator at `address` says of itself, also while it is being created; `None` until it has a name.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Found> {
        self.examine(address, How::Call)
    }

    /// By a search through `regions`, of which `pages` tells what exists.
    ///
    /// # Errors
    /// If the process is gone or must not be read.
    pub fn searched(&self, regions: &[Region], pages: &PageMap) -> Result<Outcome, ReadError> {
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let mut buffer = vec![0u8; PIECE];
        for region in regions {
            if begin.elapsed() > SEARCH_MAX {
                outcome.left += region.end - region.start;
                continue;
            }
            for part in pages.present(*region) {
                self.search(part, begin, &mut buffer, &mut outcome)?;
            }
        }
        Ok(outcome)
    }

    fn search(&self, part: Region, begin: Instant, buffer: &mut [u8], outcome: &mut Outcome) -> Result<(), ReadError> {
        let mut at = part.start;
        while at < part.end {
            if begin.elapsed() > SEARCH_MAX {
                outcome.left += part.end - at;
                return Ok(());
            }
            let size = usize::try_from(part.end - at).map_or(PIECE, |n| n.min(PIECE));
            let piece = &mut buffer[..size];
            match self.memory.bytes(at, piece) {
                Ok(()) => {}
                // Unmapped since, or the page of a device.
                Err(ReadError::Unreadable(_)) => return Ok(()),
                Err(e) => return Err(e),
            }
            outcome.searched += size as u64;
            self.scan(at, piece, outcome);
            at += size as u64;
        }
        Ok(())
    }

    /// Looks for a rank's block: hash, rank, number of ranks, devices. A block that a piece's end cuts is missed only if it
    /// is not aligned as `ncclComm` is.
    fn scan(&self, start: u64, bytes: &[u8], outcome: &mut Outcome) {
        let hash_at = u64::from(self.layout.comm.comm_hash);
        for offset in (0..bytes.len()).step_by(8) {
            let Some(block) = bytes.get(offset..).and_then(from_bytes::<RankBlock>) else { break };
            let likely = block.hash != 0
                && (0..RANKS_MAX).contains(&block.rank)
                && (1..=RANKS_MAX).contains(&block.nranks)
                && block.rank < block.nranks
                && (0..DEVICES_MAX).contains(&block.cuda_dev)
                && (0..DEVICES_MAX).contains(&block.nvml_dev);
            if !likely {
                continue;
            }
            let address = (start + offset as u64).wrapping_sub(hash_at);
            if !outcome.found.iter().any(|f| f.address == address)
                && self.is_whole(address)
                && let Some(found) = self.examine(address, How::Search)
            {
                outcome.found.push(found);
            }
        }
    }

    /// Whether what stands around a rank's block is a communicator: it and what it shares name the same proxy, and
    /// the marks at both ends are there; or the marks are, and its creation is under way.
    fn is_whole(&self, address: u64) -> bool {
        let comm = &self.layout.comm;
        let word = |offset: Option<u32>| self.memory.u64(address.wrapping_add(offset?.into())).ok();
        let marked = |offset: Option<u32>| offset.is_none() || word(offset) == Some(MAGIC);
        // While it waits for other ranks to join it has no proxy yet; then the marks must be there, not just be allowed.
        let signed = word(comm.start_magic) == Some(MAGIC) && word(comm.end_magic) == Some(MAGIC);
        if signed && self.init_state(address) == Some(IN_PROGRESS) {
            return true;
        }
        let (Some(shared), Some(proxy)) = (word(comm.shared_res), word(comm.proxy_state)) else { return false };
        let Some(at) = self.layout.shared.as_ref().map(|s| s.proxy_state) else { return false };
        proxy != 0
            && marked(comm.start_magic)
            && marked(comm.end_magic)
            && self.memory.u64(shared.wrapping_add(at.into())) == Ok(proxy)
    }

    /// Reads what the communicator at `address` says of itself; `None` for what can't be one.
    fn examine(&self, address: u64, how: How) -> Option<Found> {
        let kernel = self.layout.to_kernel().ok()?;
        let memory = ByWord(self.memory);
        let magic = |offset: u32| self.memory.u64(address.wrapping_add(offset.into()));
        if self.layout.comm.start_magic.is_some_and(|at| magic(at) != Ok(MAGIC)) {
            return None;
        }
        let ident = plausible(&memory::read_ident(&memory, &kernel, address)?)?;
        Some(Found {
            address,
            ident,
            collectives: memory::read_collectives(&memory, &kernel, address),
            by_function: self.by_function(&kernel, address),
            name: self.name(address),
            init_state: self.init_state(address),
            how,
        })
    }

    fn init_state(&self, address: u64) -> Option<i32> {
        let at = address.wrapping_add(self.layout.comm.init_state?.into());
        self.memory.u32(at).ok().map(u32::cast_signed)
    }

    fn by_function(&self, kernel: &KernelLayout, address: u64) -> Vec<(Func, u64)> {
        let Some((at, entries)) = self.layout.comm.seq_number else { return Vec::new() };
        // Kept up only where it is the count that ranks are compared by.
        if kernel.seq_offset != at {
            return Vec::new();
        }
        let mut bytes = vec![0u8; entries.min(64) as usize * 8];
        if self.memory.bytes(address.wrapping_add(at.into()), &mut bytes).is_err() {
            return Vec::new();
        }
        let counts = (0..).zip(bytes.chunks_exact(8).filter_map(from_bytes::<u64>));
        counts.filter(|(_, n)| *n > 0).map(|(code, n)| (Func::from_code(code), n)).collect()
    }

    fn name(&self, address: u64) -> Option<String> {
        let pointer = self.memory.u64(address.wrapping_add(self.layout.comm.name?.into())).ok()?;
        if pointer == 0 {
            return None;
        }
        self.memory.text(pointer, NAME_MAX).ok().filter(|n| !n.is_empty())
    }
}

fn plausible(ident: &CommIdent) -> Option<Ident> {
    (ident.hash != 0 && ident.nranks <= RANKS_MAX).then_some(())?;
    Some(Ident {
        hash: ident.hash,
        rank: u32::try_from(ident.rank).ok()?,
        nranks: u32::try_from(ident.nranks).ok()?,
        cuda_dev: ident.cuda_dev,
        nvml_dev: ident.nvml_dev,
        bus_id: ident.bus_id,
    })
}

/// What kernel programs and this read alike, out of a process's memory.
struct ByWord<'m, M>(&'m M);

impl<M: Remote> Memory for ByWord<'_, M> {
    fn read<T: Plain>(&self, address: u64) -> Option<T> {
        let mut bytes = vec![0u8; size_of::<T>()];
        self.0.bytes(address, &mut bytes).ok()?;
        from_bytes(&bytes)
    }
}
