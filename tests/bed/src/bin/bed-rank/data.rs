//! The data of an iteration: every rank can work out every other rank's input, and so the only right output.

use half::{bf16, f16};
use mycroft_bed::{Dtype, Op, RedOp, Step};

/// What determines the data of an iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    pub(crate) count: usize,
    pub(crate) ranks: usize,
    pub(crate) root: usize,
}

impl Plan {
    fn reduces(&self) -> bool {
        matches!(self.step.op, Op::AllReduce | Op::ReduceScatter | Op::Reduce)
    }

    /// Elements of a rank's input and output.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        match self.step.op {
            Op::AllGather => (self.count, self.count * self.ranks),
            Op::ReduceScatter => (self.count * self.ranks, self.count),
            _ => (self.count, self.count),
        }
    }

    /// Element `i` of a rank's input. Values are small, so that sums are exact in every type, and mixed, so that an
    /// element in a wrong place is noticed.
    fn input(&self, rank: usize, iteration: u64, i: usize) -> f64 {
        let mut x = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (rank as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ (iteration + 1).wrapping_mul(0xa076_1d64_78bd_642f);
        x ^= x >> 32;
        x = x.wrapping_mul(0xe703_7ed1_a0b4_28db);
        let small = (x >> 56) as u8;
        if self.reduces() && self.step.redop == RedOp::Prod {
            f64::from(1 + (small & 1))
        } else if self.step.dtype.unsigned() {
            f64::from(small & 7)
        } else {
            f64::from(small & 7) - 4.0
        }
    }

    pub(crate) fn fill(&self, buffer: &mut [u8], rank: usize, iteration: u64) {
        for (i, element) in buffer.chunks_exact_mut(self.step.dtype.size()).take(self.lengths().0).enumerate() {
            encode(self.step.dtype, self.input(rank, iteration, i), element);
        }
    }

    /// What element `i` of a rank's output has to be.
    fn expected(&self, rank: usize, iteration: u64, i: usize) -> f64 {
        let of = |rank, i| self.input(rank, iteration, i);
        match self.step.op {
            Op::AllGather => of(i / self.count, i % self.count),
            Op::Broadcast => of(self.root, i),
            Op::SendRecv => of((rank + self.ranks - 1) % self.ranks, i),
            Op::AllReduce | Op::Reduce => self.reduce((0..self.ranks).map(|r| of(r, i))),
            Op::ReduceScatter => self.reduce((0..self.ranks).map(|r| of(r, rank * self.count + i))),
        }
    }

    fn reduce(&self, inputs: impl Iterator<Item = f64>) -> f64 {
        match self.step.redop {
            RedOp::Sum => inputs.sum(),
            RedOp::Prod => inputs.product(),
            RedOp::Min => inputs.fold(f64::INFINITY, f64::min),
            RedOp::Max => inputs.fold(f64::NEG_INFINITY, f64::max),
            RedOp::PreMulSum => inputs.sum::<f64>() * 2.0,
            RedOp::Avg if self.step.dtype.float() => inputs.sum::<f64>() / self.ranks as f64,
            RedOp::Avg => (inputs.sum::<f64>() / self.ranks as f64).trunc(),
        }
    }

    /// How far a value may be off: an average over a number of ranks that is no power of two is rounded.
    fn tolerance(&self) -> f64 {
        if !self.reduces() || self.step.redop != RedOp::Avg || !self.step.dtype.float() || self.ranks.is_power_of_two()
        {
            return 0.0;
        }
        match self.step.dtype {
            Dtype::Bf16 => 0.1,
            Dtype::F16 => 0.02,
            _ => 1e-5,
        }
    }

    /// Wrong elements of a rank's output, and a description of the first.
    pub(crate) fn check(&self, buffer: &[u8], rank: usize, iteration: u64) -> (u64, Option<String>) {
        if self.step.op == Op::Reduce && rank != self.root {
            return (0, None);
        }
        let tolerance = self.tolerance();
        let (mut wrong, mut first) = (0, None);
        for (i, element) in buffer.chunks_exact(self.step.dtype.size()).take(self.lengths().1).enumerate() {
            let (got, want) = (decode(self.step.dtype, element), self.expected(rank, iteration, i));
            // a NaN is wrong, too
            let right = (got - want).abs() <= tolerance;
            if !right {
                wrong += 1;
                first.get_or_insert_with(|| format!("element {i} is {got}, not {want}"));
            }
        }
        (wrong, first)
    }
}

/// Writes a small number as an element.
pub(crate) fn encode(dtype: Dtype, value: f64, to: &mut [u8]) {
    match dtype {
        Dtype::I8 => to.copy_from_slice(&(value as i8).to_ne_bytes()),
        Dtype::U8 => to.copy_from_slice(&(value as u8).to_ne_bytes()),
        Dtype::I32 => to.copy_from_slice(&(value as i32).to_ne_bytes()),
        Dtype::U32 => to.copy_from_slice(&(value as u32).to_ne_bytes()),
        Dtype::I64 => to.copy_from_slice(&(value as i64).to_ne_bytes()),
        Dtype::U64 => to.copy_from_slice(&(value as u64).to_ne_bytes()),
        Dtype::F16 => to.copy_from_slice(&f16::from_f64(value).to_ne_bytes()),
        Dtype::F32 => to.copy_from_slice(&(value as f32).to_ne_bytes()),
        Dtype::F64 => to.copy_from_slice(&value.to_ne_bytes()),
        Dtype::Bf16 => to.copy_from_slice(&bf16::from_f64(value).to_ne_bytes()),
    }
}

fn decode(dtype: Dtype, from: &[u8]) -> f64 {
    fn bytes<const N: usize>(from: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(from);
        out
    }
    match dtype {
        Dtype::I8 => i8::from_ne_bytes(bytes(from)).into(),
        Dtype::U8 => u8::from_ne_bytes(bytes(from)).into(),
        Dtype::I32 => i32::from_ne_bytes(bytes(from)).into(),
        Dtype::U32 => u32::from_ne_bytes(bytes(from)).into(),
        Dtype::I64 => i64::from_ne_bytes(bytes(from)) as f64,
        Dtype::U64 => u64::from_ne_bytes(bytes(from)) as f64,
        Dtype::F16 => f16::from_ne_bytes(bytes(from)).into(),
        Dtype::F32 => f32::from_ne_bytes(bytes(from)).into(),
        Dtype::F64 => f64::from_ne_bytes(bytes(from)),
        Dtype::Bf16 => bf16::from_ne_bytes(bytes(from)).into(),
    }
}
