//! Polite exchanges with origins, for a client that requests resources without a gateway.
//!
//! ```text
//!  exchange ─▶ place of its origin (`places`, limit from `growth`) ─▶ next stage ─▶ origin
//!      ▲                                                                  │
//!      └── again, over at most six connections ◀── 429, 503, reset ───────┘
//! ```
//!
//! A browser uses six connections to an origin. If the origin refuses one of more connections, the
//! limit falls, and the client repeats the request where that is harmless. The browser therefore
//! sees no refusal that it would not have met with six connections.
//!
//! A request that must not be repeated waits until the origin counts fewer than six (`hold`).
//!
//! An early request that no request of the browser waits for is never repeated. It ends if it makes
//! no progress, or if a request that must not be repeated has waited for its connection (`early`).
//! After a 429 or a 503 the origin gets no early requests for a while.

mod early;
mod growths;
mod hold;

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tandem_http::cache::{is_safe, unix_seconds};
use tandem_http::{ResponseHead, Scheme};

use self::early::EarlyRequests;
use self::growths::{FLOORS, Growths, MAX_ORIGINS};
use self::hold::{Hold, SentRequest};
use super::growth::{FLOOR, Growth, Pace, Refusal};
use super::origin::{ConnectionLimits, LimitsOfOrigin, Origin, ToOrigin, with_precedence};
use super::places::{Limits, Places};
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Reply, Sink};
use crate::expiring::ExpiringSet;
use crate::metrics::METRICS;
use crate::stage::Stage;
use crate::transport::Target;

/// The largest number of times that a refused request is repeated.
const MAX_REPEATS: usize = 2;

/// The largest rest of a refused response that is read, in bytes, so that its connection serves
/// other requests.
const MAX_REST: usize = 16 << 10;

/// The longest time for this. The rest mostly arrives with the head.
const REST_TIME: Duration = Duration::from_millis(250);

/// The time without a request after which surplus idle connections to an origin are closed.
const QUIET: Duration = Duration::from_secs(2);

/// A session and one of its origins.
type OriginKey = (u64, (Scheme, Target));

/// Closes the idle connections of a session to one origin above a number to keep.
pub type Trim = Box<dyn Fn(u64, &(Scheme, Target), usize)>;

/// Returns the number of requests that each connection to the origin of an exchange may carry.
pub type Depth = Box<dyn Fn(&Exchange) -> usize>;

/// The use of connections before the responses that they would otherwise wait for.
#[derive(Clone, Copy, Debug)]
pub struct Pipelining {
    /// True if a page opens connections for its resources.
    pub preconnects: bool,
}

/// The stage before the connections to origins.
pub struct Polite {
    state: Rc<PoliteState>,
}

struct PoliteState {
    next: Rc<dyn Stage>,
    places: Rc<Places<(Scheme, Target)>>,
    growths: Rc<Growths>,
    /// Closes the surplus idle connections of a session to an origin.
    trim: Trim,
    depth: Depth,
    /// The origins that are trimmed soon.
    trimmed_soon: ExpiringSet<OriginKey, MAX_ORIGINS>,
    early: Rc<EarlyRequests<OriginKey>>,
}

/// The result of an attempt at an exchange.
enum Attempt {
    Over(Result<(), Error>),
    /// The origin refused it, probably because of the number of connections.
    Refused,
}

impl Polite {
    /// Creates the stage before the connections of `origin`. A session uses at most `most`
    /// connections to one target, and at most `per_session` exchanges in total. Their number grows
    /// at `pace`. A connection may carry two requests at once with `pipelining`.
    pub fn before(
        origin: &Rc<Origin>,
        most: usize,
        per_session: usize,
        pace: Pace,
        pipelining: Option<Pipelining>,
    ) -> Self {
        let of = Rc::clone(origin);
        let trim: Trim = Box::new(move |session, target, keep| of.trim(session, target, keep));
        let of = Rc::clone(origin);
        let depth: Depth = Box::new(move |exchange| of.depth(exchange));
        let next = Rc::new(ToOrigin(Rc::clone(origin)));
        let polite = Self::new(next, most, per_session, pace, trim, depth);
        if let Some(Pipelining { preconnects }) = pipelining {
            let growths = Rc::downgrade(&polite.state.growths);
            let limits: LimitsOfOrigin = Box::new(move |session, target| {
                let growths = growths.upgrade();
                let key = (session, target.clone());
                let limits = growths.map_or(FLOORS, |growths| growths.connections(&key));
                ConnectionLimits {
                    ahead: if preconnects { limits.ahead } else { 0 },
                    dials_are_free: !preconnects,
                    ..limits
                }
            });
            origin.pipeline(limits);
        }
        polite
    }

    fn new(
        next: Rc<dyn Stage>,
        most: usize,
        per_session: usize,
        pace: Pace,
        trim: Trim,
        depth: Depth,
    ) -> Self {
        let growths = Rc::new(Growths::new(most, pace));
        let limits = Limits {
            per_origin: most,
            per_session,
            ..Limits::default()
        };
        let known = Rc::clone(&growths);
        let limit = move |session: u64, origin: &(Scheme, Target)| {
            known.exchanges(&(session, origin.clone()))
        };
        Self {
            state: Rc::new(PoliteState {
                next,
                places: Places::measured(limits, Box::new(limit)),
                growths,
                trim,
                depth,
                trimmed_soon: ExpiringSet::default(),
                early: Rc::default(),
            }),
        }
    }

    /// Forgets the origins of a session that has ended.
    pub fn end_session(&self, session: u64) {
        self.state.growths.end_session(session);
    }
}

impl Stage for Polite {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        // A tunnel or an upgrade may last without limit.
        if request.is_connect() || request.protocol.is_some() {
            return self.state.next.call(exchange);
        }
        let scheme = request.scheme;
        let target = split_authority(&request.authority, Some(scheme.default_port()));
        let key = match target {
            Ok((host, port)) => (exchange.peer.session, (scheme, Target::new(host, port))),
            Err(problem) => {
                return Reply::fail(Error::new(Kind::BadRequest, Side::Client, problem));
            }
        };
        let state = Rc::clone(&self.state);
        Reply::generate(|mut sink| async move { state.run(exchange, key, &mut sink).await })
    }
}

impl PoliteState {
    async fn run(
        self: Rc<Self>,
        exchange: Exchange,
        key: OriginKey,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let is_repeatable = is_safe(&exchange.request.method) && exchange.body.is_empty();
        let hold = (!is_repeatable).then(|| Hold::new(&self, &key));
        for repeats in 0.. {
            let may_repeat = is_repeatable && repeats < MAX_REPEATS;
            match self
                .attempt(&exchange, &key, hold.as_ref(), may_repeat, sink)
                .await
            {
                Attempt::Over(result) => {
                    drop(hold);
                    self.trim_soon(key);
                    return result;
                }
                Attempt::Refused => METRICS.exchanges_retried.add(1),
            }
        }
        Ok(())
    }

    async fn attempt(
        &self,
        exchange: &Exchange,
        key: &OriginKey,
        hold: Option<&Hold<'_>>,
        may_repeat: bool,
        sink: &mut Sink,
    ) -> Attempt {
        let (session, origin) = key;
        if self.places.taken_at(*session, origin) + 1 >= self.growths.exchanges(key) {
            self.growths.note(key, Growth::note_wait);
        }
        let place = with_precedence(&exchange.priority, |precedence| {
            self.places.take(*session, origin, precedence)
        });
        let _place = match hold {
            None => place.await,
            Some(hold) => hold.place(place).await,
        };
        if exchange.priority.get().push && self.growths.refuses_early(key) {
            return Attempt::Over(Err(early_refused()));
        }
        let was_crowded = self.is_crowded(key);
        let early = self.early.add(key, &exchange.priority, sink.canceller());
        let mut sent = SentRequest::new(&self.growths, key);
        let mut reply = self.next.call(Exchange {
            request: exchange.request.clone(),
            body: exchange.body.share(),
            isolation: exchange.isolation.clone(),
            peer: exchange.peer,
            priority: exchange.priority.clone(),
        });
        let (mut bytes, mut is_begun) = (0, false);
        loop {
            let part = match &early {
                None => reply.part().await,
                Some(early) => match early.part(&mut reply).await {
                    Ok(part) => part,
                    Err(ended) => return Attempt::Over(Err(ended)),
                },
            };
            sent.note(part.as_ref());
            if let Some(refusal) = refusal(part.as_ref()) {
                let is_for_number = !is_begun && (was_crowded || self.is_crowded(key));
                self.growths
                    .note(key, |growth, now| growth.note_refusal(now, refusal));
                let hidden = hidden_refusal(exchange, part.as_ref(), may_repeat);
                if let Some(hidden) = hidden.filter(|_| is_for_number) {
                    if matches!(part, Some(Ok(_))) {
                        read_rest(&mut reply, &mut sent).await;
                    }
                    return hidden;
                }
            }
            match part {
                Some(Ok(part)) => {
                    if let Part::Data(data) = &part {
                        bytes += data.len() as u64;
                    }
                    if matches!(part, Part::Head(_)) {
                        self.note_depth(exchange, key);
                    }
                    // Hints may come twice.
                    is_begun |= !matches!(part, Part::Hints(_));
                    sink.send(part).await;
                }
                Some(Err(error)) => return Attempt::Over(Err(at_origin(error))),
                None => break,
            }
        }
        let is_awaited = self.places.is_awaited(*session, origin);
        self.growths.note(key, |growth, now| {
            growth.note_response(now, bytes, is_awaited)
        });
        Attempt::Over(Ok(()))
    }

    /// Returns whether an origin serves more requests at once than it permits without measurement,
    /// or may have more connections. Idle ones count at the origin too.
    fn is_crowded(&self, key: &OriginKey) -> bool {
        self.places.taken_at(key.0, &key.1) > FLOOR || self.growths.connections(key).most > FLOOR
    }

    /// Closes surplus idle connections after a while, unless the origin is in use again.
    fn trim_soon(self: &Rc<Self>, key: OriginKey) {
        let is_idle = |this: &Self, key: &OriginKey| this.places.taken_at(key.0, &key.1) == 0;
        if !is_idle(self, &key) || self.trimmed_soon.contains(|| key.clone()) {
            return;
        }
        self.trimmed_soon.insert(key.clone(), QUIET);
        let this = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(QUIET).await;
            let Some(this) = this.upgrade() else { return };
            if is_idle(&this, &key) {
                (this.trim)(key.0, &key.1, FLOOR);
            }
        });
    }

    /// Learns from a response head whether requests to an origin may be pipelined.
    fn note_depth(&self, exchange: &Exchange, key: &OriginKey) {
        let depth = (self.depth)(exchange);
        self.growths
            .note(key, |growth, now| growth.set_depth(now, depth));
    }
}

/// Returns the error of an early request to an origin that refuses requests.
pub(super) fn early_refused() -> Error {
    let detail = "the origin has refused requests, so none is made early";
    Error::new(Kind::Busy, Side::Local, detail)
}

/// Returns the refusal that a part of a reply shows.
fn refusal(part: Option<&Result<Part, Error>>) -> Option<Refusal> {
    match part? {
        Ok(Part::Head(head)) if matches!(head.status, 429 | 503) => {
            Some(Refusal::Response(retry_after(head)))
        }
        Err(error) if is_refusal(error) => Some(Refusal::Connection),
        _ => None,
    }
}

/// Returns the end of an attempt that an origin refused because of the number of requests. `None`
/// means that the browser gets the refusal.
fn hidden_refusal(
    exchange: &Exchange,
    part: Option<&Result<Part, Error>>,
    may_repeat: bool,
) -> Option<Attempt> {
    if exchange.priority.get().push {
        // A request that joins later would otherwise get the refusal.
        return Some(Attempt::Over(Err(early_refused())));
    }
    // A request that has timed out would occupy the browser for as long again.
    let is_timeout = matches!(part, Some(Err(error)) if error.kind == Kind::Timeout);
    (may_repeat && !is_timeout).then_some(Attempt::Refused)
}

/// Reads the rest of a refused response, if it is short. A response that is dropped before its end
/// closes its connection to the origin.
async fn read_rest(reply: &mut Reply, sent: &mut SentRequest<'_>) {
    let rest = async {
        let mut bytes = 0;
        while bytes <= MAX_REST {
            let part = reply.part().await;
            sent.note(part.as_ref());
            match part {
                Some(Ok(Part::Data(data))) => bytes += data.len(),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            }
        }
    };
    // A rest that does not arrive in time costs the connection.
    let _ = tokio::time::timeout(REST_TIME, rest).await;
}

/// Returns the time that a response asks to wait (RFC 9110 section 10.2.3).
pub(super) fn retry_after(head: &ResponseHead) -> Duration {
    let Some(value) = head.fields.get("retry-after") else {
        return Duration::ZERO;
    };
    let seconds = std::str::from_utf8(value).ok().map(str::trim);
    let seconds = seconds.and_then(|text| text.parse().ok());
    let seconds = seconds.or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(unix_seconds(value)?.saturating_sub(now.as_secs()))
    });
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Returns whether an error may be the answer of an origin to too many connections. An error of the
/// proxy on the way concerns all origins.
const fn is_refusal(error: &Error) -> bool {
    !matches!(error.side, Side::Client | Side::Local | Side::Via)
        && matches!(
            error.kind,
            Kind::ConnectionRefused | Kind::Reset | Kind::Truncated | Kind::Timeout
        )
}

/// Names the origin as the other end of an error: the transport only knows the proxy on the way.
fn at_origin(error: Error) -> Error {
    match (error.side, error.kind) {
        (Side::Peer, Kind::ConnectionRefused) => Error {
            detail: "the site refused the connection, says the SOCKS proxy".into(),
            ..error.at(Side::Origin)
        },
        (Side::Peer, _) => error.at(Side::Origin),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
