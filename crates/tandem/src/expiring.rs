//! A bounded set of keys that are each remembered for a time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// A set of at most `MOST` keys. The key that ends first makes way for another one.
#[derive(Debug)]
pub struct ExpiringSet<K, const MOST: usize>(RefCell<HashMap<K, Instant>>);

impl<K, const MOST: usize> Default for ExpiringSet<K, MOST> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<K: Clone + Eq + Hash, const MOST: usize> ExpiringSet<K, MOST> {
    /// Remembers a key for `time` from now.
    pub fn insert(&self, key: K, time: Duration) {
        let now = Instant::now();
        let mut keys = self.0.borrow_mut();
        keys.retain(|_, until| now < *until);
        if keys.len() >= MOST && !keys.contains_key(&key) {
            let first = keys.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                keys.remove(&first);
            }
        }
        keys.insert(key, now + time);
    }

    /// Returns whether the set has a key.
    pub fn contains_key(&self, key: &K) -> bool {
        let until = self.0.borrow().get(key).copied();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether the set has the key of `make`. An empty set does not call `make`.
    pub fn contains(&self, make: impl FnOnce() -> K) -> bool {
        let keys = self.0.borrow();
        let until = (!keys.is_empty()).then(|| keys.get(&make())).flatten();
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Forgets a key.
    pub fn remove(&self, key: &K) {
        self.0.borrow_mut().remove(key);
    }

    /// Forgets the keys for which `keeps` returns false.
    pub fn retain(&self, keeps: impl Fn(&K) -> bool) {
        self.0.borrow_mut().retain(|key, _| keeps(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn key_is_forgotten_after_its_time() {
        let keys = ExpiringSet::<u8, 4>::default();
        keys.insert(1, 2 * SECOND);
        keys.insert(2, 4 * SECOND);
        tokio::time::advance(SECOND).await;
        keys.insert(1, 2 * SECOND);
        tokio::time::advance(2 * SECOND - Duration::from_millis(1)).await;
        assert!(keys.contains(|| 1), "the later time counts");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!keys.contains(|| 1) && keys.contains(|| 2));
        keys.insert(3, SECOND);
        assert_eq!(keys.0.borrow().len(), 2, "no entry outlives its time");
    }

    #[tokio::test(start_paused = true)]
    async fn full_set_forgets_the_key_that_ends_first() {
        let keys = ExpiringSet::<u8, 2>::default();
        keys.insert(1, 3 * SECOND);
        keys.insert(2, 2 * SECOND);
        keys.insert(1, 3 * SECOND);
        assert!(keys.contains(|| 2), "a known key takes no room");
        keys.insert(3, SECOND);
        assert!(keys.contains(|| 1) && !keys.contains(|| 2) && keys.contains(|| 3));
    }

    #[tokio::test(start_paused = true)]
    async fn removed_keys_are_forgotten() {
        let keys = ExpiringSet::<u8, 8>::default();
        (0..6).for_each(|key| keys.insert(key, SECOND));
        keys.remove(&0);
        keys.retain(|key| *key < 3);
        let left = (0..6).filter(|key| keys.contains(|| *key));
        assert_eq!(left.collect::<Vec<_>>(), [1, 2]);
    }
}
