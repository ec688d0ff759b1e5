//! The largest datagram that the path takes: probing in the packetization layer (RFC 8899).

use std::time::Duration;

/// The size that every path must take, in bytes of payload (RFC 8899, section 5.1.2).
pub(crate) const BASE: usize = 1200;
/// The probes of one size that must be lost before it is given up (section 5.1.2).
const MAX_PROBES: u32 = 3;
/// The precision of the search.
const STEP: usize = 16;
/// The time after which a larger size is tried again (section 5.1.1).
const RAISE_AFTER: Duration = Duration::from_secs(600);

/// A search for the path's largest datagram.
#[derive(Clone, Debug)]
pub(crate) struct PathMtu {
    current: usize,
    /// The smallest size that is known to be too large, or one more than the limit.
    too_large: usize,
    limit: usize,
    probe: Option<Probe>,
    raise_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    id: u32,
    size: usize,
    deadline: Duration,
    tries: u32,
}

impl PathMtu {
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.max(BASE);
        Self {
            current: BASE,
            too_large: limit + 1,
            limit,
            probe: None,
            raise_at: None,
        }
    }

    /// Returns the size that datagrams may have, in bytes.
    pub(crate) const fn current(&self) -> usize {
        self.current
    }

    /// Returns the size of the probe to send now, if one is due; it gets the number `id`.
    pub(crate) fn next_probe(
        &mut self,
        now: Duration,
        timeout: Duration,
        id: u32,
    ) -> Option<usize> {
        if self.raise_at.is_some_and(|at| at <= now) {
            self.raise_at = None;
            self.too_large = self.limit + 1;
        }
        let tries = match self.probe {
            Some(probe) if probe.deadline > now => return None,
            Some(probe) if probe.tries >= MAX_PROBES => {
                self.too_large = probe.size;
                0
            }
            Some(probe) => probe.tries,
            None => 0,
        };
        self.probe = None;
        let Some(size) = self.next_size() else {
            self.raise_at = self.raise_at.or(Some(now + RAISE_AFTER));
            return None;
        };
        self.probe = Some(Probe {
            id,
            size,
            deadline: now + timeout,
            tries: tries + 1,
        });
        Some(size)
    }

    /// Returns the size to probe next: first the limit, because most paths take it, and then the
    /// middle.
    fn next_size(&self) -> Option<usize> {
        if self.current + STEP >= self.too_large {
            return None;
        }
        let untried = self.too_large > self.limit;
        Some(if untried {
            self.limit
        } else {
            self.current.midpoint(self.too_large)
        })
    }

    /// Notes the reply to a probe; returns whether the size has grown.
    pub(crate) fn on_reply(&mut self, id: u32) -> bool {
        match self.probe {
            Some(probe) if probe.id == id => {
                self.probe = None;
                let grown = probe.size > self.current;
                self.current = probe.size.max(self.current);
                grown
            }
            _ => false,
        }
    }

    /// Returns to the base size: full datagrams vanish (RFC 8899, section 4.3). Returns whether
    /// that is a change.
    pub(crate) fn on_black_hole(&mut self, now: Duration) -> bool {
        let changed = self.current > BASE;
        if changed {
            *self = Self {
                too_large: self.current,
                raise_at: Some(now + RAISE_AFTER),
                ..Self::new(self.limit)
            };
        }
        changed
    }

    /// Begins again: the path is another one.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Returns the time of the next probe, if the search goes on.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.probe {
            Some(probe) => Some(probe.deadline),
            None if self.next_size().is_some() => Some(Duration::ZERO),
            None => self.raise_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes a path that takes `most` bytes until the search pauses.
    fn search(pmtu: &mut PathMtu, most: usize, now: &mut Duration) -> u32 {
        for id in 0.. {
            match pmtu.next_probe(*now, Duration::from_millis(300), id) {
                Some(size) if size <= most => assert!(pmtu.on_reply(id)),
                Some(_) => *now += Duration::from_millis(300),
                None => return id,
            }
        }
        unreachable!("the search ends")
    }

    #[test]
    fn path_mtu_finds_the_largest_size() {
        for most in [1200, 1300, 1372, 1452] {
            let mut pmtu = PathMtu::new(1452);
            let mut now = Duration::ZERO;
            let probes = search(&mut pmtu, most, &mut now);
            let found = pmtu.current();
            assert!(
                found <= most && found + STEP > most.min(1452),
                "{found} of {most}"
            );
            assert!(probes <= 3 * 6, "{probes}");
        }
    }

    #[test]
    fn path_mtu_falls_back_from_a_black_hole() {
        let mut pmtu = PathMtu::new(1452);
        let mut now = Duration::ZERO;
        search(&mut pmtu, 1452, &mut now);
        assert_eq!(pmtu.current(), 1452);
        assert!(pmtu.on_black_hole(now) && pmtu.current() == BASE);
        assert!(!pmtu.on_black_hole(now));
        search(&mut pmtu, 1300, &mut now);
        assert!((1284..=1300).contains(&pmtu.current()));
        now += RAISE_AFTER;
        search(&mut pmtu, 1452, &mut now);
        assert_eq!(pmtu.current(), 1452, "larger sizes are tried again");
    }
}
