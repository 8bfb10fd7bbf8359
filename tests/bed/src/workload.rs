//! What the ranks of a job do: the collective, the type of its elements, the reduction.

use std::fmt;
use std::str::FromStr;

macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$vdoc:meta])* $variant:ident = $name:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$vdoc])* $variant),* }

        impl $type {
            pub const ALL: &[$type] = &[$($type::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name),* }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|v| v.name().eq_ignore_ascii_case(s));
                found.copied().ok_or_else(|| {
                    let all: Vec<_> = Self::ALL.iter().map(|v| v.name()).collect();
                    format!("{s} is none of {}", all.join(", "))
                })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// A collective; `SendRecv` sends to the next rank and receives from the previous one.
    Op {
        AllReduce = "allreduce",
        AllGather = "allgather",
        ReduceScatter = "reducescatter",
        Broadcast = "broadcast",
        Reduce = "reduce",
        SendRecv = "sendrecv",
    }
}

named! {
    /// Element types, in the order of `ncclDataType_t`.
    Dtype {
        I8 = "int8",
        U8 = "uint8",
        I32 = "int32",
        U32 = "uint32",
        I64 = "int64",
        U64 = "uint64",
        F16 = "float16",
        F32 = "float32",
        F64 = "float64",
        Bf16 = "bfloat16",
    }
}

named! {
    /// Reductions; `PreMulSum` multiplies every input by two.
    RedOp {
        Sum = "sum",
        Prod = "prod",
        Max = "max",
        Min = "min",
        Avg = "avg",
        PreMulSum = "premulsum",
    }
}

named! {
    /// NCCL's protocols: `Simple` by step counters, the others by flags in lines of 16 or 128 bytes.
    Protocol {
        Simple = "simple",
        Ll = "ll",
        Ll128 = "ll128",
    }
}

named! {
    /// NCCL's algorithms; `Tree` is there for `AllReduce` only.
    Algorithm {
        Ring = "ring",
        Tree = "tree",
    }
}

impl Dtype {
    pub fn size(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 => 8,
        }
    }

    pub fn float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::F32 | Dtype::F64 | Dtype::Bf16)
    }

    pub fn unsigned(self) -> bool {
        matches!(self, Dtype::U8 | Dtype::U32 | Dtype::U64)
    }
}

/// One collective of a job's cycle; written `allreduce:float32:sum`, where the type and the reduction may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub op: Op,
    pub dtype: Dtype,
    pub redop: RedOp,
}

impl Default for Step {
    fn default() -> Self {
        Step { op: Op::AllReduce, dtype: Dtype::F32, redop: RedOp::Sum }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut words = s.splitn(3, ':');
        let mut step = Step { op: words.next().unwrap_or_default().parse()?, ..Step::default() };
        if let Some(dtype) = words.next() {
            step.dtype = dtype.parse()?;
        }
        if let Some(redop) = words.next() {
            step.redop = redop.parse()?;
        }
        Ok(step)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.op, self.dtype, self.redop)
    }
}
