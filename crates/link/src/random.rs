//! Seeded random numbers: SplitMix64, addressed by seed, purpose and packet number.
//!
//! Each packet and purpose has its own generator. Enabling one impairment therefore never changes
//! another one, and no draw depends on arrival times.

use std::f64::consts::TAU;

/// Step of SplitMix64: 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The purpose of a draw; part of a generator's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The loss of a packet.
    Loss = 1,
    /// How much later than the fixed delay a packet arrives.
    Jitter,
    /// The duplication of a packet.
    Duplicate,
    /// Which bit of a packet is wrong.
    Corrupt,
    /// The change of a TCP segment into a reset.
    Reset,
    /// The length of a gap.
    Gap,
}

/// A small generator of uniform, normal and exponential numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of one packet (or time slot) for one purpose.
    pub fn of(seed: u64, purpose: Purpose, index: u64) -> Self {
        Self(mix(
            mix(seed ^ mix(purpose as u64)).wrapping_add(index.wrapping_mul(GAMMA))
        ))
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Uniform in 0..n; 0 for n = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Two independent standard normal numbers (Box-Muller).
    pub fn normals(&mut self) -> (f64, f64) {
        let radius = (2.0 * self.exponential()).sqrt();
        let (sin, cos) = (TAU * self.unit()).sin_cos();
        (radius * cos, radius * sin)
    }
}

/// A seed for the `index`-th part of something seeded as a whole.
pub fn split_seed(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(mix(index.wrapping_add(1))))
}

/// SplitMix64's finalizer: a bijection in which every output bit depends on every input bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_follow_the_published_sequence_of_seed_zero() {
        let mut random = Random(0);
        assert_eq!(random.bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.bits(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(random.bits(), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn draws_of_neighbouring_packets_are_independent() {
        const N: u64 = 100_000;
        let draws: Vec<f64> = (0..N)
            .map(|n| Random::of(7, Purpose::Loss, n).unit())
            .collect();
        let mean = draws.iter().sum::<f64>() / N as f64;
        assert!(
            (mean - 0.5).abs() < 4.0 * (1.0 / 12.0 / N as f64).sqrt(),
            "{mean}"
        );
        let lagged: f64 = draws
            .windows(2)
            .map(|w| (w[0] - 0.5) * (w[1] - 0.5))
            .sum::<f64>()
            * 12.0
            / N as f64;
        assert!(
            lagged.abs() < 4.0 / (N as f64).sqrt(),
            "serial correlation {lagged}"
        );
    }

    #[test]
    fn normals_have_unit_variance_and_no_correlation() {
        const N: u64 = 100_000;
        let pairs: Vec<(f64, f64)> = (0..N)
            .map(|n| Random::of(3, Purpose::Jitter, n).normals())
            .collect();
        let variance = pairs.iter().map(|(a, b)| a * a + b * b).sum::<f64>() / (2 * N) as f64;
        let covariance = pairs.iter().map(|(a, b)| a * b).sum::<f64>() / N as f64;
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
        assert!(covariance.abs() < 0.015, "{covariance}");
    }
}
