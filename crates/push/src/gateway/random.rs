//! The random choice of pages that are held out, from a seed of the caller.

/// The generator SplitMix64. An attacker gains nothing by guessing its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns true with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // The upper 53 bits are the precision of a double.
        let fraction = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        fraction < probability
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_published_values() {
        let mut random = Random::new(1_234_567);
        let values = [random.next(), random.next(), random.next()];
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(values, published);
    }

    #[test]
    fn chance_follows_its_probability() {
        let mut random = Random::new(7);
        let mut hits = |probability| (0..10_000).filter(|_| random.chance(probability)).count();
        assert_eq!((hits(0.0), hits(1.0)), (0, 10_000));
        assert!((2_300..2_700).contains(&hits(0.25)));
    }
}
