//! The reply to a request that the cache may serve.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tandem_cache::{Fetch, Lookup, Received, Stored, respond};
use tandem_http::cache::RequestPolicy;
use tandem_http::{Fields, ResponseHead};

use super::Session;
use super::asking::Asking;
use super::pump::Pump;
use super::status::CacheStatus;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Part, Parts, Reply};
use crate::metrics::METRICS;
use crate::priority::Precedence;
use crate::response_cache::Place;
use crate::response_cache::flight::{Flight, Phase, Piece};

/// The time that a request waits for the head of another response. A request whose fields make an
/// origin slow, or whose connection stalls, delays the others by this time at most.
const WAIT_FOR: Duration = Duration::from_secs(5);

/// The reply to one request.
pub(super) struct CachedReply {
    session: Rc<Session>,
    place: Place,
    exchange: Exchange,
    state: State,
    status: CacheStatus,
    /// The fleet was asked already.
    has_asked: bool,
}

enum State {
    /// The fleet may have the response.
    Asking(Asking),
    /// The response of the origin is under way.
    Fetching(Fetching),
    /// Another request for the same URL is under way. The reply waits until a point of time.
    Waiting(Reading, Pin<Box<tokio::time::Sleep>>),
    /// The parts of a response under way are passed on.
    Streaming(Reading),
    /// The stored response is passed on.
    Serving(Serving),
    /// The response of the origin is passed on.
    Direct(Reply),
    /// The reply has ended.
    Done,
}

/// A request to the origin, until its head.
struct Fetching {
    /// The reply of the origin; `None` once it was taken for another state.
    reply: Option<Reply>,
    fetch: Option<Box<Fetch>>,
    session: Rc<Session>,
    flight: Option<Arc<Flight>>,
}

/// The place of a reader in a flight.
pub(super) struct Reading {
    flight: Arc<Flight>,
    number: u64,
}

/// A stored response on its way.
struct Serving {
    head: Option<ResponseHead>,
    body: Box<dyn Iterator<Item = Bytes>>,
    trailers: Option<Fields>,
}

impl CachedReply {
    /// Decides about the request, and makes its reply.
    pub(super) fn reply(session: &Rc<Session>, place: Place, exchange: Exchange) -> Reply {
        let mut reply = Self {
            session: Rc::clone(session),
            place,
            exchange,
            state: State::Done,
            status: CacheStatus::default(),
            has_asked: false,
        };
        reply.decide(true);
        Reply::new(reply)
    }

    /// Looks the request up. Unless it `may_join`, it neither waits nor lets others wait.
    fn decide(&mut self, may_join: bool) {
        let cache = &self.session.cache;
        let token = || Arc::new(Flight::new());
        let lookup = cache.lock().lookup(
            cache.now(),
            &self.place.key,
            self.place.group.clone(),
            self.session.owner.user,
            &self.exchange.request,
            may_join.then_some(&token),
        );
        match lookup {
            Lookup::Hit(stored) => {
                METRICS.cache_hits.add(1);
                self.status = CacheStatus::hit(&stored, cache.now());
                self.serve(&stored);
            }
            Lookup::Stale(stored, fetch) => {
                METRICS.cache_hits.add(1);
                self.status = CacheStatus::hit(&stored, cache.now());
                self.serve(&stored);
                if let Some((fetch, flight)) = fetch {
                    self.revalidate(fetch, flight);
                }
            }
            Lookup::Join(flight) => {
                METRICS.cache_collapsed.add(1);
                self.status = CacheStatus::collapsed();
                let is_request = !self.exchange.priority.get().push;
                let limit = Box::pin(tokio::time::sleep(WAIT_FOR));
                self.state = State::Waiting(Reading::new(flight, is_request), limit);
            }
            Lookup::Fetch(fetch, flight) => self.ask_or_fetch(fetch, flight),
            Lookup::NotCached => {
                self.status = CacheStatus::only_if_cached();
                let mut head = ResponseHead::new(504);
                head.fields.push("content-length", "0");
                self.state = State::Serving(Serving::empty(head));
            }
        }
    }

    /// Returns the exchange for a request to the origin.
    fn exchange(&self) -> Exchange {
        Exchange {
            request: self.exchange.request.clone(),
            body: Body::empty(),
            isolation: self.exchange.isolation.clone(),
            peer: self.exchange.peer,
            priority: self.exchange.priority.clone(),
        }
    }

    /// Asks the fleet, at most once for a request, and otherwise the origin.
    fn ask_or_fetch(&mut self, fetch: Box<Fetch>, flight: Option<Arc<Flight>>) {
        let asked = match std::mem::replace(&mut self.has_asked, true) {
            true => Err((fetch, flight)),
            false => Asking::new(&self.session, fetch, flight),
        };
        match asked {
            Ok(asking) => self.state = State::Asking(asking),
            Err((fetch, flight)) => self.fetch(fetch, flight),
        }
    }

    fn poll_asking(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let State::Asking(asking) = &mut self.state else {
            return Poll::Pending;
        };
        let rest = ready!(asking.poll(cx));
        self.state = State::Done;
        match rest {
            Some((fetch, flight)) => self.fetch(fetch, flight),
            None => self.decide(true),
        }
        self.poll_state(cx)
    }

    fn fetch(&mut self, fetch: Box<Fetch>, flight: Option<Arc<Flight>>) {
        METRICS.cache_misses.add(1);
        self.status = CacheStatus::forwarded(fetch.reason());
        self.state = State::Fetching(Fetching::new(&self.session, self.exchange(), fetch, flight));
    }

    /// Validates a stale response that has served the request.
    fn revalidate(&self, fetch: Box<Fetch>, flight: Option<Arc<Flight>>) {
        let reply = Reply::new(Self {
            session: Rc::clone(&self.session),
            place: self.place.clone(),
            state: State::Fetching(Fetching::new(&self.session, self.exchange(), fetch, flight)),
            exchange: self.exchange(),
            status: CacheStatus::default(),
            has_asked: true,
        });
        tokio::task::spawn_local(drain(reply));
    }

    /// Serves a stored response, or asks the origin for a part that the store cannot make.
    fn serve(&mut self, stored: &Arc<Stored>) {
        let now = self.session.cache.now();
        let Some(response) = respond(stored, &self.exchange.request, now) else {
            self.state = State::Direct(self.session.next.call(self.exchange()));
            return;
        };
        METRICS.cache_bytes.add(response.end - response.start);
        self.state = State::Serving(Serving {
            body: Box::new(response.body(stored)),
            head: Some(response.head),
            trailers: response.trailers,
        });
    }

    /// Passes the head of the origin's response to the cache, and returns the part for the client.
    fn on_head(&mut self, mut fetching: Fetching, head: ResponseHead) -> Option<Part> {
        let cache = Arc::clone(&self.session.cache);
        let fetch = fetching.fetch.take()?;
        let received = cache.lock().receive(cache.now(), &fetch, &head);
        let flight = fetching.flight.take();
        let is_stored = matches!(received, Received::Store(_));
        self.status.received(head.status, is_stored);
        match received {
            Received::Stored(stored) => {
                METRICS.cache_validations.add(u64::from(head.status == 304));
                cache.end_flight(&fetch);
                set_phase(flight, Phase::Stored(Arc::clone(&stored)));
                if head.status == 304 {
                    // The end of the response releases its connection.
                    let reply = fetching.take_reply();
                    tokio::task::spawn_local(drain(reply));
                }
                self.serve(&stored);
                None
            }
            Received::Own(stored) => {
                METRICS.cache_validations.add(1);
                cache.end_flight(&fetch);
                set_phase(flight, Phase::Released { alone: true });
                let reply = fetching.take_reply();
                tokio::task::spawn_local(drain(reply));
                self.serve(&stored);
                None
            }
            Received::Store(pending) => {
                let flight = flight.unwrap_or_default();
                let reading = Reading::new(Arc::clone(&flight), false);
                flight.set_phase(Phase::Streaming(Arc::clone(pending.entry())));
                let reply = fetching.take_reply();
                Pump::start(&self.session, &flight, fetch, pending, reply);
                self.state = State::Streaming(reading);
                Some(Part::Head(head))
            }
            Received::Pass => {
                cache.end_flight(&fetch);
                set_phase(flight, Phase::Released { alone: true });
                self.state = State::Direct(fetching.take_reply());
                Some(Part::Head(head))
            }
            Received::Again => {
                cache.end_flight(&fetch);
                set_phase(flight, Phase::Released { alone: true });
                self.state = State::Direct(self.session.next.call(self.exchange()));
                None
            }
        }
    }

    /// Handles the failure of a request before its head. A stale response may serve instead.
    fn on_failure(&mut self, mut fetching: Fetching, error: Error) -> Option<Error> {
        let cache = Arc::clone(&self.session.cache);
        let fetch = fetching.fetch.take()?;
        cache.end_flight(&fetch);
        let flight = fetching.flight.take();
        let stale = cache
            .lock()
            .fail(cache.now(), &fetch)
            .filter(|_| error.side == Side::Origin && error.kind != Kind::Forbidden);
        match stale {
            Some(stored) => {
                set_phase(flight, Phase::Stored(Arc::clone(&stored)));
                self.serve(&stored);
                None
            }
            None => {
                set_phase(flight, Phase::Released { alone: true });
                Some(error)
            }
        }
    }

    fn poll_fetching(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let State::Fetching(fetching) = &mut self.state else {
            return Poll::Pending;
        };
        if let Some(flight) = &fetching.flight
            && flight.poll_raised(cx)
            && self.exchange.priority.get().push
        {
            self.exchange.priority.set(Precedence::default());
        }
        let Some(reply) = &mut fetching.reply else {
            return Poll::Ready(None);
        };
        let part = ready!(reply.poll_part(cx));
        let State::Fetching(fetching) = std::mem::replace(&mut self.state, State::Done) else {
            return Poll::Pending;
        };
        match part {
            Some(Ok(Part::Head(head))) => match self.on_head(fetching, head) {
                Some(part) => Poll::Ready(Some(Ok(part))),
                None => self.poll_part(cx),
            },
            Some(Ok(part)) => {
                self.state = State::Fetching(fetching);
                Poll::Ready(Some(Ok(part)))
            }
            Some(Err(error)) => match self.on_failure(fetching, error) {
                Some(error) => Poll::Ready(Some(Err(error))),
                None => self.poll_part(cx),
            },
            None => Poll::Ready(None),
        }
    }

    /// Returns true if a response that another request validated, or that serves in place of an
    /// error, may serve this request too.
    fn accepts(&self, stored: &Stored) -> bool {
        let fields = &self.exchange.request.fields;
        let is_fresh = !stored.remaining(self.session.cache.now()).is_zero();
        stored.fits(fields) && (is_fresh || RequestPolicy::of(fields).accepts_revalidation_later())
    }

    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let State::Waiting(reading, limit) = &mut self.state else {
            return Poll::Pending;
        };
        let phase = match reading.flight.poll_phase(reading.number, cx) {
            Poll::Ready(phase) => phase,
            Poll::Pending => {
                ready!(limit.as_mut().poll(cx));
                Phase::Waiting
            }
        };
        let State::Waiting(reading, _) = std::mem::replace(&mut self.state, State::Done) else {
            return Poll::Pending;
        };
        match phase {
            Phase::Streaming(entry)
                if entry.serves_waiting(&self.exchange.request, self.session.cache.now()) =>
            {
                self.state = State::Streaming(reading);
                return Poll::Ready(Some(Ok(Part::Head(entry.head.clone()))));
            }
            Phase::Stored(stored) if self.accepts(&stored) => self.serve(&stored),
            Phase::Released { alone: false } => self.decide(true),
            _ => self.decide(false),
        }
        self.poll_part(cx)
    }
}

pub(super) fn set_phase(flight: Option<Arc<Flight>>, phase: Phase) {
    if let Some(flight) = flight {
        flight.set_phase(phase);
    }
}

async fn drain(mut reply: Reply) {
    while let Some(Ok(_)) = reply.part().await {}
}

impl Parts for CachedReply {
    fn below(&self) -> Option<&Reply> {
        match &self.state {
            State::Fetching(fetching) => fetching.reply.as_ref(),
            State::Direct(reply) => Some(reply),
            State::Asking(_)
            | State::Waiting(..)
            | State::Streaming(_)
            | State::Serving(_)
            | State::Done => None,
        }
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.poll_state(cx);
        if self.session.tells_status
            && let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part
        {
            self.status.tell(&mut head.fields);
        }
        part
    }
}

impl CachedReply {
    fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        match &mut self.state {
            State::Asking(_) => self.poll_asking(cx),
            State::Fetching(_) => self.poll_fetching(cx),
            State::Waiting(..) => self.poll_waiting(cx),
            State::Streaming(reading) => reading.poll_part(cx),
            State::Serving(serving) => Poll::Ready(serving.next().map(Ok)),
            State::Direct(reply) => reply.poll_part(cx),
            State::Done => Poll::Ready(None),
        }
    }
}

impl Fetching {
    fn new(
        session: &Rc<Session>,
        mut exchange: Exchange,
        fetch: Box<Fetch>,
        flight: Option<Arc<Flight>>,
    ) -> Self {
        exchange.request = Arc::new(fetch.request());
        Self {
            reply: Some(session.next.call(exchange)),
            fetch: Some(fetch),
            session: Rc::clone(session),
            flight,
        }
    }

    fn take_reply(&mut self) -> Reply {
        // The state ends with its reply, so nothing takes it twice.
        self.reply.take().expect("the reply of this state")
    }
}

/// A request that is given up lets those that wait decide again.
impl Drop for Fetching {
    fn drop(&mut self) {
        if let Some(fetch) = self.fetch.take() {
            self.session.cache.end_flight(&fetch);
            set_phase(self.flight.take(), Phase::Released { alone: false });
        }
    }
}

impl Reading {
    pub(super) fn new(flight: Arc<Flight>, is_request: bool) -> Self {
        let number = flight.join(is_request);
        Self { flight, number }
    }
}

/// The parts behind the head.
impl Parts for Reading {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let piece = ready!(self.flight.poll_piece(self.number, cx));
        Poll::Ready(piece.map(|piece| {
            piece.map(|piece| match piece {
                Piece::Data(data) => Part::Data(data),
                Piece::Trailers(trailers) => Part::Trailers(trailers),
            })
        }))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.flight.leave(self.number);
    }
}

impl Serving {
    fn empty(head: ResponseHead) -> Self {
        Self {
            head: Some(head),
            body: Box::new(std::iter::empty()),
            trailers: None,
        }
    }

    fn next(&mut self) -> Option<Part> {
        if let Some(head) = self.head.take() {
            return Some(Part::Head(head));
        }
        let data = self.body.next().map(Part::Data);
        data.or_else(|| self.trailers.take().map(Part::Trailers))
    }
}
