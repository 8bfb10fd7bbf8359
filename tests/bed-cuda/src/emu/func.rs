//! Turning a device function's number back into what it does.
//!
//! NCCL numbers its device functions through a table of rows (one per collective, operation, type, algorithm and
//! protocol), which the library exports as data. The order of the rows is not in any debug information, so it is here.
//! Before 2.19 there was no table: the number is worked out from the same five.

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algo {
    Tree,
    Ring,
    /// Those that are not emulated: CollNet, NVLS, PAT.
    Other,
}

/// In NCCL's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proto {
    Ll,
    Ll128,
    Simple,
}

impl Proto {
    const ALL: [Proto; 3] = [Proto::Ll, Proto::Ll128, Proto::Simple];
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    pub(super) coll: Coll,
    pub(super) kind: Kind,
    pub(super) elem: Elem,
    pub(super) algo: Algo,
    pub(super) proto: Proto,
}

impl Function {
    pub(super) fn emulated(&self) -> bool {
        self.algo == Algo::Ring || (self.algo == Algo::Tree && self.coll == Coll::AllReduce)
    }
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

/// Releases whose numbers are worked out, as far as known here.
const FORMULA: std::ops::Range<u32> = 21800..21900;

const ALL_REDUCE_ALGOS: usize = 6;

pub(super) struct Functions {
    by_number: HashMap<i32, Function>,
    pub(super) signed_in_arg: bool,
}

impl Functions {
    pub(super) fn read(version: u32) -> Result<Functions, String> {
        if FORMULA.contains(&version) {
            return Ok(Functions { by_number: by_formula(), signed_in_arg: false });
        }
        let rows = ROWS.iter().rev().find(|r| r.from <= version);
        let rows = rows.ok_or_else(|| format!("NCCL {version} is no release that the bed knows"))?;
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

/// A function that moves bytes, or one of an algorithm that does not depend on the type.
fn plain(coll: Coll, algo: Algo, proto: Proto) -> Function {
    Function { coll, kind: Kind::Sum, elem: Elem::I8, algo, proto }
}

impl Rows {
    /// Every row in NCCL's order; `None` for those of types and collectives that are not emulated.
    fn enumerate(&self) -> Vec<Option<Function>> {
        let mut rows = vec![Some(plain(Coll::SendRecv, Algo::Ring, Proto::Simple))];
        let mut copies = |coll, algos: usize| {
            for algo in 0..algos {
                let algo = if algo == 0 { Algo::Ring } else { Algo::Other };
                rows.extend(Proto::ALL.map(|proto| Some(plain(coll, algo, proto))));
            }
        };
        copies(Coll::AllGather, self.gather_algos);
        copies(Coll::Broadcast, 1);
        rows.extend(std::iter::repeat_n(None, self.gap));
        let gather: Vec<Algo> = (0..self.gather_algos).map(|a| if a == 0 { Algo::Ring } else { Algo::Other }).collect();
        let all_reduce: Vec<Algo> = (0..ALL_REDUCE_ALGOS).map(algorithm).collect();
        for (coll, algos) in
            [(Coll::AllReduce, &all_reduce), (Coll::Reduce, &vec![Algo::Ring]), (Coll::ReduceScatter, &gather)]
        {
            for kind in Kind::ALL {
                for elem in (0..self.types).map(Elem::from_number) {
                    for algo in algos {
                        let row = |proto| elem.map(|elem| Function { coll, kind, elem, algo: *algo, proto });
                        rows.extend(Proto::ALL.map(row));
                    }
                }
            }
        }
        rows
    }
}

/// By NCCL's number.
fn algorithm(number: usize) -> Algo {
    [Algo::Tree, Algo::Ring].get(number).copied().unwrap_or(Algo::Other)
}

/// NCCL 2.18 (`collectives.h`): send/recv, one function per type for a lone rank, then all the rest.
fn by_formula() -> HashMap<i32, Function> {
    const TYPES: usize = 10;
    const ALGOS: usize = 6;
    let mut by_number = HashMap::from([(0, plain(Coll::SendRecv, Algo::Ring, Proto::Simple))]);
    let mut number = 1 + TYPES as i32;
    for coll in [Coll::Broadcast, Coll::Reduce, Coll::AllGather, Coll::ReduceScatter, Coll::AllReduce] {
        for kind in Kind::OF_2_18 {
            for elem in (0..TYPES).filter_map(Elem::from_number) {
                for algo in (0..ALGOS).map(algorithm) {
                    for proto in Proto::ALL {
                        by_number.insert(number, Function { coll, kind, elem, algo, proto });
                        number += 1;
                    }
                }
            }
        }
    }
    by_number
}
