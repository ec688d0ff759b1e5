//! The responses of one gateway that the engine holds, bounded in bytes. The oldest one makes room.

use std::collections::{HashMap, VecDeque};

use crate::sightings::NameHash;

/// The bytes that the engine needs for a response besides its own.
const OVERHEAD: u64 = 160;

/// A list of the responses in the engine.
#[derive(Debug)]
pub struct LentResponses {
    bound: u64,
    bytes: u64,
    number: u64,
    held: HashMap<NameHash, Held>,
    /// The responses from the oldest one on. Some may have been removed.
    order: VecDeque<(u64, NameHash)>,
}

#[derive(Debug)]
struct Held {
    number: u64,
    bytes: u64,
    /// The end of its time in the engine, in seconds since 1970.
    end: u64,
}

impl LentResponses {
    /// Creates an empty list with a bound in bytes.
    #[must_use]
    pub fn new(bound: u64) -> Self {
        Self {
            bound,
            bytes: 0,
            number: 0,
            held: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Adds a response that the engine is to hold until `end`. Returns those to remove from the
    /// engine, or `None` if the response is too long.
    pub fn add(
        &mut self,
        now: u64,
        name: NameHash,
        length: usize,
        end: u64,
    ) -> Option<Vec<NameHash>> {
        let bytes = length as u64 + OVERHEAD;
        if bytes > self.bound {
            return None;
        }
        self.remove(&name);
        let mut removed = Vec::new();
        while let Some((number, oldest)) = self.order.front() {
            let held = self.held.get(oldest).filter(|held| held.number == *number);
            let has_ended = held.is_none_or(|held| held.end <= now);
            if !has_ended && self.bytes + bytes <= self.bound {
                break;
            }
            if held.is_some() {
                let oldest = *oldest;
                self.remove(&oldest);
                if !has_ended {
                    removed.push(oldest);
                }
            }
            self.order.pop_front();
        }
        self.number += 1;
        let number = self.number;
        self.order.push_back((number, name));
        self.held.insert(name, Held { number, bytes, end });
        self.bytes += bytes;
        Some(removed)
    }

    /// Removes a response. Returns whether it was listed.
    pub fn remove(&mut self, name: &NameHash) -> bool {
        let held = self.held.remove(name);
        self.bytes -= held.as_ref().map_or(0, |held| held.bytes);
        // The places of removed responses go when they are many.
        if self.order.len() > 2 * self.held.len() + 64 {
            let held = &self.held;
            let is_held = |(number, name): &(u64, NameHash)| {
                held.get(name).is_some_and(|held| held.number == *number)
            };
            self.order.retain(is_held);
        }
        held.is_some()
    }

    /// Returns the bytes in the engine, at most the bound.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(number: u8) -> NameHash {
        [number; 16]
    }

    #[test]
    fn oldest_response_makes_room() {
        let mut ledger = LentResponses::new(3 * (1000 + OVERHEAD));
        for number in 0..3 {
            assert_eq!(ledger.add(0, name(number), 1000, 100), Some(vec![]));
        }
        assert_eq!(ledger.add(0, name(3), 1000, 100), Some(vec![name(0)]));
        assert!(ledger.remove(&name(1)) && !ledger.remove(&name(1)));
        assert_eq!(ledger.add(0, name(4), 1000, 100), Some(vec![]));
        // Those whose time is over are no longer in the engine.
        assert_eq!(ledger.add(100, name(5), 1000, 200), Some(vec![]));
        assert_eq!(ledger.bytes(), 1000 + OVERHEAD);
        assert_eq!(ledger.add(100, name(6), 9000, 200), None);
    }

    proptest! {
        #[test]
        fn ledger_keeps_its_bound(
            steps in prop::collection::vec(
                (0..9_u8, 0..3000_usize, 0..50_u64, any::<bool>()),
                0..200,
            ),
        ) {
            let mut ledger = LentResponses::new(10_000);
            let mut engine = std::collections::BTreeMap::new();
            for (now, (number, length, lifetime, adds)) in steps.into_iter().enumerate() {
                let now = now as u64;
                engine.retain(|_, (_, end)| *end > now);
                if adds {
                    let removed = ledger.add(now, name(number), length, now + lifetime);
                    engine.insert(name(number), (length as u64 + OVERHEAD, now + lifetime));
                    for name in removed.expect("shorter than the bound") {
                        prop_assert!(engine.remove(&name).is_some());
                    }
                } else {
                    let was_held = engine.remove(&name(number)).is_some();
                    prop_assert!(ledger.remove(&name(number)) >= was_held);
                }
                let bytes: u64 = engine.values().map(|(bytes, _)| bytes).sum();
                prop_assert!(bytes <= ledger.bytes() && ledger.bytes() <= 10_000);
                prop_assert!(ledger.order.len() <= 2 * ledger.held.len() + 65);
            }
        }
    }
}
