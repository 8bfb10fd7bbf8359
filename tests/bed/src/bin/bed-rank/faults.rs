//! Faults that a rank applies to itself, at exactly the iteration it was told.

use std::time::Duration;

use mycroft_bed::control::{Control, Slot};
use mycroft_bed::fault::kind;
use mycroft_bed::{Dtype, NOW, Op};

use crate::ffi::Call;

/// The faults of one rank: which of them have struck.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    struck: Vec<usize>,
}

impl Faults {
    /// Whether the fault strikes in this iteration.
    fn due(&mut self, index: usize, slot: Slot, iteration: u64) -> bool {
        let now = slot.at == NOW && !self.struck.contains(&index);
        let due = now || slot.at == iteration || (slot.kind == kind::SLOW && iteration >= slot.at);
        if due && now {
            self.struck.push(index);
        }
        due
    }

    /// Applies what is due before the call: sleeps, or changes the call.
    pub(crate) fn apply(
        &mut self,
        control: &Control,
        rank: usize,
        iteration: u64,
        op: &mut Op,
        call: &mut Call,
    ) -> bool {
        let mut changed = false;
        for (index, slot) in control.faults(rank).enumerate() {
            if !self.due(index, slot, iteration) {
                continue;
            }
            if slot.kind != kind::SLOW {
                println!("rank {rank}: fault {} at iteration {iteration}", slot.kind);
            }
            changed |= slot.kind >= kind::DIFFERENT_COLLECTIVE && slot.kind <= kind::DIFFERENT_ROOT;
            match slot.kind {
                kind::NEVER_ENTER => sleep_for_good(),
                kind::ENTER_LATE | kind::SLOW => std::thread::sleep(Duration::from_nanos(slot.arg)),
                kind::DIFFERENT_COLLECTIVE => {
                    *op = if *op == Op::AllGather { Op::AllReduce } else { Op::AllGather };
                }
                kind::DIFFERENT_COUNT => call.count = call.count * 2 + 64,
                kind::DIFFERENT_TYPE => {
                    call.dtype = if call.dtype.size() == 8 { Dtype::F32 } else { Dtype::F64 };
                }
                kind::DIFFERENT_ROOT => call.root = (call.root + 1) % call.ranks,
                kind::DIE => signal_self(libc::SIGKILL),
                kind::STOP => signal_self(libc::SIGSTOP),
                _ => {}
            }
        }
        changed
    }
}

/// Whether a fault of this kind, which the caller applies by itself, strikes here.
pub(crate) fn strikes(control: &Control, rank: usize, kind: u64, at: u64) -> bool {
    control.faults(rank).any(|slot| slot.kind == kind && slot.at == at)
}

pub(crate) fn sleep_for_good() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn signal_self(signal: i32) {
    // SAFETY: both calls take plain numbers.
    let rc = unsafe { libc::kill(libc::getpid(), signal) };
    assert!(rc == 0, "signal {signal}: {}", std::io::Error::last_os_error());
}
