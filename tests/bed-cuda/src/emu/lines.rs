//! The wire formats of LL and LL128: data in lines that carry flags, which tell the receiver that a line is there.
//!
//! The flag is the number of the step, plus one. Proxies look at flags and sizes only: in which order data lie in the
//! lines is between sender and receiver, and here simpler than in NCCL for LL128.

use std::sync::atomic::{AtomicU64, Ordering};

use super::func::Proto;

/// LL: two halves of a line, each with four bytes of data and a flag.
const LL_DATA: usize = 8;
const LL_LINE: usize = 16;
/// LL128: a line's last word is the flag; a warp of threads writes sixteen lines at once.
const LL128_DATA: usize = 120;
const LL128_LINE: usize = 128;
const LL128_GROUP: usize = 16;

/// Lines for so many bytes of data.
fn lines(proto: Proto, bytes: usize) -> usize {
    match proto {
        Proto::Ll => bytes.div_ceil(LL_DATA),
        Proto::Ll128 => bytes.div_ceil(LL128_GROUP * LL128_DATA) * LL128_GROUP,
        Proto::Simple => 0,
    }
}

/// Bytes that go over the network for so many bytes of data.
pub(super) fn wire_bytes(proto: Proto, bytes: usize) -> usize {
    match proto {
        Proto::Ll => lines(proto, bytes) * LL_LINE,
        Proto::Ll128 => lines(proto, bytes) * LL128_LINE,
        Proto::Simple => bytes,
    }
}

/// # Safety
/// `slot` is aligned and holds more than `index` words, which this process accesses atomically only.
unsafe fn word<'a>(slot: *mut u8, index: usize) -> &'a AtomicU64 {
    // SAFETY: by this function's contract.
    unsafe { &*slot.cast::<AtomicU64>().add(index) }
}

/// LL's flags have 32 bits. NCCL rewrites all of them before they wrap, after some 2^31 steps: a test has fewer.
fn half(four: &[u8], step: u64) -> u64 {
    let mut data = [0; 4];
    data[..four.len()].copy_from_slice(four);
    u64::from((step + 1) as u32) << 32 | u64::from(u32::from_le_bytes(data))
}

/// # Safety
/// `slot` is aligned and has room for the wire format of `data`.
pub(super) unsafe fn pack(proto: Proto, slot: *mut u8, step: u64, data: &[u8]) {
    // SAFETY: by this function's contract.
    let at = |index| unsafe { word(slot, index) };
    if proto == Proto::Ll {
        for (line, data) in data.chunks(LL_DATA).enumerate() {
            let (low, high) = data.split_at(data.len().min(4));
            at(2 * line).store(half(low, step), Ordering::Release);
            at(2 * line + 1).store(half(high, step), Ordering::Release);
        }
        return;
    }
    let words = LL128_LINE / 8;
    for line in 0..lines(proto, data.len()) {
        let data = data.get(line * LL128_DATA..).unwrap_or_default();
        for (nth, eight) in data.chunks(8).take(words - 1).enumerate() {
            let mut bytes = [0; 8];
            bytes[..eight.len()].copy_from_slice(eight);
            at(line * words + nth).store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        at(line * words + words - 1).store(step + 1, Ordering::Release);
    }
}

/// Whether all flags for `bytes` of data are there; `seen` counts the lines that were.
///
/// # Safety
/// `slot` is aligned and has room for the wire format.
pub(super) unsafe fn arrived(proto: Proto, slot: *mut u8, step: u64, bytes: usize, seen: &mut usize) -> bool {
    // SAFETY: by this function's contract.
    let load = |index| unsafe { word(slot, index) }.load(Ordering::Acquire);
    let there = |line: usize| match proto {
        Proto::Ll => (0..2).all(|nth| load(2 * line + nth) >> 32 == u64::from((step + 1) as u32)),
        _ => load(line * (LL128_LINE / 8) + LL128_LINE / 8 - 1) == step + 1,
    };
    let all = lines(proto, bytes);
    while *seen < all && there(*seen) {
        *seen += 1;
    }
    *seen == all
}

/// # Safety
/// As for [`arrived`], which was true.
pub(super) unsafe fn unpack(proto: Proto, slot: *mut u8, bytes: usize) -> Vec<u8> {
    // SAFETY: by this function's contract.
    let load = |index| unsafe { word(slot, index) }.load(Ordering::Relaxed).to_le_bytes();
    let mut data = Vec::with_capacity(bytes + LL128_DATA);
    for line in 0..lines(proto, bytes) {
        if proto == Proto::Ll {
            (0..2).for_each(|nth| data.extend_from_slice(&load(2 * line + nth)[..4]));
        } else {
            (0..LL128_DATA / 8).for_each(|nth| data.extend_from_slice(&load(line * (LL128_LINE / 8) + nth)));
        }
    }
    data.truncate(bytes);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for proto in [Proto::Ll, Proto::Ll128] {
            for len in [0, 1, 4, 5, 8, 119, 120, 1919, 1920, 1921, 5000] {
                let data: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
                let mut slot = vec![0u64; wire_bytes(proto, len) / 8];
                let at = slot.as_mut_ptr().cast();
                // SAFETY: the slot has room for the wire format.
                unsafe {
                    assert_eq!(arrived(proto, at, 7, len, &mut 0), len == 0);
                    pack(proto, at, 7, &data);
                    assert!(arrived(proto, at, 7, len, &mut 0));
                    assert_eq!(arrived(proto, at, 15, len, &mut 0), len == 0, "a later step, the same slot");
                    assert_eq!(unpack(proto, at, len), data);
                }
            }
        }
    }

    #[test]
    fn sizes_on_the_wire() {
        assert_eq!([0, 1, 8, 9].map(|n| wire_bytes(Proto::Ll, n)), [0, 16, 16, 32]);
        assert_eq!([0, 1, 1920, 1921].map(|n| wire_bytes(Proto::Ll128, n)), [0, 2048, 2048, 4096]);
    }
}
