//! The right to an exchange over a separate connection, and the wait for it.
//!
//! It consists of a place (`back::places`) and, at a reverse gateway, of a start (`back::starts`).

use super::{Origin, PoolKey, Wanted};
use crate::back::places::ConnectionPlace;
use crate::back::starts::{Running, Start};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Sink};
use crate::priority::{Precedence, SharedPriority};

/// The right to an exchange over a separate connection.
pub(super) struct Permit {
    _start: Option<Start>,
    _place: Option<ConnectionPlace<Wanted>>,
}

impl Permit {
    const fn new(place: ConnectionPlace<Wanted>, start: Option<Start>) -> Self {
        Self {
            _start: start,
            _place: Some(place),
        }
    }

    /// Creates the right of an exchange that becomes a tunnel.
    const fn of_tunnel(start: Start) -> Self {
        Self {
            _start: Some(start),
            _place: None,
        }
    }
}

/// An exchange that needs a permit.
struct Applicant<'a> {
    exchange: &'a Exchange,
    key: &'a PoolKey,
    running: Running,
}

impl Origin {
    /// Returns the right to use a separate connection. An exchange that becomes a tunnel waits for
    /// none: it may last without limit, and a queue behind tunnels might never move. The limit of
    /// streams bounds the tunnels of a session, and that of lasting exchanges those of all.
    pub(super) async fn permit(
        &self,
        exchange: &Exchange,
        key: &PoolKey,
        sink: &Sink,
    ) -> Result<Option<Permit>, Error> {
        let session = exchange.peer.session;
        let running = || Running {
            session,
            reply: sink.canceller(),
            body: exchange.body.progress(),
        };
        if exchange.request.is_connect() {
            let start = self.starts.as_ref().map(|starts| starts.enter(&running()));
            return Ok(start.map(Permit::of_tunnel));
        }
        let push = exchange.priority.get().push;
        let place = self.places.try_take(session, &key.origin, push);
        let (place, running) = match (place, &self.starts) {
            (Some(place), None) => return Ok(Some(Permit::new(place, None))),
            (Some(place), Some(starts)) => {
                let running = running();
                match starts.try_take(push, &running) {
                    Some(start) => return Ok(Some(Permit::new(place, Some(start)))),
                    None => (Some(place), running),
                }
            }
            (None, _) => (None, running()),
        };
        let applicant = Applicant {
            exchange,
            key,
            running,
        };
        // Most exchanges need not wait, so the state of the wait is boxed.
        let wait = Box::pin(self.wait_for_permit(place, applicant));
        wait.await.map(Some)
    }

    /// Waits for the missing rights.
    async fn wait_for_permit(
        &self,
        place: Option<ConnectionPlace<Wanted>>,
        applicant: Applicant<'_>,
    ) -> Result<Permit, Error> {
        let Applicant {
            exchange,
            key,
            running,
        } = applicant;
        let permit = async {
            let place = match place {
                Some(place) => place,
                None => {
                    with_precedence(&exchange.priority, |precedence| {
                        self.places.take(running.session, &key.origin, precedence)
                    })
                    .await
                }
            };
            let start = match &self.starts {
                None => None,
                Some(starts) => Some(
                    with_precedence(&exchange.priority, |precedence| {
                        starts.take(precedence, &running)
                    })
                    .await,
                ),
            };
            Permit::new(place, start)
        };
        tokio::time::timeout(self.protocols.http1.response_timeout, permit)
            .await
            .map_err(|_| all_in_use())
    }
}

/// Returns the error of an exchange that has waited for a connection too long.
pub(super) fn all_in_use() -> Error {
    let detail = "all connections to that origin are in use, and none got free";
    Error::new(Kind::Timeout, Side::Origin, detail)
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
