//! The right to an exchange over a separate connection, and the wait for it.
//!
//! It consists of a place (`back::places`) and, at a reverse gateway, of a start (`back::starts`).

use super::{Key, Origin, Wanted};
use crate::back::places::Place;
use crate::back::starts::Start;
use crate::error::{Error, Kind, Side};
use crate::exchange::Exchange;
use crate::priority::{Precedence, SharedPriority};

/// The right to an exchange over a separate connection.
pub(super) struct Permit {
    _start: Option<Start>,
    _place: Place<Wanted>,
}

impl Permit {
    const fn new(place: Place<Wanted>, start: Option<Start>) -> Self {
        Self {
            _start: start,
            _place: place,
        }
    }
}

impl Origin {
    /// Returns the right to use a separate connection. An exchange that becomes a tunnel needs
    /// none: it may last without limit, and a queue behind tunnels might never move. The limit of
    /// streams bounds tunnels.
    pub(super) async fn permit(
        &self,
        exchange: &Exchange,
        key: &Key,
    ) -> Result<Option<Permit>, Error> {
        if exchange.request.protocol.is_some() {
            return Ok(None);
        }
        let (session, push) = (exchange.peer.session, exchange.priority.get().push);
        let place = self.places.try_take(session, &key.origin, push);
        let place = match (place, &self.starts) {
            (Some(place), None) => return Ok(Some(Permit::new(place, None))),
            (Some(place), Some(starts)) => match starts.try_take(push) {
                Some(start) => return Ok(Some(Permit::new(place, Some(start)))),
                None => Some(place),
            },
            (None, _) => None,
        };
        // Most exchanges need not wait, so the state of the wait is boxed.
        let wait = Box::pin(self.wait_for_permit(place, exchange, key));
        wait.await.map(Some)
    }

    /// Waits for the missing rights.
    async fn wait_for_permit(
        &self,
        place: Option<Place<Wanted>>,
        exchange: &Exchange,
        key: &Key,
    ) -> Result<Permit, Error> {
        let session = exchange.peer.session;
        let permit = async {
            let place = match place {
                Some(place) => place,
                None => {
                    with_precedence(&exchange.priority, |precedence| {
                        self.places.take(session, &key.origin, precedence)
                    })
                    .await
                }
            };
            let start = match &self.starts {
                None => None,
                Some(starts) => Some(
                    with_precedence(&exchange.priority, |precedence| {
                        starts.take(session, precedence)
                    })
                    .await,
                ),
            };
            Permit::new(place, start)
        };
        let busy = || {
            Error::new(
                Kind::Timeout,
                Side::Origin,
                "all connections to that origin are in use, and none got free",
            )
        };
        tokio::time::timeout(self.http1.response_timeout, permit)
            .await
            .map_err(|_| busy())
    }
}

/// Waits in a queue. A change of the precedence changes the place in the queue.
pub(in crate::back) async fn with_precedence<T, F: Future<Output = T>>(
    priority: &SharedPriority,
    take: impl Fn(Precedence) -> F,
) -> T {
    let mut priority = priority.watch();
    loop {
        let precedence = priority.get();
        tokio::select! {
            biased;
            _ = priority.changed() => {}
            taken = take(precedence) => return taken,
        }
    }
}
