//! Well-known links by name, as pairs of directions.
//!
//! The figures are round and meant as common ground for comparisons: mobile profiles follow the
//! throttling presets of browsers' developer tools (rate at the radio, latency of the whole path),
//! the others typical published values.

use std::time::Duration;

use crate::config::{ConfigError, LinkConfig};
use crate::delay::{Jitter, Shape};
use crate::loss::Loss;
use crate::queue::QueueLimits;
use crate::rate::Rate;

/// A named link, seen from the side that downloads.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name on the command line.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// Towards the user.
    pub down: LinkConfig,
    /// From the user.
    pub up: LinkConfig,
}

/// A row of the table below: round trip and jitter in ms, rates in kbit/s, loss, queue in packets.
struct Row(&'static str, &'static str, u64, u64, u64, u64, f64, usize);

const TABLE: [Row; 11] = [
    Row(
        "lan",
        "a wired office network",
        1,
        0,
        1_000_000,
        1_000_000,
        0.0,
        1000,
    ),
    Row(
        "fibre",
        "fibre to the home, a server in the region",
        15,
        0,
        300_000,
        100_000,
        0.0,
        1000,
    ),
    Row(
        "cable",
        "cable or DSL, a server on the continent",
        30,
        2,
        20_000,
        5_000,
        0.0,
        256,
    ),
    Row(
        "wifi-busy",
        "a crowded wireless network",
        40,
        10,
        10_000,
        5_000,
        0.005,
        256,
    ),
    Row("4g", "good LTE", 60, 5, 20_000, 8_000, 0.0, 512),
    Row(
        "slow-4g",
        "LTE at the edge of a cell",
        150,
        15,
        1_600,
        750,
        0.0,
        128,
    ),
    Row("3g", "UMTS with HSPA", 300, 30, 750, 250, 0.001, 64),
    Row("2g", "EDGE", 800, 80, 240, 120, 0.002, 32),
    Row(
        "geo-satellite",
        "a geostationary satellite",
        600,
        5,
        25_000,
        3_000,
        0.002,
        512,
    ),
    Row(
        "leo-satellite",
        "a satellite in low orbit",
        45,
        10,
        100_000,
        15_000,
        0.005,
        512,
    ),
    Row(
        "tor-circuit",
        "three relays across the world, end to end",
        400,
        40,
        8_000,
        4_000,
        0.0,
        512,
    ),
];

/// Names of all profiles.
pub fn names() -> Vec<&'static str> {
    TABLE.iter().map(|row| row.0).collect()
}

/// All profiles.
pub fn all() -> impl Iterator<Item = Profile> {
    TABLE.iter().map(profile)
}

/// The profile of this name.
pub fn named(name: &str) -> Result<Profile, ConfigError> {
    let row = TABLE.iter().find(|row| row.0 == name);
    row.map(profile)
        .ok_or_else(|| ConfigError::Profile(name.into()))
}

fn profile(&Row(name, about, rtt, jitter, down, up, loss, queue): &Row) -> Profile {
    let direction = |kbits: u64| LinkConfig {
        delay: Duration::from_micros(rtt * 500),
        jitter: (jitter > 0).then(|| Jitter {
            shape: Shape::Normal,
            scale: Duration::from_micros(jitter * 500),
            reorder: false,
        }),
        loss: if loss > 0.0 {
            Loss::Independent(loss)
        } else {
            Loss::Never
        },
        rate: Rate::Constant(kbits * 1000),
        queue: QueueLimits {
            packets: Some(queue),
            bytes: None,
            codel: None,
        },
        ..LinkConfig::default()
    };
    Profile {
        name,
        about,
        down: direction(down),
        up: direction(up),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_valid_and_found_by_name() {
        for profile in all() {
            profile.down.check().expect(profile.name);
            profile.up.check().expect(profile.name);
            assert_eq!(named(profile.name), Ok(profile));
        }
        assert!(
            named("5g")
                .expect_err("unknown")
                .to_string()
                .contains("geo-satellite")
        );
    }
}
