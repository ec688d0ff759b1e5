//! The time after which the flights of a handshake are repeated (RFC 9147, section 5.8.2).
//!
//! A client learns the round trip from its cookie, or knows it from an earlier association. A
//! repeated flight of the client makes the gateway repeat its own, so the gateway need not know the
//! round trip. dimpl varies each time by up to a quarter, and doubles it with each repetition.

use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dimpl::Config as DtlsConfig;

/// The time for an unknown round trip. Known ones do not exceed it.
pub(crate) const UNKNOWN: Duration = Duration::from_secs(1);
/// The least time.
const LEAST: Duration = Duration::from_millis(200);
/// The difference between two times. Associations with the same one share the settings.
const STEP: Duration = Duration::from_millis(50);
/// The number of the times.
const TIMES: usize = 17;
/// The round trips after which a flight is repeated. Less a quarter, no flight is repeated while
/// the round trip is at most three times the known one.
const ROUND_TRIPS: u32 = 4;
/// The time for the computations of both ends.
const WORK: Duration = Duration::from_millis(30);
/// The time for which a client repeats a flight at least.
const PATIENCE: Duration = Duration::from_secs(31);
/// The number of times that a gateway repeats a flight at most: for a client with a cookie, and for
/// one with a token. Each repetition of the client makes it do so. A client with a token on a short
/// path repeats its flight six times in 13 s.
const FOR_COOKIE: usize = 8;
const FOR_TOKEN: usize = 6;

/// Makes the settings of DTLS from the first time and the number of the repetitions.
pub(crate) type Make = dyn Fn(Duration, usize) -> Result<DtlsConfig, String>;

/// The settings of DTLS for each time.
#[derive(Clone)]
pub(crate) struct Repeats {
    make: Rc<Make>,
    unknown: Arc<DtlsConfig>,
    for_cookie: Arc<DtlsConfig>,
    for_token: Arc<DtlsConfig>,
    known: Rc<[OnceCell<Arc<DtlsConfig>>; TIMES]>,
}

impl fmt::Debug for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeats")
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}

impl Repeats {
    /// Creates the settings with `make`.
    ///
    /// # Errors
    /// Returns its error.
    pub(crate) fn new(make: Rc<Make>) -> Result<Self, String> {
        Ok(Self {
            unknown: Arc::new(make(UNKNOWN, repetitions(UNKNOWN))?),
            for_cookie: Arc::new(make(UNKNOWN, FOR_COOKIE)?),
            for_token: Arc::new(make(UNKNOWN, FOR_TOKEN)?),
            known: Rc::default(),
            make,
        })
    }

    /// Returns the settings of a client that knows the round trip, or does not.
    pub(crate) fn of_client(&self, round_trip: Option<Duration>) -> Arc<DtlsConfig> {
        let Some(at) = round_trip.map(step) else {
            return Arc::clone(&self.unknown);
        };
        let made = self.known[at].get_or_init(|| {
            let time = time(at);
            let made = (self.make)(time, repetitions(time)).map(Arc::new);
            made.unwrap_or_else(|_| Arc::clone(&self.unknown))
        });
        Arc::clone(made)
    }

    /// Returns the settings of a gateway's end. The address of a client with a token is not proved,
    /// so it gets fewer repetitions.
    pub(crate) fn of_gateway(&self, has_token: bool) -> Arc<DtlsConfig> {
        Arc::clone(match has_token {
            true => &self.for_token,
            false => &self.for_cookie,
        })
    }
}

/// Returns the number of the time for a round trip.
fn step(round_trip: Duration) -> usize {
    let wanted = round_trip.saturating_mul(ROUND_TRIPS).saturating_add(WORK);
    let steps = wanted
        .saturating_sub(LEAST)
        .as_nanos()
        .div_ceil(STEP.as_nanos());
    usize::try_from(steps).map_or(TIMES - 1, |steps| steps.min(TIMES - 1))
}

fn time(step: usize) -> Duration {
    (0..step).fold(LEAST, |time, _| time + STEP)
}

/// Returns the time after which a flight is repeated on a path with this round trip.
pub(crate) fn after(round_trip: Duration) -> Duration {
    time(step(round_trip))
}

/// Returns the number of repetitions that last for [`PATIENCE`], from the first one after `time`.
fn repetitions(time: Duration) -> usize {
    let (mut count, mut next, mut total) = (0, time, time);
    while total < PATIENCE {
        next *= 2;
        total += next;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn time_is_some_round_trips_within_its_bounds() {
        for (round_trip, expected) in [
            (0, 200),
            (42, 200),
            (43, 250),
            (100, 450),
            (105, 450),
            (106, 500),
            (242, 1000),
            (600, 1000),
            (u32::MAX, 1000),
        ] {
            assert_eq!(after(MS * round_trip), MS * expected, "{round_trip} ms");
        }
        assert_eq!(time(TIMES - 1), UNKNOWN);
        assert_eq!(after(Duration::MAX), UNKNOWN);
    }

    #[test]
    fn shorter_time_has_the_same_patience() {
        for (time, expected) in [(1000, 4), (700, 5), (450, 6), (200, 7)] {
            assert_eq!(repetitions(MS * time), expected, "{time} ms");
        }
    }
}
