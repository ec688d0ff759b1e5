//! Epochs: an issuer signs with one key in each epoch, and gateways accept it for two epochs.
//!
//! A token is thus valid for one to two epochs, and clients can fetch tokens in advance. All
//! clients of an epoch use the same key.

/// The epochs after the one of its key in which a gateway accepts a token.
pub const GRACE: u64 = 1;

/// The length of epochs, in seconds. The first one begins at 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    length: u64,
}

impl Epochs {
    /// Returns epochs of `length` seconds, at least one.
    pub const fn new(length: u64) -> Self {
        Self {
            length: if length == 0 { 1 } else { length },
        }
    }

    /// Returns the number of the epoch at a time in seconds since 1970.
    pub const fn at(self, now: u64) -> u64 {
        now / self.length
    }

    /// Returns the time at which an epoch begins, in seconds since 1970.
    pub const fn start(self, epoch: u64) -> u64 {
        epoch.saturating_mul(self.length)
    }

    /// Returns the number of the epoch in which an issuer uses a key from `not_before` on.
    pub const fn of_key(self, not_before: u64) -> u64 {
        self.at(not_before)
    }

    /// Returns true if a gateway accepts tokens of `epoch` at the time `now`.
    pub const fn accepts(self, epoch: u64, now: u64) -> bool {
        let present = self.at(now);
        epoch <= present && present - epoch <= GRACE
    }

    /// Returns the time after which no gateway accepts tokens of `epoch`, in seconds since 1970.
    pub const fn end(self, epoch: u64) -> u64 {
        self.start(epoch.saturating_add(GRACE + 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn epochs_accept_the_present_and_the_previous_one() {
        let epochs = Epochs::new(100);
        for (now, accepted) in [(299, false), (300, true), (499, true), (500, false)] {
            assert_eq!(epochs.accepts(3, now), accepted, "{now}");
        }
        assert_eq!((epochs.start(3), epochs.end(3)), (300, 500));
        assert_eq!(Epochs::new(0).at(7), 7);
    }

    proptest! {
        #[test]
        fn epochs_never_overflow(length: u64, epoch: u64, now: u64) {
            let epochs = Epochs::new(length);
            let accepted = epochs.accepts(epoch, now);
            prop_assert!(!accepted || epochs.at(now) >= epoch);
            prop_assert!(epochs.end(epoch) >= epochs.start(epoch));
        }
    }
}
