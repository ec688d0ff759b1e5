//! Bytes that say nothing: the same for the same seed, on every machine, and no food for a
//! compressor.

/// Characters that are harmless in comments of HTML, CSS and scripts, in XML and in JSON strings.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";

/// A small generator of pseudo-random numbers (SplitMix64).
pub(super) struct Fill(u64);

impl Fill {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(super) const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of `low..high`, evenly enough.
    pub(super) const fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.number() % (high - low) as u64) as usize
    }

    /// Appends `len` characters of text.
    pub(super) fn text(&mut self, out: &mut Vec<u8>, len: usize) {
        let end = out.len() + len;
        while out.len() < end {
            let mut bits = self.number();
            for _ in 0..(end - out.len()).min(10) {
                out.push(ALPHABET[(bits & 63) as usize]);
                bits >>= 6;
            }
        }
    }

    /// Appends `len` arbitrary bytes.
    pub(super) fn bytes(&mut self, out: &mut Vec<u8>, len: usize) {
        let end = out.len() + len;
        while out.len() < end {
            let piece = self.number().to_le_bytes();
            out.extend_from_slice(&piece[..(end - out.len()).min(8)]);
        }
    }
}

/// Returns a seed from text (FNV-1a).
pub fn seed(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}
