//! Fields out of bytes that were read from a process. What lies outside the bytes reads as 0: layouts are checked when
//! they are made, and no offset is worth a panic.

/// Bytes of a structure, or of the part of it from `start` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'b> {
    pub(super) bytes: &'b [u8],
    /// Offset of the first byte in the structure.
    pub(super) start: u32,
}

impl<'b> Raw<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, start: 0 }
    }

    fn take<const N: usize>(&self, offset: u32) -> [u8; N] {
        let at = offset.checked_sub(self.start).map_or(usize::MAX, |at| at as usize);
        let found = at.checked_add(N).and_then(|end| self.bytes.get(at..end));
        found.and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    pub(super) fn u8(&self, offset: u32) -> u8 {
        u8::from_ne_bytes(self.take(offset))
    }

    pub(super) fn i32(&self, offset: u32) -> i32 {
        i32::from_ne_bytes(self.take(offset))
    }

    pub(super) fn u64(&self, offset: u32) -> u64 {
        u64::from_ne_bytes(self.take(offset))
    }

    pub(super) fn i64(&self, offset: u32) -> i64 {
        i64::from_ne_bytes(self.take(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_zero() {
        let bytes = [1u8, 0, 0, 0, 2, 0, 0, 0];
        let raw = Raw::new(&bytes);
        assert_eq!((raw.i32(0), raw.i32(4), raw.i32(5), raw.u64(u32::MAX)), (1, 2, 0, 0));
        let part = Raw { bytes: &bytes, start: 100 };
        assert_eq!((part.i32(104), part.i32(4)), (2, 0));
    }
}
