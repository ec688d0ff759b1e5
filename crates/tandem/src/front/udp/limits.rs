//! The limits on tunnels of UDP at the client, for each isolation key. All tunnels of a key share
//! one session with its other exchanges, which a flood of new tunnels must not end. The datagrams
//! that wait for a slow session are bounded in bytes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::time::Instant;

use crate::exchange::Isolation;
use crate::token_bucket::TokenBucket;

/// The number of new tunnels in a second, after the burst. It is half of the resets that the flood
/// budget of a gateway's session restores in a second.
const NEW_PER_SECOND: u32 = 32;

/// The number of new tunnels after a pause: a sixth of the flood budget.
const BURST: u32 = 256;

/// The number of tunnels that may be open or ending: half of the streams of a gateway's session.
const MOST_OPEN: usize = 128;

/// The bytes of datagrams of a key that may wait for its session.
pub(super) const MOST_WAITING: usize = 1 << 20;

/// The bytes of datagrams of all keys that may wait.
const MOST_WAITING_OF_ALL: usize = 16 << 20;

/// The number of isolation keys with recent tunnels.
const MOST_KEYS: usize = 4096;

/// The tunnels of all isolation keys of a client.
#[derive(Debug, Default)]
pub struct UdpLimits {
    keys: RefCell<HashMap<Isolation, Rc<KeyLimits>>>,
    /// The bytes of datagrams that wait.
    waiting: Rc<Cell<usize>>,
}

/// The tunnels of one isolation key.
#[derive(Debug)]
pub(in crate::front) struct KeyLimits {
    new: TokenBucket,
    open: Cell<usize>,
    /// The bytes of this key's datagrams that wait.
    waiting: Cell<usize>,
    waiting_of_all: Rc<Cell<usize>>,
}

impl UdpLimits {
    /// Returns the limits of a key. Returns `None` if too many keys have recent tunnels.
    pub(in crate::front) fn of(&self, key: &Isolation, now: Instant) -> Option<Rc<KeyLimits>> {
        let mut keys = self.keys.borrow_mut();
        if let Some(limits) = keys.get(key) {
            return Some(Rc::clone(limits));
        }
        keys.retain(|_, it| Rc::strong_count(it) > 1 || !it.new.is_full(now));
        if keys.len() >= MOST_KEYS {
            return None;
        }
        let limits = Rc::new(KeyLimits {
            new: TokenBucket::new(NEW_PER_SECOND, BURST, now),
            open: Cell::default(),
            waiting: Cell::default(),
            waiting_of_all: Rc::clone(&self.waiting),
        });
        keys.insert(key.clone(), Rc::clone(&limits));
        Some(limits)
    }
}

impl KeyLimits {
    /// Takes a place for a new tunnel.
    pub(super) fn place(self: &Rc<Self>, now: Instant) -> Result<FlowPlace, NoPlace> {
        if self.open.get() >= MOST_OPEN {
            return Err(NoPlace::TooMany);
        }
        if !self.new.take(now) {
            return Err(NoPlace::TooFast);
        }
        self.open.update(|open| open + 1);
        Ok(FlowPlace(Rc::clone(self)))
    }

    /// Copies a datagram that waits for the session. Returns `None` if too many bytes wait.
    pub(super) fn wait(self: &Rc<Self>, payload: &[u8]) -> Option<Waiting> {
        let len = payload.len();
        if self.waiting.get() + len > MOST_WAITING
            || self.waiting_of_all.get() + len > MOST_WAITING_OF_ALL
        {
            return None;
        }
        self.waiting.update(|waiting| waiting + len);
        self.waiting_of_all.update(|waiting| waiting + len);
        Some(Waiting {
            payload: payload.into(),
            limits: Rc::clone(self),
        })
    }
}

/// The reason why there is no place for a new tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    /// Too many tunnels are open or ending.
    #[error(
        "a program sends UDP to more destinations than the {MOST_OPEN} of a session: datagrams to \
         others are dropped until some have been unused for minutes"
    )]
    TooMany,
    /// Too many tunnels have begun lately.
    #[error(
        "a program sends UDP to new destinations faster than the {NEW_PER_SECOND} in a second that \
         a session permits: datagrams to them are dropped"
    )]
    TooFast,
}

/// A datagram that waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) payload: Box<[u8]>,
    limits: Rc<KeyLimits>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let len = self.payload.len();
        self.limits.waiting.update(|waiting| waiting - len);
        self.limits.waiting_of_all.update(|waiting| waiting - len);
    }
}

/// The place of a tunnel, until it is dropped.
#[derive(Debug)]
pub(super) struct FlowPlace(Rc<KeyLimits>);

impl FlowPlace {
    /// Returns the limits that the place belongs to.
    pub(super) fn limits(&self) -> Rc<KeyLimits> {
        Rc::clone(&self.0)
    }
}

impl Drop for FlowPlace {
    fn drop(&mut self) {
        self.0.open.update(|open| open - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn key_limits_bound_new_and_open_tunnels() {
        let (limits, now) = (UdpLimits::default(), Instant::now());
        let key = Isolation::new(b"a", b"");
        let of_key = limits.of(&key, now).expect("room");
        let mut open: Vec<_> = (0..MOST_OPEN)
            .map(|_| of_key.place(now).expect("room"))
            .collect();
        assert_eq!(of_key.place(now).err(), Some(NoPlace::TooMany));
        let other = limits.of(&Isolation::none(), now).expect("room");
        assert!(other.place(now).is_ok());
        open.clear();
        let again = limits.of(&key, now).expect("room");
        let count = std::iter::repeat_with(|| again.place(now)).map_while(Result::ok);
        assert_eq!(count.count(), BURST as usize - MOST_OPEN);
        assert_eq!(again.place(now).err(), Some(NoPlace::TooFast));
        let later = now + Duration::from_secs(1);
        let count = std::iter::repeat_with(|| again.place(later)).map_while(Result::ok);
        assert_eq!(count.count(), NEW_PER_SECOND as usize);
    }

    #[test]
    fn limits_forget_keys_without_recent_tunnels() {
        let (limits, now) = (UdpLimits::default(), Instant::now());
        let key = |at: usize| Isolation::new(at.to_string().as_bytes(), b"");
        let spend = |at| limits.of(&key(at), now)?.place(now).ok().map(drop);
        for at in 0..MOST_KEYS {
            assert!(spend(at).is_some());
        }
        assert!(limits.of(&key(MOST_KEYS), now).is_none());
        let later = now + Duration::from_secs(1);
        assert!(limits.of(&key(MOST_KEYS), later).is_some());
        assert_eq!(limits.keys.borrow().len(), 1);
    }

    #[test]
    fn limits_bound_the_bytes_that_wait() {
        let (limits, now) = (UdpLimits::default(), Instant::now());
        let key = |at: usize| Isolation::new(at.to_string().as_bytes(), b"");
        let payload = [0; 60_000];
        let mut all = Vec::new();
        for at in 0..20 {
            let of_key = limits.of(&key(at), now).expect("room");
            let waiting = std::iter::repeat_with(|| of_key.wait(&payload)).map_while(|it| it);
            all.extend(waiting);
            if at == 0 {
                assert_eq!(all.len(), MOST_WAITING / payload.len());
            }
        }
        assert_eq!(all.len(), MOST_WAITING_OF_ALL / payload.len());
        all.clear();
        assert_eq!(limits.waiting.get(), 0);
        assert!(
            limits
                .of(&key(0), now)
                .expect("room")
                .wait(&payload)
                .is_some()
        );
    }
}
