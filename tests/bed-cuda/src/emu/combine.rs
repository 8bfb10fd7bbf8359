//! Arithmetic on elements: what a reduction does with two inputs, with the local input before, and with the sum after.

use half::{bf16, f16};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elem {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

impl Elem {
    /// In the order of `ncclDataType_t`; the eight-bit floats that follow are not emulated.
    pub(super) fn from_number(number: usize) -> Option<Elem> {
        use Elem::*;
        [I8, U8, I32, U32, I64, U64, F16, F32, F64, Bf16].get(number).copied()
    }

    pub(super) fn size(self) -> usize {
        match self {
            Elem::I8 | Elem::U8 => 1,
            Elem::F16 | Elem::Bf16 => 2,
            Elem::I32 | Elem::U32 | Elem::F32 => 4,
            Elem::I64 | Elem::U64 | Elem::F64 => 8,
        }
    }

    fn signed(self) -> bool {
        matches!(self, Elem::I8 | Elem::I32 | Elem::I64)
    }

    /// The argument with which [`Kind::MinMax`] finds the greatest or the least.
    fn order(self, greatest: bool) -> u64 {
        if matches!(self, Elem::F16 | Elem::F32 | Elem::F64 | Elem::Bf16) {
            return u64::from(greatest);
        }
        let mask = if self.signed() { 1 << (8 * self.size() - 1) } else { 0 };
        if greatest { !mask } else { mask }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sum,
    Prod,
    /// Minimum of the bits xored with the argument (integers); for floats its lowest bit says "maximum".
    MinMax,
    PreMulSum,
    SumPostDiv,
    /// Of their own before 2.19.
    Max,
    Min,
}

impl Kind {
    /// In the order of `ncclDevRedOp_t`.
    pub(super) const ALL: [Kind; 5] = [Kind::Sum, Kind::Prod, Kind::MinMax, Kind::PreMulSum, Kind::SumPostDiv];
    pub(super) const OF_2_18: [Kind; 6] =
        [Kind::Sum, Kind::Prod, Kind::Max, Kind::Min, Kind::PreMulSum, Kind::SumPostDiv];
}

/// A reduction with its argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub(super) elem: Elem,
    kind: Kind,
    arg: u64,
    signed: bool,
}

impl Reduction {
    /// No arithmetic: bytes are moved.
    pub(super) const COPY: Reduction = Reduction { elem: Elem::I8, kind: Kind::Sum, arg: 0, signed: false };

    pub(super) fn new(elem: Elem, kind: Kind, arg: u64, signed_in_arg: bool) -> Reduction {
        let (kind, arg, signed) = match kind {
            Kind::SumPostDiv if signed_in_arg => (kind, arg >> 1, arg & 1 == 1),
            Kind::Max | Kind::Min => (Kind::MinMax, elem.order(kind == Kind::Max), elem.signed()),
            _ => (kind, arg, elem.signed()),
        };
        Reduction { elem, kind, arg, signed }
    }

    pub(super) fn has_pre(&self) -> bool {
        self.kind == Kind::PreMulSum
    }

    pub(super) fn has_post(&self) -> bool {
        self.kind == Kind::SumPostDiv
    }

    /// `to[i] = a[i] op b[i]`.
    ///
    /// # Safety
    /// All three are valid for `n` elements; `to` may be one of the others.
    pub(super) unsafe fn combine(&self, to: *mut u8, a: *const u8, b: *const u8, n: usize) {
        // SAFETY: by this function's contract.
        unsafe {
            match self.elem {
                Elem::I8 | Elem::U8 => self.two::<u8>(to, a, b, n),
                Elem::I32 | Elem::U32 => self.two::<u32>(to, a, b, n),
                Elem::I64 | Elem::U64 => self.two::<u64>(to, a, b, n),
                Elem::F16 => self.two::<f16>(to, a, b, n),
                Elem::F32 => self.two::<f32>(to, a, b, n),
                Elem::F64 => self.two::<f64>(to, a, b, n),
                Elem::Bf16 => self.two::<bf16>(to, a, b, n),
            }
        }
    }

    /// What is done to the local input before it is used.
    ///
    /// # Safety
    /// Both are valid for `n` elements; they may be the same.
    pub(super) unsafe fn pre(&self, to: *mut u8, from: *const u8, n: usize) {
        // SAFETY: by this function's contract.
        unsafe {
            match self.elem {
                Elem::I8 | Elem::U8 => each(to, from, n, |x: u8| x.times(u8::from_arg(self.arg))),
                Elem::I32 | Elem::U32 => each(to, from, n, |x: u32| x.times(u32::from_arg(self.arg))),
                Elem::I64 | Elem::U64 => each(to, from, n, |x: u64| x.times(u64::from_arg(self.arg))),
                Elem::F16 => each(to, from, n, |x: f16| x.times(f16::from_arg(self.arg))),
                Elem::F32 => each(to, from, n, |x: f32| x.times(f32::from_arg(self.arg))),
                Elem::F64 => each(to, from, n, |x: f64| x.times(f64::from_arg(self.arg))),
                Elem::Bf16 => each(to, from, n, |x: bf16| x.times(bf16::from_arg(self.arg))),
            }
        }
    }

    /// What is done to the final sum: integers are divided, towards zero.
    ///
    /// # Safety
    /// `at` is valid for `n` elements.
    pub(super) unsafe fn post(&self, at: *mut u8, n: usize) {
        let (by, signed) = (self.arg.max(1), self.signed);
        // SAFETY: by this function's contract.
        unsafe {
            match self.elem.size() {
                1 if signed => each(at, at, n, |x: i8| (i64::from(x) / by as i64) as i8),
                1 => each(at, at, n, |x: u8| (u64::from(x) / by) as u8),
                4 if signed => each(at, at, n, |x: i32| (i64::from(x) / by as i64) as i32),
                4 => each(at, at, n, |x: u32| (u64::from(x) / by) as u32),
                8 if signed => each(at, at, n, |x: i64| x / by as i64),
                8 => each(at, at, n, |x: u64| x / by),
                _ => super::unsupported("average of a float by division"),
            }
        }
    }

    /// # Safety
    /// As for [`Reduction::combine`].
    unsafe fn two<T: Number>(&self, to: *mut u8, a: *const u8, b: *const u8, n: usize) {
        let (to, a, b) = (to.cast::<T>(), a.cast::<T>(), b.cast::<T>());
        let arg = self.arg;
        // one loop per operation: the branch stays outside
        macro_rules! run {
            ($f:expr) => {
                for i in 0..n {
                    // SAFETY: by this function's contract; user buffers need not be aligned.
                    unsafe { to.add(i).write_unaligned($f(a.add(i).read_unaligned(), b.add(i).read_unaligned())) }
                }
            };
        }
        match self.kind {
            Kind::Sum | Kind::PreMulSum | Kind::SumPostDiv => run!(T::plus),
            Kind::Prod => run!(T::times),
            // `new` leaves only the first of the three
            Kind::MinMax | Kind::Max | Kind::Min => run!(|x: T, y: T| x.least(y, arg)),
        }
    }
}

/// # Safety
/// Both are valid for `n` elements of `T`; they may be the same.
unsafe fn each<T: Copy>(to: *mut u8, from: *const u8, n: usize, f: impl Fn(T) -> T) {
    let (to, from) = (to.cast::<T>(), from.cast::<T>());
    for i in 0..n {
        // SAFETY: by this function's contract; user buffers need not be aligned.
        unsafe { to.add(i).write_unaligned(f(from.add(i).read_unaligned())) }
    }
}

trait Number: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self, arg: u64) -> Self;
    fn from_arg(arg: u64) -> Self;
}

macro_rules! integer {
    ($($t:ty),*) => { $(impl Number for $t {
        fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
        fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
        fn least(self, other: Self, arg: u64) -> Self {
            let mask = arg as $t;
            if (self ^ mask) < (other ^ mask) { self } else { other }
        }
        fn from_arg(arg: u64) -> Self { arg as $t }
    })* };
}
integer!(u8, u32, u64);

macro_rules! float {
    ($($t:ty, $bits:ty);*) => { $(impl Number for $t {
        fn plus(self, other: Self) -> Self { self + other }
        fn times(self, other: Self) -> Self { self * other }
        fn least(self, other: Self, arg: u64) -> Self {
            if arg & 1 == 0 { self.min(other) } else { self.max(other) }
        }
        fn from_arg(arg: u64) -> Self { <$t>::from_bits(arg as $bits) }
    })* };
}
float!(f32, u32; f64, u64; f16, u16; bf16, u16);
