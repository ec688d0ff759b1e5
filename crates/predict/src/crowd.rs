//! A count of different users that needs a few bytes. The predictor and the gateway's cache use it
//! to decide whether enough users know a URL to reveal it to others.

/// The number of different users that were seen, up to `N`. Users are told apart by tags of 16
/// bits, so the count may be too small but is never too large.
#[derive(Debug, Clone, Copy)]
pub struct Crowd<const N: usize> {
    /// The number of users.
    pub count: u8,
    tags: [u16; N],
}

impl<const N: usize> Default for Crowd<N> {
    fn default() -> Self {
        Self {
            count: 0,
            tags: [0; N],
        }
    }
}

impl<const N: usize> Crowd<N> {
    /// Notes a user by a number that identifies it, such as a keyed hash. Returns whether the user
    /// was counted.
    pub fn note(&mut self, user: u64) -> bool {
        self.note_tag(tag(user))
    }

    /// Notes a user by the tag of its number. Returns whether the user was counted.
    pub fn note_tag(&mut self, tag: u16) -> bool {
        let known = usize::from(self.count);
        let counts = known < N && !self.tags[..known].contains(&tag);
        if counts {
            self.tags[known] = tag;
            self.count += 1;
        }
        counts
    }

    /// Returns true if the user was noted. Two users have the same tag with a probability of 1 in
    /// 32,768.
    pub fn has(&self, user: u64) -> bool {
        self.tags[..usize::from(self.count)].contains(&tag(user))
    }

    /// Returns the tags of the noted users.
    pub fn tags(&self) -> &[u16] {
        &self.tags[..usize::from(self.count)]
    }

    /// Returns a crowd of which only the size is known.
    pub fn of(count: u8) -> Self {
        Self {
            count: count.min(u8::try_from(N).unwrap_or(u8::MAX)),
            tags: [0; N],
        }
    }

    /// Returns the larger of two crowds, since the same people may be behind both. The users of
    /// this one are still told apart.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            ..self
        }
    }
}

/// Returns the tag of a user, which is never zero.
pub const fn tag(user: u64) -> u16 {
    (user.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowd_counts_each_user_once() {
        let mut crowd = Crowd::<3>::default();
        for user in [7, 7, 8, 7, 9, 10] {
            crowd.note(user);
        }
        assert_eq!(crowd.count, 3);
        assert!(crowd.has(7) && crowd.has(9) && !crowd.has(10));
        assert_eq!(crowd.merged(Crowd::of(2)).count, 3);
        let larger = Crowd::of(1).merged(crowd);
        assert!(larger.count == 3 && crowd.merged(larger).has(7));
        assert_eq!(Crowd::<3>::of(9).count, 3);
        assert!(!Crowd::<3>::of(2).has(7));
    }
}
