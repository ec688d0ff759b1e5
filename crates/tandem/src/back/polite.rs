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

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use tandem_http::Scheme;
use tandem_http::cache::is_safe;
use tokio::time::Instant;

use super::growth::{FLOOR, Growth};
use super::origin::{Origin, ToOrigin, with_precedence};
use super::places::{Limits, Places};
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Reply, Sink};
use crate::metrics::METRICS;
use crate::stage::Stage;
use crate::transport::Target;

/// The largest number of times that a refused request is repeated.
const MAX_REPEATS: usize = 2;

/// The number of origins above which forgettable ones are removed.
const MAX_ORIGINS: usize = 1024;

/// The time without a request after which surplus idle connections to an origin are closed.
const QUIET: Duration = Duration::from_secs(2);

/// A session and one of its origins.
type Key = (u64, (Scheme, Target));

/// Closes the idle connections of a session to one origin above a number to keep.
pub type Trim = Box<dyn Fn(u64, &(Scheme, Target), usize)>;

/// The stage before the connections to origins.
pub struct Polite {
    state: Rc<State>,
}

struct State {
    next: Rc<dyn Stage>,
    places: Rc<Places<(Scheme, Target)>>,
    growths: Rc<RefCell<HashMap<Key, Growth>>>,
    /// The largest limit of connections to one origin.
    most: usize,
    /// Closes the surplus idle connections of a session to an origin.
    trim: Trim,
    /// The origins that are trimmed soon.
    trimmed_soon: RefCell<HashSet<Key>>,
}

/// The result of an attempt at an exchange.
enum Attempt {
    Over(Result<(), Error>),
    /// The origin refused it, probably because of the number of connections.
    Refused,
}

impl Polite {
    /// Creates the stage before the connections of `origin`. A session uses at most `most`
    /// connections to one target, and at most `per_session` in total.
    pub fn before(origin: &Rc<Origin>, most: usize, per_session: usize) -> Self {
        let of = Rc::clone(origin);
        let trim: Trim = Box::new(move |session, target, keep| of.trim(session, target, keep));
        let next = Rc::new(ToOrigin(Rc::clone(origin)));
        Self::new(next, most, per_session, trim)
    }

    fn new(next: Rc<dyn Stage>, most: usize, per_session: usize, trim: Trim) -> Self {
        let growths: Rc<RefCell<HashMap<Key, Growth>>> = Rc::default();
        let limits = Limits {
            per_origin: most,
            per_session,
            ..Limits::default()
        };
        let known = Rc::clone(&growths);
        let limit = move |session: u64, origin: &(Scheme, Target)| {
            let known = known.borrow();
            known
                .get(&(session, origin.clone()))
                .map_or(FLOOR, Growth::limit)
        };
        Self {
            state: Rc::new(State {
                next,
                places: Places::measured(limits, Box::new(limit)),
                growths,
                most,
                trim,
                trimmed_soon: RefCell::default(),
            }),
        }
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
            Ok((host, port)) => (exchange.peer.session, (scheme, Target { host, port })),
            Err(problem) => {
                return Reply::fail(Error::new(Kind::BadRequest, Side::Client, problem));
            }
        };
        let state = Rc::clone(&self.state);
        Reply::generate(|mut sink| async move { state.run(exchange, key, &mut sink).await })
    }
}

impl State {
    async fn run(
        self: Rc<Self>,
        exchange: Exchange,
        key: Key,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let is_repeatable = is_safe(&exchange.request.method) && exchange.body.is_empty();
        let hold = (!is_repeatable).then(|| Hold::new(&self, &key));
        for repeats in 0.. {
            let may_repeat = is_repeatable && repeats < MAX_REPEATS;
            match self.attempt(&exchange, &key, may_repeat, sink).await {
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
        key: &Key,
        may_repeat: bool,
        sink: &mut Sink,
    ) -> Attempt {
        let (session, origin) = key;
        if self.places.taken_at(*session, origin) + 1 >= self.limit(key) {
            self.note(key, Growth::note_wait);
        }
        let place = with_precedence(&exchange.priority, |precedence| {
            self.places.take(*session, origin, precedence)
        });
        let _place = place.await;
        let is_crowded = || self.places.taken_at(*session, origin) > FLOOR;
        let was_crowded = is_crowded();
        let mut reply = self.next.call(Exchange {
            request: exchange.request.clone(),
            body: exchange.body.share(),
            isolation: exchange.isolation.clone(),
            peer: exchange.peer,
            priority: exchange.priority.clone(),
        });
        let mut bytes = 0;
        loop {
            let part = reply.part().await;
            let is_refused = match &part {
                Some(Ok(Part::Head(head))) => matches!(head.status, 429 | 503),
                Some(Err(error)) => is_refusal(error),
                _ => false,
            };
            if is_refused {
                let is_repeated = may_repeat && !sink.is_used() && (was_crowded || is_crowded());
                self.note(key, Growth::note_refusal);
                if is_repeated {
                    return Attempt::Refused;
                }
            }
            match part {
                Some(Ok(part)) => {
                    if let Part::Data(data) = &part {
                        bytes += data.len() as u64;
                    }
                    sink.send(part).await;
                }
                Some(Err(error)) => return Attempt::Over(Err(at_origin(error))),
                None => break,
            }
        }
        let is_awaited = self.places.is_awaited(*session, origin);
        self.note(key, |growth, now| {
            growth.note_answer(now, bytes, is_awaited)
        });
        Attempt::Over(Ok(()))
    }

    /// Closes surplus idle connections after a while, unless the origin is in use again.
    fn trim_soon(self: &Rc<Self>, key: Key) {
        let is_idle = |this: &Self, key: &Key| this.places.taken_at(key.0, &key.1) == 0;
        if !is_idle(self, &key) || !self.trimmed_soon.borrow_mut().insert(key.clone()) {
            return;
        }
        let this = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(QUIET).await;
            let Some(this) = this.upgrade() else { return };
            this.trimmed_soon.borrow_mut().remove(&key);
            if is_idle(&this, &key) {
                (this.trim)(key.0, &key.1, FLOOR);
            }
        });
    }

    fn limit(&self, key: &Key) -> usize {
        self.growths.borrow().get(key).map_or(FLOOR, Growth::limit)
    }

    /// Passes an event to the policy of an origin. The place that the caller gives back afterwards
    /// hands out the new ones.
    fn note(&self, key: &Key, event: impl FnOnce(&mut Growth, std::time::Instant)) {
        let now = Instant::now().into_std();
        let mut growths = self.growths.borrow_mut();
        if growths.len() >= MAX_ORIGINS && !growths.contains_key(key) {
            growths.retain(|_, growth| !growth.is_forgettable(now));
        }
        let growth = growths
            .entry(key.clone())
            .or_insert_with(|| Growth::new(now, self.most));
        event(growth, now);
    }
}

/// A request that must not be repeated, under way or waiting.
struct Hold<'a> {
    state: &'a State,
    key: &'a Key,
}

impl<'a> Hold<'a> {
    fn new(state: &'a State, key: &'a Key) -> Self {
        state.note(key, |growth, _| growth.hold());
        Self { state, key }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.state.note(self.key, |growth, _| growth.release());
        self.state.places.serve(self.key.0);
    }
}

/// Returns whether an error may be the answer of an origin to too many connections.
const fn is_refusal(error: &Error) -> bool {
    !matches!(error.side, Side::Client | Side::Local)
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
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use bytes::Bytes;
    use tandem_http::{Method, RequestHead, ResponseHead};

    use super::*;
    use crate::exchange::Peer;
    use crate::priority::{Precedence, SharedPriority};

    /// An origin that answers after a second, and refuses more than `most` requests at once.
    struct Scripted {
        most: usize,
        refusal: fn() -> Reply,
        now: Cell<usize>,
        greatest: Cell<usize>,
        refused: Cell<usize>,
        asked: Cell<usize>,
    }

    impl Scripted {
        fn new(most: usize, refusal: fn() -> Reply) -> Rc<Self> {
            Rc::new(Self {
                most,
                refusal,
                now: Cell::new(0),
                greatest: Cell::new(0),
                refused: Cell::new(0),
                asked: Cell::new(0),
            })
        }

        fn stage(self: &Rc<Self>) -> Rc<dyn Stage> {
            let this = Rc::clone(self);
            Rc::new(move |_: Exchange| {
                this.asked.set(this.asked.get() + 1);
                if this.now.get() >= this.most {
                    this.refused.set(this.refused.get() + 1);
                    return (this.refusal)();
                }
                this.now.set(this.now.get() + 1);
                this.greatest.set(this.greatest.get().max(this.now.get()));
                let this = Rc::clone(&this);
                Reply::generate(|mut sink| async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    sink.send(Part::Head(ResponseHead::new(200))).await;
                    sink.send(Part::Data(Bytes::from_static(&[0; 1000]))).await;
                    this.now.set(this.now.get() - 1);
                    Ok(())
                })
            })
        }
    }

    fn exchange(method: Method, host: &str, push: bool) -> Exchange {
        let request = RequestHead {
            method,
            ..RequestHead::get(Scheme::Http, host, "/")
        };
        Exchange {
            peer: Peer {
                session: 1,
                ..Peer::none()
            },
            priority: SharedPriority::new(Precedence {
                push,
                ..Precedence::default()
            }),
            ..Exchange::internal(request)
        }
    }

    async fn status(mut reply: Reply) -> Result<u16, Error> {
        let mut status = 0;
        while let Some(part) = reply.part().await {
            if let Part::Head(head) = part? {
                status = head.status;
            }
        }
        Ok(status)
    }

    /// Requests `count` resources at once; returns the statuses that are not 200.
    async fn load(polite: &Rc<Polite>, count: usize) -> Vec<Result<u16, Error>> {
        let local = tokio::task::LocalSet::new();
        let answers = local.run_until(async {
            let tasks: Vec<_> = (0..count)
                .map(|_| {
                    let reply = polite.call(exchange(Method::Get, "a.test", true));
                    tokio::task::spawn_local(status(reply))
                })
                .collect();
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.expect("a task"));
            }
            answers
        });
        let answers = answers.await;
        answers.into_iter().filter(|it| *it != Ok(200)).collect()
    }

    fn unavailable() -> Reply {
        Reply::ready(ResponseHead::new(503), Bytes::new())
    }

    fn reset() -> Reply {
        Reply::fail(Error::new(Kind::Reset, Side::Origin, "reset"))
    }

    #[tokio::test(start_paused = true)]
    async fn connections_grow_up_to_the_largest_limit() {
        let origin = Scripted::new(usize::MAX, unavailable);
        let polite = Rc::new(Polite::new(origin.stage(), 32, 256, Box::new(|_, _, _| ())));
        assert_eq!(load(&polite, 300).await, []);
        // Pushes leave one place to requests.
        assert_eq!(origin.greatest.get(), 31);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_above_six_connections_are_hidden() {
        for refusal in [unavailable, reset] {
            for most in [6, 7, 10, 20] {
                let origin = Scripted::new(most, refusal);
                let polite = Rc::new(Polite::new(origin.stage(), 32, 256, Box::new(|_, _, _| ())));
                assert_eq!(load(&polite, 200).await, [], "limit {most}");
                assert!(origin.greatest.get() <= most);
                // At most one burst is refused, since the limit falls at the first refusal.
                let bursts = if most == 6 { 0..=12 } else { 0..=24 };
                assert!(
                    bursts.contains(&origin.refused.get()),
                    "{most}: {}",
                    origin.refused.get()
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_within_six_connections_are_passed_on() {
        let origin = Scripted::new(3, unavailable);
        let polite = Rc::new(Polite::new(origin.stage(), 32, 256, Box::new(|_, _, _| ())));
        let failed = load(&polite, 12).await;
        assert!(failed.contains(&Ok(503)), "{failed:?}");
        assert_eq!(origin.asked.get(), 12, "no request is repeated");
    }

    #[tokio::test(start_paused = true)]
    async fn unrepeatable_request_waits_for_six_connections() {
        let origin = Scripted::new(usize::MAX, unavailable);
        let polite = Rc::new(Polite::new(origin.stage(), 32, 256, Box::new(|_, _, _| ())));
        let local = tokio::task::LocalSet::new();
        let crowd = local.run_until(async {
            for _ in 0..200 {
                let reply = polite.call(exchange(Method::Get, "a.test", true));
                tokio::task::spawn_local(status(reply));
            }
            tokio::time::sleep(Duration::from_millis(5500)).await;
            assert!(origin.now.get() > 20, "{}", origin.now.get());
            let mut post = polite.call(exchange(Method::Post, "a.test", false));
            let head = post.part().await;
            assert!(matches!(head, Some(Ok(Part::Head(_)))));
            assert!(origin.now.get() <= FLOOR, "{}", origin.now.get());
            while post.part().await.is_some() {}
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert!(origin.now.get() > FLOOR, "the limit returns");
        });
        crowd.await;
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_and_origins_have_separate_limits() {
        let origin = Scripted::new(usize::MAX, unavailable);
        let polite = Polite::new(origin.stage(), 32, 256, Box::new(|_, _, _| ()));
        let state = &polite.state;
        let key = |session, host: &str| {
            let target = Target {
                host: host.into(),
                port: 80,
            };
            (session, (Scheme::Http, target))
        };
        state.note(&key(1, "a.test"), |growth, now| {
            growth.note_wait(now);
            growth.note_answer(now, 1, true);
        });
        assert_eq!(state.limit(&key(1, "a.test")), FLOOR + 1);
        assert_eq!(state.limit(&key(2, "a.test")), FLOOR);
        assert_eq!(state.limit(&key(1, "b.test")), FLOOR);
    }

    #[test]
    fn socks_refusal_names_the_site() {
        let error = Error::new(Kind::ConnectionRefused, Side::Peer, "is the gateway there?");
        let error = at_origin(error);
        assert_eq!(error.side, Side::Origin);
        assert!(!error.detail.contains("gateway"));
    }
}
