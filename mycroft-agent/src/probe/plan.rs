//! Which programs go where, from what a library file offers. Pure.

use mycroft_common::layout::KernelLayout;

/// An eBPF program by its name in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    Enqueue,
    Launch,
    GroupStart,
    GroupEnd,
    InitEntry,
    InitReturn,
    Destroy,
    Abort,
    Finalize,
}

impl Program {
    /// All programs with the function on which each sits. `ncclEnqueueCheck`, `ncclLaunchKernel` and
    /// `ncclCommInitRankFunc` are local to the library; the others are its public interface.
    pub const TABLE: [(Self, &'static str); 9] = [
        (Self::Enqueue, "ncclEnqueueCheck"),
        (Self::Launch, "ncclLaunchKernel"),
        (Self::GroupStart, "ncclGroupStart"),
        (Self::GroupEnd, "ncclGroupEnd"),
        (Self::InitEntry, "ncclCommInitRankFunc"),
        (Self::InitReturn, "ncclCommInitRankFunc"),
        (Self::Destroy, "ncclCommDestroy"),
        (Self::Abort, "ncclCommAbort"),
        (Self::Finalize, "ncclCommFinalize"),
    ];

    /// Name in the eBPF object, and as the metric label `probe`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "nccl_enqueue",
            Self::Launch => "nccl_launch",
            Self::GroupStart => "nccl_group_start",
            Self::GroupEnd => "nccl_group_end",
            Self::InitEntry => "nccl_init_entry",
            Self::InitReturn => "nccl_init_return",
            Self::Destroy => "nccl_destroy",
            Self::Abort => "nccl_abort",
            Self::Finalize => "nccl_finalize",
        }
    }

    const fn is_return(self) -> bool {
        matches!(self, Self::InitReturn)
    }
}

/// Where a function starts in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset of its first instruction in the file.
    pub file_offset: u64,
    /// Bytes of a leading `endbr64`: a probe behind it is emulated instead of single-stepped.
    pub skip: u64,
}

/// A program at a file offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub program: Program,
    pub file_offset: u64,
}

/// Everything to attach to one library file.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub points: Vec<Point>,
    /// Functions that the file does not have (or not under this name).
    pub missing: Vec<&'static str>,
    pub layout: KernelLayout,
}

impl Plan {
    /// Makes a plan. `find` looks a function up by its plain C++ name.
    pub fn new(layout: KernelLayout, mut find: impl FnMut(&str) -> Option<Entry>) -> Self {
        let mut points = Vec::new();
        let mut missing = Vec::new();
        for (program, function) in Program::TABLE {
            match find(function) {
                // A return probe replaces the return address at the very first instruction.
                Some(e) if program.is_return() => points.push(Point { program, file_offset: e.file_offset }),
                Some(e) => points.push(Point { program, file_offset: e.file_offset + e.skip }),
                None if missing.last() != Some(&function) => missing.push(function),
                None => {}
            }
        }
        Self { points, missing, layout }
    }

    /// Whether operations can be seen at all.
    #[must_use]
    pub fn sees_operations(&self) -> bool {
        self.points.iter().any(|p| p.program == Program::Enqueue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_an_export() {
        for (program, _) in Program::TABLE {
            assert!(mycroft_common::EXPORTS.contains(&program.name()), "{} would be dropped", program.name());
        }
    }

    #[test]
    fn entry_probes_go_past_endbr_and_return_probes_do_not() {
        let plan = Plan::new(KernelLayout::default(), |_| Some(Entry { file_offset: 0x1000, skip: 4 }));
        let at = |p| plan.points.iter().find(|x| x.program == p).unwrap().file_offset;
        assert_eq!(at(Program::InitEntry), 0x1004);
        assert_eq!(at(Program::InitReturn), 0x1000);
        assert!(plan.missing.is_empty() && plan.sees_operations());
    }

    #[test]
    fn says_what_a_stripped_file_lacks() {
        let plan = Plan::new(KernelLayout::default(), |name| {
            name.starts_with("ncclGroup").then_some(Entry { file_offset: 1, skip: 0 })
        });
        assert!(!plan.sees_operations());
        assert_eq!(
            plan.missing,
            [
                "ncclEnqueueCheck",
                "ncclLaunchKernel",
                "ncclCommInitRankFunc",
                "ncclCommDestroy",
                "ncclCommAbort",
                "ncclCommFinalize"
            ]
        );
    }
}
