//! The end of a session over many streams: the last bytes reach the peer before the carrier closes.
//!
//! A carrier holds bytes that it has taken from the core, and discards them when it is closed. A
//! session that has ended regularly therefore waits until the peer has its last bytes, as long as
//! the peer acknowledges data.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::driver::Owner;
use super::halves::StreamHalves;
use super::over_streams::StreamsDriver;
use crate::session::path_timeout::{PathTimeout, measured_round_trip};

/// The time without an acknowledgement after which the rest is given up.
const DELIVERY_TIMEOUT: PathTimeout = PathTimeout {
    round_trips: 4,
    least: Duration::from_secs(3),
    most: LINGER,
};
/// The longest time for the last bytes. A drain of the process, or the closing of the connection by
/// `connections`, ends the session earlier.
const LINGER: Duration = Duration::from_secs(300);
/// The time for which a server waits until the client of a drained session closes it.
const FAREWELL: Duration = Duration::from_secs(1);

impl<O: Owner> StreamsDriver<O> {
    /// Waits until the peer has everything, and until the client of a drained session has left.
    pub(super) async fn leave(&mut self) {
        self.deliver().await;
        if self.is_server() {
            let leave = poll_fn(|cx| self.poll_farewell(cx));
            // The server does not wait longer for a client that does not close.
            let _ = timeout(FAREWELL, leave).await;
        }
    }

    /// Waits until the peer has all messages that have ended. If the peer acknowledges nothing for
    /// some time, the session does not wait for it.
    async fn deliver(&mut self) {
        let until = Instant::now() + LINGER;
        while Instant::now() < until {
            let facts = self.carrier.facts();
            let limit = DELIVERY_TIMEOUT.over(measured_round_trip(&**facts));
            let before = facts.acknowledgements();
            let delivered = poll_fn(|cx| self.poll_delivered(cx));
            let delivered = timeout(limit, delivered).await;
            if delivered.is_ok() || self.carrier.facts().acknowledgements() == before {
                return;
            }
        }
    }

    /// Resolves once the peer has all messages that have ended, or the carrier has ended.
    fn poll_delivered(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.register(cx);
        let failed = self.turn(cx).is_err();
        let undelivered = self.streams.values().any(StreamHalves::is_undelivered);
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
