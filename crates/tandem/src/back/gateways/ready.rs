//! Preparation before the first request: opening a session, announcing it, and warming it up.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tandem_http::Priority;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Gateways;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Reply};
use crate::priority::{Precedence, SharedPriority};
use crate::session::Connected;
use crate::warm_up::{self, Amount, Arrivals, FILLER, Rounds};

/// The longest time for a round. A path that needs longer has no capacity to spare.
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// The time after which the log says that a gateway has not answered yet.
const TELL_AFTER: Duration = Duration::from_secs(4);
/// The first and the longest pause before another attempt at a gateway that did not answer.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Gateways {
    /// Opens the session for requests without a key before the first request, and makes the gateway
    /// send filler bytes on it. The log soon shows the outcome. With
    /// [`reconnect`](super::PoolLimits::reconnect) the pool tries again after a failure and after
    /// the gateway has closed the session.
    pub fn preconnect(self: &Rc<Self>, warm_up: Amount) {
        let (this, reconnect) = (Rc::downgrade(self), self.limits.reconnect);
        tokio::task::spawn_local(async move {
            let mut pause = FIRST_PAUSE;
            while let Some(pool) = this.upgrade().filter(|pool| !pool.draining.get()) {
                let (done, session) = pool.try_ahead(warm_up).await;
                let closed = match (done, session) {
                    (Ok(()), Some(session)) => session.ended(),
                    (Ok(()), None) => return,
                    (Err(error), _) => {
                        tracing::debug!(%error, "no gateway answers yet");
                        Box::pin(std::future::ready(Some(error)))
                    }
                };
                drop(pool);
                let begun = Instant::now();
                let closed = closed.await;
                let Some(pool) = this.upgrade().filter(|_| reconnect) else {
                    return;
                };
                // A session by a better way may have replaced this one.
                let none = Isolation::none();
                let replaced = pool.is_open(&none, pool.preferred(&none));
                drop(pool);
                if closed.is_none() && !replaced {
                    return;
                }
                if begun.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        });
    }

    /// Opens the session without a key and finds out whether the gateway admits it. Also returns
    /// the session if it is open.
    async fn try_ahead(
        self: &Rc<Self>,
        warm_up: Amount,
    ) -> (Result<(), Error>, Option<Rc<dyn Connected>>) {
        let first = &self.gateways[self.preferred(&Isolation::none())];
        let trying = async {
            match warm_up {
                Amount::Bytes(0) if first.has_token => self.fill(0, || ()).await.map(|_| ()),
                Amount::Bytes(0) => match self.establish(&Isolation::none()).await {
                    // A gateway keeps a session only after it has admitted a request.
                    Ok(()) => self.fill(0, || ()).await.map(|_| ()),
                    failed => failed,
                },
                amount => self.warm_up(amount).await,
            }
        };
        let mut trying = std::pin::pin!(trying);
        let done = match tokio::time::timeout(TELL_AFTER, &mut trying).await {
            Ok(done) => done,
            Err(_) => {
                first.announcer.waiting(TELL_AFTER);
                trying.await
            }
        };
        (done, self.session_without_key())
    }

    /// Returns the session for requests without a key by the preferred way, if it is open.
    fn session_without_key(&self) -> Option<Rc<dyn Connected>> {
        let none = Isolation::none();
        let preferred = self.preferred(&none);
        let slots = self.slots.borrow();
        let slot = slots.get(&(none, preferred));
        slot.map(|slot| Rc::clone(&slot.current))
    }

    /// Requests filler bytes in rounds, and then sends some. The warm-up ends early at a request,
    /// and when the path has no more capacity.
    async fn warm_up(self: &Rc<Self>, amount: Amount) -> Result<(), Error> {
        let mut rounds = Rounds::new(amount);
        while let Some(asked) = rounds.next_bytes().filter(|_| !self.draining.get()) {
            let begun = Instant::now();
            let filling = self.fill_round(asked, begun, rounds.arrivals());
            let Ok(filled) = tokio::time::timeout(ROUND_LIMIT, filling).await else {
                return Ok(());
            };
            let (came, arrivals) = filled?;
            if came < asked {
                return Ok(());
            }
            if !rounds.end_round(asked, begun.elapsed(), arrivals) {
                break;
            }
        }
        // Other congestion controls forget the rate while the session is idle.
        let facts = self
            .session_without_key()
            .and_then(|session| session.facts());
        if facts.is_some_and(|facts| facts.is_over_bbr()) {
            self.warm_up_uplink(rounds.uplink()).await;
        }
        Ok(())
    }

    /// Sends filler bytes in rounds. The requests of a page leave within a few milliseconds, each
    /// in a packet of its own, and TCP sends ten packets in the first round trip. Each round
    /// requests one byte, which the gateway does not send after a request for an origin.
    async fn warm_up_uplink(self: &Rc<Self>, mut rounds: Rounds) {
        while let Some(bytes) = rounds.next_bytes().filter(|_| !self.draining.get()) {
            let begun = Instant::now();
            let mut exchange = warm_up_exchange(1);
            exchange.body = Body::new(Filler(bytes), Some(bytes));
            let sending = self.read_filler(exchange, || ());
            // A failure concerns these bytes only. The session has shown that it works.
            let Ok(Ok(1)) = tokio::time::timeout(ROUND_LIMIT, sending).await else {
                break;
            };
            if !rounds.end_round(bytes, begun.elapsed(), rounds.arrivals()) {
                break;
            }
        }
    }

    /// Opens the session of a key, and resolves once the gateway has admitted it.
    ///
    /// # Errors
    /// Fails if nothing answers, if the gateway does not admit the client, or if a server of another
    /// kind answers.
    pub async fn prepare(self: &Rc<Self>, isolation: &Isolation) -> Result<(), Error> {
        self.establish(isolation).await?;
        let mut reply = self.filler(Exchange {
            isolation: isolation.clone(),
            ..warm_up_exchange(0)
        });
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(head) if head.status == 407 => return Err(super::unauthorized(false)),
                Part::Head(head) if head.status != 200 => {
                    let detail = "it does not answer as a gateway does";
                    return Err(Error::new(Kind::Protocol, Side::Peer, detail));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs one round, which begins at `begun`, over several streams if it is long. Returns the
    /// number of received bytes and their arrivals.
    async fn fill_round(
        self: &Rc<Self>,
        bytes: u64,
        begun: Instant,
        arrivals: Arrivals,
    ) -> Result<(u64, Arrivals), Error> {
        let arrivals = Rc::new(Cell::new(arrivals));
        let mut fills = JoinSet::new();
        for part in warm_up::parts(bytes) {
            let (pool, arrivals) = (Rc::clone(self), Rc::clone(&arrivals));
            let note = move || {
                let mut noted = arrivals.get();
                noted.note(begun.elapsed());
                arrivals.set(noted);
            };
            fills.spawn_local(async move { pool.fill(part, note).await });
        }
        let mut came = 0;
        while let Some(filled) = fills.join_next().await {
            // A fill that panicked brought nothing.
            came += filled.unwrap_or(Ok(0))?;
        }
        Ok((came, arrivals.get()))
    }

    /// Requests filler bytes on one stream, and returns the number of received bytes. Calls
    /// `on_data` when some arrive.
    async fn fill(self: &Rc<Self>, bytes: u64, on_data: impl Fn()) -> Result<u64, Error> {
        self.read_filler(warm_up_exchange(bytes), on_data).await
    }

    /// Makes a request for filler bytes, and returns the number of received ones.
    async fn read_filler(
        self: &Rc<Self>,
        exchange: Exchange,
        on_data: impl Fn(),
    ) -> Result<u64, Error> {
        let mut reply = self.filler(exchange);
        let mut came = 0;
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(head) if head.status == 407 => {
                    let gateway = &self.gateways[self.preferred(&Isolation::none())];
                    let error = super::unauthorized(gateway.has_token);
                    gateway.announcer.down(&error);
                    return Err(error);
                }
                Part::Data(data) => {
                    came += data.len() as u64;
                    on_data();
                }
                _ => {}
            }
        }
        Ok(came)
    }

    /// Makes a request for filler bytes on the session of its key.
    fn filler(self: &Rc<Self>, mut exchange: Exchange) -> Reply {
        let pool = Rc::clone(self);
        Reply::generate(
            move |mut sink| async move { pool.try_gateways(&mut exchange, &mut sink).await },
        )
    }

    /// Prepares the transport to the first gateway before the first request, because some
    /// transports need time to find a way.
    pub fn get_ready(&self) {
        if let Some(gateway) = self.gateways.first().cloned() {
            tokio::task::spawn_local(
                async move { gateway.transport.get_ready(&gateway.target).await },
            );
        }
    }
}

/// A body of this number of filler bytes.
struct Filler(u64);

impl Chunks for Filler {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let bytes = &FILLER[..FILLER.len().min(self.0 as usize)];
        self.0 -= bytes.len() as u64;
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Chunk::Data(Bytes::from_static(bytes)))))
    }
}

/// Returns the request for `bytes` filler bytes.
fn warm_up_exchange(bytes: u64) -> Exchange {
    Exchange {
        priority: SharedPriority::new(Precedence::request(Priority(7))),
        ..Exchange::internal(warm_up::request(bytes))
    }
}

/// Shows the token on a new session, so that its gateway keeps the session until requests arrive.
pub(super) async fn introduce(session: Rc<dyn Connected>) -> Result<(), Error> {
    let mut exchange = warm_up_exchange(0);
    let mut reply =
        Reply::generate(move |mut sink| async move { session.run(&mut exchange, &mut sink).await });
    while let Some(part) = reply.part().await {
        part?;
    }
    Ok(())
}
