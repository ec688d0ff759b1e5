//! Bytes that a seed and a position determine, so that any part of a body can be made and checked
//! on its own.

/// Returns the eight bytes at `8 * index` of the pattern (SplitMix64).
const fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut value = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value ^ (value >> 31)).to_le_bytes()
}

/// Returns `length` bytes of the pattern of `seed`, from position `at` on.
pub fn bytes(seed: u64, at: u64, length: usize) -> Vec<u8> {
    (at..at + length as u64)
        .map(|at| word(seed, at / 8)[(at % 8) as usize])
        .collect()
}

/// Checks a body against its pattern as it comes.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    seed: u64,
    at: u64,
    right: bool,
}

impl Check {
    /// Creates the check of a body from its beginning.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            at: 0,
            right: true,
        }
    }

    /// Takes the next bytes.
    pub fn take(&mut self, data: &[u8]) {
        self.right &= bytes(self.seed, self.at, data.len()) == data;
        self.at += data.len() as u64;
    }

    /// The number of bytes so far, where all were right.
    pub fn length(&self) -> Option<u64> {
        self.right.then_some(self.at)
    }
}

/// A sequence of pseudo-random numbers, the same for the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    seed: u64,
    index: u64,
}

impl Choice {
    /// Creates the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed, index: 0 }
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.index += 1;
        u64::from_le_bytes(word(self.seed, self.index))
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_the_same_in_parts() {
        let whole = bytes(7, 0, 100);
        for at in [0, 1, 8, 13] {
            assert_eq!(bytes(7, at, 50), whole[at as usize..at as usize + 50]);
        }
        assert_ne!(bytes(8, 0, 100), whole);
    }

    #[test]
    fn check_finds_one_wrong_byte() {
        let mut data = bytes(7, 0, 1000);
        let check = |data: &[u8]| {
            let mut check = Check::new(7);
            data.chunks(33).for_each(|part| check.take(part));
            check.length()
        };
        assert_eq!(check(&data), Some(1000));
        data[777] ^= 1;
        assert_eq!(check(&data), None);
    }
}
