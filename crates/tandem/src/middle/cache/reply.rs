//! The reply to a request that the cache may serve.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_cache::{Fetch, Lookup, Reason, Received, Stored, respond};
use tandem_http::ResponseHead;
use tandem_http::cache::RequestPolicy;

use super::CacheSession;
use super::asking::{AskedPlace, Asking, Led};
use super::pump::ResponsePump;
use super::reading::{FlightReading, ServedResponse};
use super::status::CacheStatus;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Part, Parts, Reply, StaleResponse, Supply};
use crate::metrics::METRICS;
use crate::priority::Precedence;
use crate::response_cache::CacheAddress;
use crate::response_cache::flight::{Flight, FlightPhase};

/// The time that a request waits for the head of another response. A request whose fields make an
/// origin slow, or whose connection stalls, delays the others by this time at most.
const WAIT_FOR: Duration = Duration::from_secs(5);

/// The length of a stored body above which its reading can end before the client leaves, if the
/// client takes no bytes and the memory is short. A session queues shorter ones as a whole. A
/// range counts as its body, which it keeps in memory.
const LONG: u64 = 128 << 10;

/// The reply to one request.
pub(super) struct CachedReply {
    session: Rc<CacheSession>,
    place: CacheAddress,
    exchange: Exchange,
    state: ReplyState,
    status: CacheStatus,
    /// The next place to ask before the origin.
    source: Option<AskedPlace>,
    /// The way on which the response comes, once its head has come.
    supply: Supply,
}

enum ReplyState {
    /// The disk or the fleet may have the response.
    Asking(Asking),
    /// The response of the origin is under way.
    Fetching(Fetching),
    /// Another request for the same URL is under way. The reply waits until a point of time.
    Waiting(FlightReading, Pin<Box<tokio::time::Sleep>>),
    /// The parts of a response under way are passed on.
    Streaming(FlightReading),
    /// The stored response is passed on.
    Serving(ServedResponse),
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
    session: Rc<CacheSession>,
    flight: Option<Arc<Flight>>,
}

impl CachedReply {
    /// Decides about the request, and makes its reply.
    pub(super) fn reply(
        session: &Rc<CacheSession>,
        place: CacheAddress,
        exchange: Exchange,
    ) -> Reply {
        let mut reply = Self {
            session: Rc::clone(session),
            place,
            exchange,
            state: ReplyState::Done,
            status: CacheStatus::default(),
            source: Some(AskedPlace::Disk),
            supply: Supply::default(),
        };
        reply.decide(true);
        Reply::new(reply)
    }

    /// Looks the request up. Unless it `may_join`, it neither waits nor lets others wait.
    fn decide(&mut self, may_join: bool) {
        let cache = &self.session.cache;
        let token = || Arc::new(Flight::new());
        let mut locked = cache.lock();
        let lookup = locked.lookup(
            cache.now(),
            &self.place.key,
            self.place.group.clone(),
            self.session.owner.user,
            &self.exchange.request,
            may_join.then_some(&token),
        );
        // A flight that is still in the cache has all its pieces.
        let joined = match &lookup {
            Lookup::Join(flight) => Some(FlightReading::new(Arc::clone(flight))),
            _ => None,
        };
        drop(locked);
        match lookup {
            Lookup::Hit(stored) => self.serve_found(&stored),
            Lookup::Stale(stored, fetch) => {
                self.serve_found(&stored);
                if let Some((fetch, flight)) = fetch {
                    self.revalidate(fetch, flight);
                }
            }
            Lookup::Join(flight) => {
                METRICS.cache_collapsed.add(1);
                self.status = CacheStatus::collapsed();
                if !self.exchange.priority.get().push {
                    flight.raise();
                }
                let limit = Box::pin(tokio::time::sleep(WAIT_FOR));
                if let Some(reading) = joined {
                    self.state = ReplyState::Waiting(reading, limit);
                }
            }
            Lookup::Fetch(fetch, flight) => self.ask_or_fetch((fetch, flight)),
            Lookup::NotCached => {
                self.status = CacheStatus::only_if_cached();
                let mut head = ResponseHead::new(504);
                head.fields.push("content-length", "0");
                self.state = ReplyState::Serving(ServedResponse::empty(head));
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

    /// Asks the disk and then the fleet, each at most once for a request, and at last the origin.
    fn ask_or_fetch(&mut self, mut led: Led) {
        while let Some(source) = self.source {
            self.source = source.next();
            match Asking::new(&self.session, source, led) {
                Ok(asking) => {
                    self.state = ReplyState::Asking(asking);
                    return;
                }
                Err(rest) => led = rest,
            }
        }
        self.fetch(led.0, led.1);
    }

    fn poll_asking(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let ReplyState::Asking(asking) = &mut self.state else {
            return Poll::Pending;
        };
        let rest = ready!(asking.poll(cx));
        let source = asking.source();
        self.state = ReplyState::Done;
        match rest {
            Some(led) => self.ask_or_fetch(led),
            None => {
                self.decide(true);
                if source == AskedPlace::Disk {
                    self.status.note_disk();
                }
            }
        }
        self.poll_state(cx)
    }

    fn fetch(&mut self, fetch: Box<Fetch>, flight: Option<Arc<Flight>>) {
        METRICS.cache_misses.add(1);
        self.status = CacheStatus::forwarded(fetch.reason());
        self.state =
            ReplyState::Fetching(Fetching::new(&self.session, self.exchange(), fetch, flight));
    }

    /// Validates a stale response that has served the request.
    fn revalidate(&self, fetch: Box<Fetch>, flight: Option<Arc<Flight>>) {
        let reply = Reply::new(Self {
            session: Rc::clone(&self.session),
            place: self.place.clone(),
            state: ReplyState::Fetching(Fetching::new(
                &self.session,
                self.exchange(),
                fetch,
                flight,
            )),
            exchange: self.exchange(),
            status: CacheStatus::default(),
            source: None,
            supply: Supply::default(),
        });
        tokio::task::spawn_local(drain(reply));
    }

    /// Serves a stored response that was found. It is no hit if only the origin can make the part
    /// that the request wants.
    fn serve_found(&mut self, stored: &Arc<Stored>) {
        self.serve(stored);
        if matches!(self.state, ReplyState::Direct(_)) {
            METRICS.cache_misses.add(1);
            self.status = CacheStatus::forwarded(Reason::Request);
            return;
        }
        METRICS.cache_hits.add(1);
        self.status = CacheStatus::hit(stored, self.session.cache.now());
        self.supply = Supply::Stored;
    }

    /// Serves a stored response, or asks the origin for a part that the store cannot make.
    fn serve(&mut self, stored: &Arc<Stored>) {
        let now = self.session.cache.now();
        let Some(response) = respond(stored, &self.exchange.request, now) else {
            self.state = ReplyState::Direct(self.session.next.call(self.exchange()));
            return;
        };
        let (body, range) = (response.body(stored), (response.start, response.end));
        METRICS.cache_bytes.add(range.1 - range.0);
        let mut served = ServedResponse::empty(response.head);
        if stored.body.len() > LONG && range.0 < range.1 {
            let flight = Flight::of_stored(stored.body.clone(), range, response.trailers);
            let flight = Arc::new(flight);
            self.session.cache.note_complete(&flight);
            served.rest = Some(FlightReading::new(flight));
        } else {
            served.body = Box::new(body);
            served.trailers = response.trailers;
        }
        self.state = ReplyState::Serving(served);
    }

    /// Serves a stored response after the origin's response. One that the origin has confirmed has
    /// an age only if a cache before this one tells it: `Age` means that a response was not
    /// validated for its request (RFC 9111 section 5.1).
    fn serve_received(&mut self, stored: &Arc<Stored>, received: &ResponseHead) {
        self.serve(stored);
        if received.status == 304
            && !received.fields.contains("age")
            && let ReplyState::Serving(served) = &mut self.state
            && let Some(head) = &mut served.head
        {
            head.fields.remove("age");
        }
    }

    /// Passes the head of the origin's response to the cache, and returns the part for the client.
    fn on_head(&mut self, mut fetching: Fetching, head: ResponseHead) -> Option<Part> {
        let cache = Arc::clone(&self.session.cache);
        let fetch = fetching.fetch.take()?;
        self.session.clear_if_told(&self.exchange.request, &head);
        if let Some(reply) = &fetching.reply {
            self.supply = reply.supply();
        }
        cache.make_room();
        let received = cache.lock().receive(cache.now(), &fetch, &head);
        let flight = fetching.flight.take();
        if !matches!(received, Received::Store(_)) {
            self.status.received(head.status, false);
        }
        match received {
            Received::Stored(stored) => {
                METRICS.cache_validations.add(u64::from(head.status == 304));
                cache.end_flight(&fetch);
                set_phase(flight, FlightPhase::Stored(Arc::clone(&stored)));
                if head.status == 304 {
                    // The end of the response releases its connection.
                    let reply = fetching.take_reply();
                    tokio::task::spawn_local(drain(reply));
                }
                self.serve_received(&stored, &head);
                None
            }
            Received::Own(stored) => {
                METRICS.cache_validations.add(1);
                cache.end_flight(&fetch);
                set_phase(flight, FlightPhase::Released { alone: true });
                let reply = fetching.take_reply();
                tokio::task::spawn_local(drain(reply));
                self.serve_received(&stored, &head);
                None
            }
            Received::Store(pending) => {
                let flight = flight.unwrap_or_default();
                let reading = FlightReading::new(Arc::clone(&flight));
                flight.set_phase(FlightPhase::Streaming(Arc::clone(pending.entry())));
                let reply = fetching.take_reply();
                let is_kept = ResponsePump::start(&self.session, &flight, fetch, pending, reply);
                self.status.received(head.status, is_kept);
                self.state = ReplyState::Streaming(reading);
                Some(Part::Head(head))
            }
            Received::Pass => {
                cache.end_flight(&fetch);
                set_phase(flight, FlightPhase::Released { alone: true });
                self.state = ReplyState::Direct(fetching.take_reply());
                Some(Part::Head(head))
            }
            Received::Again => {
                cache.end_flight(&fetch);
                set_phase(flight, FlightPhase::Released { alone: true });
                self.state = ReplyState::Direct(self.session.next.call(self.exchange()));
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
                set_phase(flight, FlightPhase::Stored(Arc::clone(&stored)));
                self.serve(&stored);
                None
            }
            None => {
                set_phase(flight, FlightPhase::Released { alone: true });
                Some(error)
            }
        }
    }

    fn poll_fetching(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let ReplyState::Fetching(fetching) = &mut self.state else {
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
        let ReplyState::Fetching(fetching) = std::mem::replace(&mut self.state, ReplyState::Done)
        else {
            return Poll::Pending;
        };
        match part {
            Some(Ok(Part::Head(head))) => match self.on_head(fetching, head) {
                Some(part) => Poll::Ready(Some(Ok(part))),
                None => self.poll_part(cx),
            },
            Some(Ok(part)) => {
                self.state = ReplyState::Fetching(fetching);
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
        let ReplyState::Waiting(reading, limit) = &mut self.state else {
            return Poll::Pending;
        };
        let phase = match reading.flight.poll_phase(reading.number, cx) {
            Poll::Ready(phase) => phase,
            Poll::Pending => {
                ready!(limit.as_mut().poll(cx));
                // Otherwise each further visitor would wait as long.
                let (cache, key) = (&self.session.cache, &self.place.key);
                let is_same = |flight: &Arc<Flight>| Arc::ptr_eq(flight, &reading.flight);
                cache.lock().give_up_flight(cache.now(), key, is_same);
                FlightPhase::Waiting
            }
        };
        let ReplyState::Waiting(reading, _) = std::mem::replace(&mut self.state, ReplyState::Done)
        else {
            return Poll::Pending;
        };
        match phase {
            FlightPhase::Streaming(entry)
                if entry.serves_waiting(&self.exchange.request, self.session.cache.now()) =>
            {
                self.state = ReplyState::Streaming(reading);
                return Poll::Ready(Some(Ok(Part::Head(entry.head.clone()))));
            }
            FlightPhase::Stored(stored) if self.accepts(&stored) => self.serve(&stored),
            FlightPhase::Released { alone: false } => self.decide(true),
            _ => self.decide(false),
        }
        self.poll_part(cx)
    }
}

pub(super) fn set_phase(flight: Option<Arc<Flight>>, phase: FlightPhase) {
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
            ReplyState::Fetching(fetching) => fetching.reply.as_ref(),
            ReplyState::Direct(reply) => Some(reply),
            ReplyState::Asking(_)
            | ReplyState::Waiting(..)
            | ReplyState::Streaming(_)
            | ReplyState::Serving(_)
            | ReplyState::Done => None,
        }
    }

    fn supply(&self) -> Supply {
        match &self.state {
            ReplyState::Direct(reply) => reply.supply(),
            _ => self.supply,
        }
    }

    fn stale_response(&self) -> Option<StaleResponse> {
        let fetch = match &self.state {
            ReplyState::Fetching(fetching) => fetching.fetch.as_deref(),
            ReplyState::Asking(asking) => asking.fetch(),
            _ => None,
        };
        let stored = fetch?.stale()?;
        let (session, isolation) = (Rc::clone(&self.session), self.exchange.isolation.clone());
        Some(StaleResponse {
            head: stored.head.clone(),
            body: Box::new(stored.body.slice(0, stored.body.len())),
            is_fresh: Box::new(move |request| session.holds_fresh(request, &isolation)),
        })
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.poll_state(cx);
        if self.session.tells_status
            && let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part
        {
            self.status.tell(self.session.name(), &mut head.fields);
        }
        part
    }
}

impl CachedReply {
    fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        match &mut self.state {
            ReplyState::Asking(_) => self.poll_asking(cx),
            ReplyState::Fetching(_) => self.poll_fetching(cx),
            ReplyState::Waiting(..) => self.poll_waiting(cx),
            ReplyState::Streaming(reading) => reading.poll_part(cx),
            ReplyState::Serving(serving) => {
                if serving.head.is_none()
                    && let Some(reading) = serving.rest.take()
                {
                    self.state = ReplyState::Streaming(reading);
                    return self.poll_state(cx);
                }
                Poll::Ready(serving.next().map(Ok))
            }
            ReplyState::Direct(reply) => reply.poll_part(cx),
            ReplyState::Done => Poll::Ready(None),
        }
    }
}

impl Fetching {
    fn new(
        session: &Rc<CacheSession>,
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
            set_phase(self.flight.take(), FlightPhase::Released { alone: false });
        }
    }
}
