//! Indices into the `COUNTERS` per-CPU map: every way in which the kernel side can lose something.

/// A place in `COUNTERS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Probe hits of wanted processes.
    Hits = 0,
    /// Events not sent because the ring buffer was full.
    RingFull = 1,
    /// Operations whose `ncclInfo` could not be read.
    InfoUnreadable = 2,
    /// Communicators whose fields could not be read (paged out, or no layout for the library).
    CommUnreadable = 3,
    /// Communicators not tracked because `COMMS` was full.
    CommsFull = 4,
    /// Processes not tracked because `PROCESSES` was full.
    ProcessesFull = 5,
    /// Threads whose group depth is not tracked because `GROUPS` was full.
    GroupsFull = 6,
    /// Operation events sent or lost in [`Counter::RingFull`].
    Ops = 7,
}

impl Counter {
    /// All counters, in the order of their index.
    pub const ALL: [Self; 8] = [
        Self::Hits,
        Self::RingFull,
        Self::InfoUnreadable,
        Self::CommUnreadable,
        Self::CommsFull,
        Self::ProcessesFull,
        Self::GroupsFull,
        Self::Ops,
    ];

    /// Name as a metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hits => "hits",
            Self::RingFull => "ring_full",
            Self::InfoUnreadable => "info_unreadable",
            Self::CommUnreadable => "comm_unreadable",
            Self::CommsFull => "comms_full",
            Self::ProcessesFull => "processes_full",
            Self::GroupsFull => "groups_full",
            Self::Ops => "ops",
        }
    }
}
