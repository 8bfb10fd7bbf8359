//! Turning a device function's number back into what it does.
//!
//! NCCL numbers its device functions through a table of rows (one per collective, operation, type, algorithm and
//! protocol), which the library exports as data. The order of the rows is not in any debug information, so it is here.

use std::collections::HashMap;

use super::combine::{Elem, Kind};
use crate::symbols;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coll {
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllReduce,
    SendRecv,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    pub(super) coll: Coll,
    pub(super) kind: Kind,
    pub(super) elem: Elem,
    /// Ring algorithm and Simple protocol (send/recv has only this one).
    pub(super) emulated: bool,
}

/// What differs in the order of rows from a release on.
struct Rows {
    from: u32,
    types: usize,
    /// Algorithms of AllGather and of ReduceScatter; ring is the first.
    gather_algos: usize,
    /// Rows between Broadcast and AllReduce (AllGatherV).
    gap: usize,
    /// Whether the average of integers carries "signed" in its argument's lowest bit.
    signed_in_arg: bool,
}

const ROWS: [Rows; 4] = [
    Rows { from: 22100, types: 10, gather_algos: 3, gap: 0, signed_in_arg: false },
    Rows { from: 22300, types: 10, gather_algos: 4, gap: 0, signed_in_arg: false },
    Rows { from: 22400, types: 12, gather_algos: 4, gap: 0, signed_in_arg: true },
    Rows { from: 22900, types: 12, gather_algos: 4, gap: 3, signed_in_arg: true },
];

const PROTOCOLS: usize = 3;
const SIMPLE: usize = 2;
const ALL_REDUCE_ALGOS: usize = 6;

pub(super) struct Functions {
    by_number: HashMap<i32, Function>,
    pub(super) signed_in_arg: bool,
}

impl Functions {
    pub(super) fn read(version: u32) -> Result<Functions, String> {
        let rows = ROWS.iter().rev().find(|r| r.from <= version);
        let rows = rows.ok_or_else(|| format!("NCCL {version} is older than what the bed knows"))?;
        let table = symbols::nccl().and_then(|s| s.variable("ncclDevFuncRowToId"));
        let (at, size) = table.ok_or("ncclDevFuncRowToId not found in libnccl")?;
        // SAFETY: the symbol is an array of `int` of this size, constant data of the mapped library.
        let numbers = unsafe { std::slice::from_raw_parts(at as *const i32, size / 4) };
        let all = rows.enumerate();
        // the table ends with one -1
        if numbers.len() != all.len() + 1 {
            return Err(format!("NCCL {version}: {} device functions, expected {}", numbers.len() - 1, all.len()));
        }
        let mut by_number = HashMap::new();
        for (number, function) in numbers.iter().zip(all) {
            // signed and unsigned integers share functions: the first row stands for both
            if let (true, Some(function)) = (*number >= 0, function) {
                by_number.entry(*number).or_insert(function);
            }
        }
        Ok(Functions { by_number, signed_in_arg: rows.signed_in_arg })
    }

    pub(super) fn get(&self, number: i32) -> Function {
        match self.by_number.get(&number) {
            Some(function) => *function,
            None => super::unsupported(&format!("device function {number} is unknown")),
        }
    }
}

impl Rows {
    /// Every row in NCCL's order; `None` for those of types and collectives that are not emulated.
    fn enumerate(&self) -> Vec<Option<Function>> {
        let plain = |coll, emulated| Some(Function { coll, kind: Kind::Sum, elem: Elem::I8, emulated });
        let mut rows = vec![plain(Coll::SendRecv, true)];
        let mut copies = |coll, algos: usize| {
            for algo in 0..algos {
                rows.extend((0..PROTOCOLS).map(|proto| plain(coll, algo == 0 && proto == SIMPLE)));
            }
        };
        copies(Coll::AllGather, self.gather_algos);
        copies(Coll::Broadcast, 1);
        rows.extend(std::iter::repeat_n(None, self.gap));
        let reductions =
            [(Coll::AllReduce, ALL_REDUCE_ALGOS, 1), (Coll::Reduce, 1, 0), (Coll::ReduceScatter, self.gather_algos, 0)];
        for (coll, algos, ring) in reductions {
            for kind in Kind::ALL {
                for elem in (0..self.types).map(Elem::from_number) {
                    for algo in 0..algos {
                        rows.extend((0..PROTOCOLS).map(|proto| {
                            let emulated = algo == ring && proto == SIMPLE;
                            elem.map(|elem| Function { coll, kind, elem, emulated })
                        }));
                    }
                }
            }
        }
        rows
    }
}
