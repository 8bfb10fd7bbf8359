//! Public incidents, each with the class of scenario that stands for it or the reason why its signals are not seen.

/// What becomes of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// By this class of scenario.
    Scenario(&'static str),
    /// Its signals are not among what is traced.
    Unseen(&'static str),
}

use Covered::{Scenario, Unseen};

/// An incident as it is listed among the research of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    pub id: &'static str,
    pub what: &'static str,
    pub covered: Covered,
}

const fn row(id: &'static str, what: &'static str, covered: Covered) -> Incident {
    Incident { id, what, covered }
}

/// All of them.
pub const INCIDENTS: &[Incident] = &[
    row("A01", "one rank ran one micro-batch fewer", Scenario("one-call-fewer")),
    row("A02", "a tensor of 14 elements on one stage, 15 on the others", Scenario("other-count")),
    row("A03", "the number of gathers depends on the data", Scenario("one-call-fewer")),
    row("A04", "a rank without work leaves out the operation of each step", Scenario("count-drifts")),
    row("A05", "uneven batches: a rank leaves the loop", Scenario("not-entered-busy")),
    row("A06", "a collective called by rank 0 alone", Scenario("other-function")),
    row("A07", "a rank writes a checkpoint for longer than the timeout", Scenario("one-writer")),
    row("A08", "rank 0 prepares data for half an hour before it joins", Scenario("init-stuck")),
    row("A09", "one process is killed", Scenario("dies-killed")),
    row("A10", "one rank's init fails for want of memory", Scenario("init-stuck")),
    row("A11", "two communicators launched in opposite order", Scenario("order-swapped")),
    row("A12", "a driver call that waits for an idle GPU", Scenario("not-entered-busy")),
    row(
        "A13",
        "abort of one communicator waits for another's kernel",
        Unseen(
            "calls of ncclCommAbort are traced at their begin only, so one that does not return is not told from one that did",
        ),
    ),
    row("A14", "a receive of more bytes than are sent", Scenario("wrong-size")),
    row(
        "A15",
        "one rank records a CUDA graph, the other runs it",
        Unseen("whether a stream is being captured is the CUDA runtime's; the recorded call looks like any other"),
    ),
    row("A16", "proxy slots leak; the progress thread sleeps", Scenario("not-entered-busy")),
    row("A17", "a failed post becomes a hang", Scenario("nic-down")),
    row("A18", "a stranger's connection blocks the service thread", Scenario("init-stuck")),
    row(
        "A19",
        "ranks choose different algorithms",
        Unseen(
            "the plan of an operation is seen per transfer, but the simulation moves all ranks by one plan; it is left to the test bed",
        ),
    ),
    row("A20", "the first write over a wrong route is lost", Scenario("link-cut-both-ways")),
    row("A21", "a link that flaps", Scenario("nic-down")),
    row("A22", "packets larger than the port takes", Scenario("link-cut")),
    row("A23", "a firewall drops the bootstrap's port", Scenario("init-stuck")),
    row("A24", "a rank gives its loopback address", Scenario("init-stuck")),
    row("A25", "P2P through an IOMMU moves nothing", Scenario("gpu-stands-still-nvlink")),
    row("A26", "two GPUs share one network card", Scenario("slow-nic")),
    row("A27", "one side without GPUDirect", Scenario("slow-link")),
    row(
        "A28",
        "no P2P, a slower transport without a word",
        Unseen(
            "nothing is slower than it was before: the job never ran faster, and what a host could do is not among the events",
        ),
    ),
    row("A29", "one rank fails for want of shared memory", Scenario("init-stuck")),
    row("A30", "an NVLink error reported by the driver", Unseen("the kernel log (Xid) is not read")),
    row(
        "A31",
        "multicast bind fails after the fabric manager was restarted",
        Unseen("the error is in NCCL's log and in the return value of init, without its reason"),
    ),
    row("A32", "a rank is 200 ms late in each step", Scenario("pcie-downgrade")),
    row("A33", "a living process does not enter", Scenario("not-entered-asleep")),
    row("A34", "all launched, none completed", Scenario("link-cut")),
    row("A35", "the job is over, two ranks do not come back from teardown", Scenario("teardown-stuck")),
    row(
        "A36",
        "two ranks on one GPU",
        Unseen("refused by NCCL at init unless it is allowed; the simulation gives every rank a GPU of its own"),
    ),
    row("A37", "two ranks of different groups fail or hang together", Scenario("two-ranks-absent")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::scenario::Class;

    #[test]
    fn all_rows_are_there_and_their_scenarios_exist() {
        for (i, row) in INCIDENTS.iter().enumerate() {
            assert_eq!(row.id, format!("A{:02}", i + 1));
            if let Scenario(name) = row.covered {
                assert!(Class::named(name).is_some(), "{}: no class {name}", row.id);
            }
        }
        assert_eq!(INCIDENTS.len(), 37);
    }
}
