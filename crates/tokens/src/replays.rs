//! The encapsulated requests that a gateway has received (RFC 9458 section 6.5).
//!
//! Each client chooses another key for each request. A key that comes again is a replay. The memory
//! is bounded: the earlier half is forgotten when the later half is full. A replay after that gets
//! the answer of the first request, encrypted for the first client, and changes nothing.

use std::collections::HashSet;

/// The keys of recent requests.
#[derive(Debug)]
pub struct Replays {
    half: usize,
    recent: HashSet<[u8; 32]>,
    earlier: HashSet<[u8; 32]>,
}

impl Replays {
    /// Remembers at least `half` and at most twice as many requests.
    pub fn new(half: usize) -> Self {
        Self {
            half: half.max(1),
            recent: HashSet::new(),
            earlier: HashSet::new(),
        }
    }

    /// Remembers the key of a request. Returns false if it is a replay.
    pub fn insert(&mut self, key: [u8; 32]) -> bool {
        if self.earlier.contains(&key) || !self.recent.insert(key) {
            return false;
        }
        if self.recent.len() >= self.half {
            self.earlier = std::mem::take(&mut self.recent);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_known_for_the_last_requests() {
        let mut replays = Replays::new(10);
        for number in 0..100_u8 {
            assert!(replays.insert([number; 32]));
            assert!(!replays.insert([number; 32]));
            if let Some(earlier) = number.checked_sub(9) {
                assert!(!replays.insert([earlier; 32]));
            }
            assert!(replays.recent.len() + replays.earlier.len() <= 20);
        }
        assert!(replays.insert([0; 32]));
    }
}
