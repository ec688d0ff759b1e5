//! The end of a session over many streams: the last bytes reach the peer before the carrier closes.
//!
//! A carrier holds bytes that the core has given away. Closing it would discard them, so a session
//! that has ended regularly waits as long as the peer acknowledges data.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::carried::Carried;
use super::driver::Owner;
use super::over_streams::StreamsDriver;
use crate::error::Side;

/// The time without an acknowledgement after which the rest is given up: a fixed time, and a
/// multiple of the round trip if that is longer.
const PATIENCE: (Duration, u32) = (Duration::from_secs(3), 4);
/// The longest time for the last bytes. A drain or an eviction ends the session earlier.
const LINGER: Duration = Duration::from_secs(300);
/// The time for which a server waits until the client of a drained session closes it.
const FAREWELL: Duration = Duration::from_secs(1);

impl<O: Owner> StreamsDriver<O> {
    /// Waits until the peer has everything, and until the client of a drained session has left.
    pub(super) async fn leave(&mut self) {
        self.deliver().await;
        if self.side == Side::Client {
            let leave = poll_fn(|cx| self.poll_farewell(cx));
            // The client may stay away.
            let _ = timeout(FAREWELL, leave).await;
        }
    }

    /// Waits until the peer has all messages that have ended. A peer that acknowledges nothing for
    /// some time does not hold the session.
    async fn deliver(&mut self) {
        let until = Instant::now() + LINGER;
        while Instant::now() < until {
            let facts = self.carrier.facts();
            let (least, round_trips) = PATIENCE;
            let measured = facts.measure().map(|measure| measure.round_trip);
            let round_trip = measured.and_then(|it| Duration::try_from_secs_f64(it).ok());
            let patience = round_trip.map_or(least, |it| least.max(it.saturating_mul(round_trips)));
            let before = facts.acknowledgements();
            let delivered = poll_fn(|cx| self.poll_delivered(cx));
            let delivered = timeout(patience.min(LINGER), delivered).await;
            if delivered.is_ok() || self.carrier.facts().acknowledgements() == before {
                return;
            }
        }
    }

    /// Resolves once the peer has all messages that have ended, or the carrier has ended.
    fn poll_delivered(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.register(cx);
        let failed = self.turn(cx).is_err();
        let undelivered = self.streams.values().any(Carried::is_undelivered);
        if failed || self.carrier_ended.is_some() || !undelivered {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Resolves once the carrier has ended. Requests that still arrive are refused.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.register(cx);
        if self.turn(cx).is_err() || self.carrier_ended.is_some() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
