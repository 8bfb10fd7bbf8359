//! The tables of an ELF file, read piece by piece.
//!
//! NCCL's libraries have hundreds of megabytes of GPU code in them, and the file can be replaced or cut
//! short under us: a page fault in a mapping past the end would be a SIGBUS, a short `pread` is an error. So
//! nothing is mapped, every read is bounded by the file's length and by a limit of the caller's.
//!
//! Must not: know NCCL.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::LittleEndian as LE;
use object::elf;
use object::pod;

/// Sections and tables beyond this many bytes are refused.
pub const SECTION_LIMIT: u64 = 1 << 30;

/// Longest build-id that is believed; linkers write 8 to 32 bytes.
const BUILD_ID_LIMIT: usize = 64;

/// Largest page of a machine we know.
const PAGE_LIMIT: u64 = 64 << 10;

/// What is wrong with an ELF file.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    #[error("cannot read {what}")]
    Io { what: String, source: io::Error },
    #[error("not an ELF file")]
    NotElf,
    /// 32 bits or big endian.
    #[error("not a 64-bit little-endian ELF file")]
    Class,
    #[error("machine {0} is neither x86-64 nor aarch64")]
    Machine(u16),
    #[error("{what} at 0x{offset:x}, 0x{size:x} bytes, lies past the end of the file (0x{len:x} bytes)")]
    PastEnd { what: String, offset: u64, size: u64, len: u64 },
    #[error("{what} has 0x{size:x} bytes, more than the 0x{limit:x} that are accepted")]
    TooBig { what: String, size: u64, limit: u64 },
    #[error("section {0} is compressed, which is not supported")]
    Compressed(String),
    #[error("{0} is malformed")]
    Malformed(String),
    /// Several functions bear the name, and nothing says which of them counts.
    #[error("{count} functions are named {name}")]
    Ambiguous { name: String, count: usize },
}

/// Instruction set of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    X86_64,
    Aarch64,
}

/// An entry of the section table. `offset` and `size` are bytes in the file and are not checked yet.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    /// `SHT_` constant.
    pub kind: u32,
    /// `SHF_` bits.
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    /// Index of a section that belongs to this one (the strings of a symbol table).
    pub link: usize,
}

/// A `PT_LOAD` or `PT_NOTE` entry of the program header table.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// `PT_` constant.
    pub kind: u32,
    pub address: u64,
    pub offset: u64,
    /// Bytes that come from the file.
    pub size: u64,
    /// `PF_X`
    pub executable: bool,
}

/// Headers of an ELF file, and bounded reads of the rest.
#[derive(Clone, Debug)]
pub struct Image<'f> {
    file: &'f File,
    len: u64,
    machine: Machine,
    sections: Vec<Section>,
    segments: Vec<Segment>,
}

impl<'f> Image<'f> {
    /// Reads the file header, the section table and the program headers.
    ///
    /// # Errors
    /// The file is no 64-bit little-endian ELF file for a machine we know, or a table lies outside of it.
    /// A file without a section table (some strippers remove it) is fine and has no sections.
    pub fn open(file: &'f File) -> Result<Self, ElfError> {
        let meta = file.metadata().map_err(|source| ElfError::Io { what: "file size".to_owned(), source })?;
        let mut image =
            Self { file, len: meta.len(), machine: Machine::X86_64, sections: Vec::new(), segments: Vec::new() };
        let header = image.read_header()?;
        image.machine = match header.e_machine.get(LE) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            other => return Err(ElfError::Machine(other)),
        };
        image.segments = image.read_segments(&header)?;
        image.sections = image.read_sections(&header)?;
        Ok(image)
    }

    /// Instruction set of the file.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// The segments that are loaded, in file order.
    pub fn load_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.kind == elf::PT_LOAD)
    }

    /// The first section of that name.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Section number `index`.
    #[must_use]
    pub fn section_at(&self, index: usize) -> Option<&Section> {
        self.sections.get(index)
    }

    /// Where in the file the instruction at virtual address `address` lies; `None` if no executable segment
    /// has bytes there.
    #[must_use]
    pub fn code_offset(&self, address: u64) -> Option<u64> {
        self.load_segments().filter(|s| s.executable).find_map(|s| {
            let into = address.checked_sub(s.address)?;
            (into < s.size).then(|| s.offset.checked_add(into)).flatten()
        })
    }

    /// What to add to the file's addresses to get those of a process that maps file offset `offset` at
    /// `start`; `None` if that is no offset of code.
    #[must_use]
    pub fn load_bias(&self, start: u64, offset: u64) -> Option<u64> {
        // A mapping starts at a page, a segment where it likes.
        let segment = self.load_segments().find(|s| {
            s.executable && offset < s.offset.saturating_add(s.size) && s.offset < offset.saturating_add(PAGE_LIMIT)
        })?;
        let shift = segment.address.wrapping_sub(segment.offset);
        Some(start.wrapping_sub(offset).wrapping_sub(shift))
    }

    /// The build-id that the linker gave the file, in hex.
    ///
    /// Looked for in the program headers, which survive every kind of stripping.
    ///
    /// # Errors
    /// The notes cannot be read.
    pub fn build_id(&self) -> Result<Option<String>, ElfError> {
        for segment in self.segments.iter().filter(|s| s.kind == elf::PT_NOTE) {
            let notes = self.bytes_at("notes", segment.offset, segment.size, 1 << 20)?;
            if let Some(id) = build_id_note(&notes) {
                return Ok(Some(id.iter().map(|b| format!("{b:02x}")).collect()));
            }
        }
        Ok(None)
    }

    /// The bytes of a section.
    ///
    /// # Errors
    /// It is compressed, longer than `limit`, has no bytes in the file, or lies outside of it.
    pub fn section_bytes(&self, section: &Section, limit: u64) -> Result<Vec<u8>, ElfError> {
        self.check_section(section)?;
        self.bytes_at(&format!("section {}", section.name), section.offset, section.size, limit)
    }

    /// Whether a section's bytes are there as they are, to be read in pieces with [`Self::bytes_at`].
    ///
    /// # Errors
    /// As for [`Self::section_bytes`], with [`SECTION_LIMIT`].
    pub fn check_section(&self, section: &Section) -> Result<(), ElfError> {
        // `.zdebug_*` is GNU's older way of compressing.
        if section.flags & u64::from(elf::SHF_COMPRESSED) != 0 || section.name.starts_with(".zdebug") {
            return Err(ElfError::Compressed(section.name.clone()));
        }
        if section.kind == elf::SHT_NOBITS {
            return Err(ElfError::Malformed(format!("section {} (no bytes in the file)", section.name)));
        }
        self.check(&format!("section {}", section.name), section.offset, section.size, SECTION_LIMIT)
    }

    /// `size` bytes at file offset `offset`; `what` names them in errors.
    ///
    /// # Errors
    /// More than `limit`, outside of the file, or not readable.
    pub fn bytes_at(&self, what: &str, offset: u64, size: u64, limit: u64) -> Result<Vec<u8>, ElfError> {
        self.check(what, offset, size, limit)?;
        let size = usize::try_from(size).map_err(|_| ElfError::Malformed(what.to_owned()))?;
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, offset).map_err(|source| ElfError::Io { what: what.to_owned(), source })?;
        Ok(bytes)
    }

    fn check(&self, what: &str, offset: u64, size: u64, limit: u64) -> Result<(), ElfError> {
        if offset.checked_add(size).is_none_or(|end| end > self.len) {
            return Err(ElfError::PastEnd { what: what.to_owned(), offset, size, len: self.len });
        }
        if size > limit {
            return Err(ElfError::TooBig { what: what.to_owned(), size, limit });
        }
        Ok(())
    }

    fn read_header(&self) -> Result<elf::FileHeader64<LE>, ElfError> {
        let size = size_of::<elf::FileHeader64<LE>>() as u64;
        if self.len < size {
            return Err(ElfError::NotElf);
        }
        let bytes = self.bytes_at("ELF header", 0, size, size)?;
        let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(&bytes).map_err(|()| ElfError::NotElf)?;
        let ident = &header.e_ident;
        if ident.magic != elf::ELFMAG {
            return Err(ElfError::NotElf);
        }
        if ident.class != elf::ELFCLASS64 || ident.data != elf::ELFDATA2LSB {
            return Err(ElfError::Class);
        }
        Ok(*header)
    }

    fn read_segments(&self, header: &elf::FileHeader64<LE>) -> Result<Vec<Segment>, ElfError> {
        let table = self.table::<elf::ProgramHeader64<LE>>(
            "program header table",
            header.e_phoff.get(LE),
            header.e_phnum.get(LE),
            header.e_phentsize.get(LE),
        )?;
        Ok(table
            .iter()
            .filter(|p| matches!(p.p_type.get(LE), elf::PT_LOAD | elf::PT_NOTE))
            .map(|p| Segment {
                kind: p.p_type.get(LE),
                address: p.p_vaddr.get(LE),
                offset: p.p_offset.get(LE),
                size: p.p_filesz.get(LE),
                executable: p.p_flags.get(LE) & elf::PF_X != 0,
            })
            .collect())
    }

    fn read_sections(&self, header: &elf::FileHeader64<LE>) -> Result<Vec<Section>, ElfError> {
        let table = self.table::<elf::SectionHeader64<LE>>(
            "section table",
            header.e_shoff.get(LE),
            header.e_shnum.get(LE),
            header.e_shentsize.get(LE),
        )?;
        let Some(names) = table.get(usize::from(header.e_shstrndx.get(LE))) else {
            return Ok(Vec::new());
        };
        let names = self.bytes_at("section names", names.sh_offset.get(LE), names.sh_size.get(LE), 1 << 20)?;
        Ok(table
            .iter()
            .map(|s| Section {
                name: string_at(&names, s.sh_name.get(LE)).unwrap_or_default().to_owned(),
                kind: s.sh_type.get(LE),
                flags: s.sh_flags.get(LE),
                address: s.sh_addr.get(LE),
                offset: s.sh_offset.get(LE),
                size: s.sh_size.get(LE),
                link: s.sh_link.get(LE) as usize,
            })
            .collect())
    }

    /// Counts are 16 bits; the escape for more entries is not supported, no library has that many.
    fn table<T: pod::Pod>(&self, what: &str, offset: u64, count: u16, entry: u16) -> Result<Vec<T>, ElfError> {
        if offset == 0 || count == 0 {
            return Ok(Vec::new());
        }
        if usize::from(entry) != size_of::<T>() {
            return Err(ElfError::Malformed(format!("{what} (entries of {entry} bytes)")));
        }
        let bytes = self.bytes_at(what, offset, u64::from(count) * u64::from(entry), SECTION_LIMIT)?;
        pod::slice_from_all_bytes(&bytes).map(<[T]>::to_vec).map_err(|()| ElfError::Malformed(what.to_owned()))
    }
}

/// The zero-terminated string at `offset` of a string table, if it is there and is UTF-8.
#[must_use]
pub fn string_at(table: &[u8], offset: u32) -> Option<&str> {
    let rest = table.get(offset as usize..)?;
    let end = rest.iter().position(|b| *b == 0)?;
    str::from_utf8(rest.get(..end)?).ok()
}

/// The description of the `NT_GNU_BUILD_ID` note. Notes that are not aligned to 4 bytes but to 8 are passed
/// over, build-ids never are.
fn build_id_note(notes: &[u8]) -> Option<&[u8]> {
    let mut rest = notes;
    loop {
        let (header, after) = pod::from_bytes::<elf::NoteHeader64<LE>>(rest).ok()?;
        let padded = |size: u32| (size as usize).checked_next_multiple_of(4);
        let (name_size, size) = (header.n_namesz.get(LE), header.n_descsz.get(LE));
        let name = after.get(..name_size as usize)?;
        let after = after.get(padded(name_size)?..)?;
        let description = after.get(..size as usize)?;
        if name == b"GNU\0"
            && header.n_type.get(LE) == elf::NT_GNU_BUILD_ID
            && (1..=BUILD_ID_LIMIT).contains(&description.len())
        {
            return Some(description);
        }
        rest = after.get(padded(size)?..)?;
    }
}
