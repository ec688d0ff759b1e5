//! The beginning of an association's end, and of a client's end with another cookie.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dimpl::{Config as DtlsConfig, Dtls, DtlsCertificate};
use tandem_tunnel::Side;

use super::{Arrival, Association};
use crate::repeats::{Repeats, after};

/// The settings and the identity with which a client's end of DTLS begins.
pub(super) struct Begin {
    pub(super) repeats: Repeats,
    pub(super) identity: DtlsCertificate,
    /// The round trip, if it is known.
    pub(super) round_trip: Option<Duration>,
}

impl Begin {
    fn dtls(&self, now: Instant) -> Dtls {
        let config = self.repeats.of_client(self.round_trip);
        dtls(config, self.identity.clone(), Side::Client, now)
    }
}

/// Returns the end of DTLS that has sent nothing yet.
pub(super) fn dtls(
    config: Arc<DtlsConfig>,
    identity: DtlsCertificate,
    side: Side,
    now: Instant,
) -> Dtls {
    let mut dtls = Dtls::new_13(config, identity, now);
    dtls.set_active(side == Side::Client);
    dtls
}

impl Association {
    /// Tells a client the round trip of an earlier association on the same path. It must be called
    /// before the first datagram leaves, and before [`Self::show`].
    pub fn expect_round_trip(&mut self, round_trip: Duration) {
        if let Some(begin) = &mut self.begin {
            begin.round_trip = Some(round_trip);
            self.wrap.repeat_hello_after(after(round_trip));
        }
    }

    /// Sends the first flight with the present cookie or token. DTLS begins again, since data has
    /// the id of this cookie and answers no earlier flight. The reply with the cookie may have
    /// shown the round trip.
    pub(super) fn send_first_flight(&mut self, arrival: Arrival) {
        let waits = std::mem::take(&mut self.waits);
        if let Some(begin) = &mut self.begin {
            let measured = waits.round_trip(arrival.now);
            begin.round_trip = measured.or(begin.round_trip);
            self.dtls = begin.dtls(arrival.now);
        }
        self.with_dtls(arrival, |dtls| dtls.handle_timeout(arrival.now));
    }
}
