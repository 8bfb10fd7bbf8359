//! Sends and receives between two ranks of a communicator, which NCCL matches in the order of the calls.

use std::collections::VecDeque;

use super::{ids::Nanos, rhythm::Patience};

/// Calls of one end that are remembered.
const KEPT: usize = 64;
/// From how many messages on their waits are a habit.
const KNOWN_FROM: u64 = 8;

/// One end's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub ts: Nanos,
    /// Bytes of the whole message.
    pub bytes: u64,
}

/// One end's calls, by number.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// Calls so far.
    pub count: u64,
    kept: VecDeque<Call>,
}

impl Calls {
    fn push(&mut self, call: Call) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(call);
        self.count += 1;
    }

    /// The call of this number; `None` if it has not come or is forgotten.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Call> {
        let first = self.count - self.kept.len() as u64;
        self.kept.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    #[must_use]
    pub fn newest(&self) -> Option<&Call> {
        self.kept.back()
    }
}

/// What one rank sends to another.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    pub sends: Calls,
    pub recvs: Calls,
    /// The first message whose ends did not agree on its size, by number: bytes sent and bytes expected.
    pub mismatch: Option<(u64, Call, Call)>,
    /// Messages whose both ends have come.
    pub met: u64,
    /// The longest that one end of those waited for the other.
    pub longest: Nanos,
}

impl Pair {
    pub fn send(&mut self, call: Call) {
        let number = self.sends.count;
        self.sends.push(call);
        self.compare(number);
    }

    pub fn recv(&mut self, call: Call) {
        let number = self.recvs.count;
        self.recvs.push(call);
        self.compare(number);
    }

    fn compare(&mut self, number: u64) {
        if let (Some(sent), Some(expected)) = (self.sends.get(number), self.recvs.get(number)) {
            self.met += 1;
            self.longest = self.longest.max(sent.ts.abs_diff(expected.ts));
            if sent.bytes != expected.bytes && self.mismatch.is_none() {
                self.mismatch = Some((number, *sent, *expected));
            }
        }
    }

    /// How long one end may wait here for the other: three times the longest so far, within the bounds.
    #[must_use]
    pub fn patience(&self, bounds: &Patience) -> Nanos {
        if self.met < KNOWN_FROM {
            return bounds.unknown;
        }
        (3 * self.longest).clamp(bounds.least, bounds.most)
    }

    /// The oldest receive that no send has met; `None` if there is none, or it is forgotten.
    #[must_use]
    pub fn unmet_recv(&self) -> Option<&Call> {
        (self.recvs.count > self.sends.count).then(|| self.recvs.get(self.sends.count))?
    }

    /// The oldest send that no receive has met.
    #[must_use]
    pub fn unmet_send(&self) -> Option<&Call> {
        (self.sends.count > self.recvs.count).then(|| self.sends.get(self.recvs.count))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_matched_in_the_order_of_the_calls() {
        let mut p = Pair::default();
        let call = |ts, bytes| Call { ts, bytes };
        p.recv(call(1, 8));
        p.recv(call(2, 16));
        assert_eq!(p.unmet_recv(), Some(&call(1, 8)));
        p.send(call(3, 8));
        assert_eq!((p.unmet_recv(), p.unmet_send()), (Some(&call(2, 16)), None));
        p.send(call(4, 12));
        assert_eq!(p.mismatch, Some((1, call(4, 12), call(2, 16))));
        p.send(call(5, 1));
        assert_eq!(p.unmet_send(), Some(&call(5, 1)));
    }

    #[test]
    fn what_is_forgotten_is_not_made_up() {
        let mut p = Pair::default();
        for ts in 0..200 {
            p.send(Call { ts, bytes: 1 });
        }
        assert_eq!(p.unmet_send(), None, "the oldest is forgotten");
        assert_eq!(p.sends.newest().map(|c| c.ts), Some(199));
    }
}
