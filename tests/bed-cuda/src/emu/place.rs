//! Reading NCCL's structures: a [`Place`] is where one lies, a [`Field`] or [`Bits`] is what the layout says of it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Start of a structure of NCCL's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(*mut u8);

// SAFETY: a place is an address; NCCL shares these structures between host threads and device, and so do we.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// Plain values that a field may hold.
pub(super) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for usize {}
impl Plain for *mut u8 {}

#[derive(Debug)]
pub(super) struct Field<T> {
    pub(super) at: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Field<T> {}

impl<T> Field<T> {
    pub(super) const fn new(at: usize) -> Self {
        Field { at, kind: PhantomData }
    }

    /// The same kind of field further on: an element of an array.
    pub(super) const fn nth(self, index: usize) -> Self {
        Field::new(self.at + index * size_of::<T>())
    }
}

/// A bitfield: bytes of its storage, and where in them it lies from the lowest bit on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    pub(super) at: usize,
    pub(super) size: usize,
    pub(super) low: u32,
    pub(super) width: u32,
}

impl Place {
    /// # Safety
    /// A structure of NCCL's begins at `at` and stays for as long as the place is used; the fields asked for later are
    /// those of its type.
    pub(super) unsafe fn new(at: *mut u8) -> Place {
        Place(at)
    }

    pub(super) fn address(self) -> *mut u8 {
        self.0
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A structure inside this one, or the next one of an array.
    pub(super) fn plus(self, bytes: usize) -> Place {
        Place(self.0.wrapping_add(bytes))
    }

    pub(super) fn get<T: Plain>(self, field: Field<T>) -> T {
        // SAFETY: by the contract of `new` the field is there; NCCL may write it at any time, hence volatile.
        unsafe { self.0.add(field.at).cast::<T>().read_volatile() }
    }

    pub(super) fn set<T: Plain>(self, field: Field<T>, value: T) {
        // SAFETY: as in `get`; only fields that NCCL has the device write are set.
        unsafe { self.0.add(field.at).cast::<T>().write_volatile(value) }
    }

    /// The structure that a pointer field leads to.
    pub(super) fn follow(self, field: Field<*mut u8>) -> Place {
        Place(self.get(field))
    }

    pub(super) fn bits(self, bits: Bits) -> u64 {
        let mut bytes = [0u8; 8];
        // SAFETY: by the contract of `new` the storage is there, and it has at most eight bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.0.add(bits.at), bytes.as_mut_ptr(), bits.size) };
        (u64::from_le_bytes(bytes) >> bits.low) & (u64::MAX >> (64 - bits.width))
    }

    /// A step counter that NCCL's proxy or a peer moves.
    pub(super) fn counter(self) -> &'static AtomicU64 {
        // SAFETY: by the contract of `new` an aligned counter lies here, for as long as its connection.
        unsafe { &*self.0.cast::<AtomicU64>() }
    }

    pub(super) fn load(self, field: Field<i32>) -> i32 {
        // SAFETY: by the contract of `new` the field is there, and aligned.
        unsafe { &*self.0.add(field.at).cast::<std::sync::atomic::AtomicI32>() }.load(Ordering::Acquire)
    }

    pub(super) fn flag(self) -> &'static AtomicU32 {
        // SAFETY: by the contract of `new` an aligned flag lies here, for as long as its communicator.
        unsafe { &*self.0.cast::<AtomicU32>() }
    }
}
