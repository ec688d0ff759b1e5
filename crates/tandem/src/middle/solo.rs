//! Sessions without a gateway: for each isolation key, the gateway's half of push runs in the
//! client's process. HTTPS that the client opens on this machine has such sessions too.
//!
//! ```text
//!  pushed ─▶ SoloSessions ─▶ session of the key: push ─▶ pair_fields ─▶ polite ─▶ origin
//!     ▲                          │                            or opened_origins
//!     └──── Part::Pushed ────────┘   with the mark of the session
//! ```
//!
//! The key may be the part that belongs to one connection of a browser, and the session ends with
//! this connection. It also ends after a while without a request. Its knowledge, its stored
//! responses and its connections end with it.

mod lookup;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_push::fetch_standard::is_navigation;
use tandem_push::wire::is_companion;
use tokio::time::Instant;

use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Parts, Peer, Reply, SessionMark};
use crate::hosts::HostPattern;
use crate::metrics::METRICS;
use crate::stage::{Stage, refuse_reserved};

/// The largest number of keys of ended sessions that are remembered. Beside a full set, all keys
/// count as known.
const MAX_ENDED: usize = 16_384;

/// Creates the stages of a session.
pub type NewSession = Box<dyn Fn(&NewSessionOf<'_>) -> Rc<dyn Stage>>;

/// The properties of a session that begins.
#[derive(Clone, Copy, Debug)]
pub struct NewSessionOf<'a> {
    /// The isolation key of its requests.
    pub isolation: &'a Isolation,
    /// The number of the session in this pool.
    pub number: u64,
    /// True if no earlier session of this key is known. After an earlier one, the browser may still
    /// have copies.
    pub is_first: bool,
}

/// Returns the peer of an exchange in the session with a number. Its pages get early requests if it
/// accepts pushes.
pub type PeerOf = Box<dyn Fn(&Exchange, u64) -> Peer>;

/// The limits of the sessions.
#[derive(Clone, Copy, Debug)]
pub struct SoloLimits {
    /// The largest number of sessions. A new one ends the session that was idle for longest, and
    /// none in use. With a stage for exchanges without a session, the limit holds for sessions in
    /// use too.
    pub max_sessions: usize,
    /// The time without an exchange after which a session ends.
    pub idle: Duration,
}

/// The sessions of a client without a gateway, as a stage and as a pool.
pub struct SoloSessions {
    limits: SoloLimits,
    new_session: NewSession,
    peer_of: PeerOf,
    /// The stage for exchanges without a session, since as many as permitted are in use. Without
    /// this stage, there are more sessions.
    without_session: Option<Rc<dyn Stage>>,
    sessions: RefCell<HashMap<Isolation, Rc<SoloSession>>>,
    ended: RefCell<EndedKeys>,
    issued: Cell<u64>,
}

struct SoloSession {
    mark: Rc<SessionMark>,
    number: u64,
    stage: Rc<dyn Stage>,
    opened: Instant,
    /// The exchanges under way, with the companion.
    active: Cell<usize>,
    /// The companions among them.
    companions: Cell<usize>,
    last: Cell<Instant>,
}

/// The keys of sessions that have ended, as hashes with a secret of this process. The sessions of
/// two keys with one hash cannot mix: a key that counts as known is treated with more care.
#[derive(Default)]
struct EndedKeys {
    secret: RandomState,
    hashes: HashSet<u64>,
}

impl EndedKeys {
    fn add(&mut self, key: &Isolation) {
        if !self.is_full() {
            self.hashes.insert(self.secret.hash_one(key));
        }
    }

    fn contains(&self, key: &Isolation) -> bool {
        self.is_full() || self.hashes.contains(&self.secret.hash_one(key))
    }

    fn is_full(&self) -> bool {
        self.hashes.len() >= MAX_ENDED
    }
}

impl SoloSession {
    fn is_in_use(&self) -> bool {
        self.active.get() > self.companions.get()
    }
}

impl SoloSessions {
    /// Creates the pool.
    pub fn new(
        limits: SoloLimits,
        new_session: NewSession,
        peer_of: PeerOf,
        without_session: Option<Rc<dyn Stage>>,
    ) -> Rc<Self> {
        let this = Rc::new(Self {
            limits,
            new_session,
            peer_of,
            without_session,
            sessions: RefCell::default(),
            ended: RefCell::default(),
            issued: Cell::new(0),
        });
        let weak = Rc::downgrade(&this);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(limits.idle / 4).await;
                let Some(this) = weak.upgrade() else { return };
                this.sweep();
            }
        });
        this
    }

    /// Returns the ages of the sessions, and their exchanges under way.
    pub fn status(&self) -> Vec<(Instant, usize)> {
        let sessions = self.sessions.borrow();
        let status = |session: &Rc<SoloSession>| (session.opened, session.active.get());
        sessions.values().map(status).collect()
    }

    /// Ends the sessions of the parts of isolation keys that belong to a connection of a browser.
    pub fn end_parts_of(&self, connection: u64) {
        let mut sessions = self.sessions.borrow_mut();
        let ended = sessions.extract_if(|key, _| key.connection() == connection);
        let ended: Vec<_> = ended.collect();
        // Stages run when they are dropped, so the table must not be borrowed then.
        drop(sessions);
        drop(ended);
    }

    fn sweep(&self) {
        let limit = self.limits.idle;
        let ended: Vec<_> = self
            .sessions
            .borrow_mut()
            .extract_if(|_, session| !session.is_in_use() && session.last.get().elapsed() >= limit)
            .collect();
        for (key, _) in &ended {
            self.ended.borrow_mut().add(key);
        }
        // Stages run when they are dropped, so the table must not be borrowed then.
        drop(ended);
    }

    /// Returns the session of a key, and creates it if there is none. Returns `None` if too many
    /// are in use.
    fn session(&self, isolation: &Isolation) -> Option<Rc<SoloSession>> {
        if let Some(session) = self.sessions.borrow().get(isolation) {
            session.last.set(Instant::now());
            return Some(Rc::clone(session));
        }
        let evicted = self.evict();
        drop(evicted);
        let is_full = self.sessions.borrow().len() >= self.limits.max_sessions;
        if is_full && self.without_session.is_some() {
            return None;
        }
        METRICS.sessions_opened.add(1);
        let number = self.issued.get() + 1;
        self.issued.set(number);
        let now = Instant::now();
        let session = Rc::new(SoloSession {
            mark: Rc::new(SessionMark::new(true)),
            number,
            stage: (self.new_session)(&NewSessionOf {
                isolation,
                number,
                is_first: !self.ended.borrow().contains(isolation),
            }),
            opened: now,
            active: Cell::new(0),
            companions: Cell::new(0),
            last: Cell::new(now),
        });
        let mut sessions = self.sessions.borrow_mut();
        sessions.insert(isolation.clone(), Rc::clone(&session));
        Some(session)
    }

    /// Takes the session out that was idle for longest, if there are too many.
    fn evict(&self) -> Option<Rc<SoloSession>> {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.len() < self.limits.max_sessions {
            return None;
        }
        let idle = sessions.iter().filter(|(_, session)| !session.is_in_use());
        let oldest = idle.min_by_key(|(_, session)| session.last.get());
        let key = oldest.map(|(key, _)| key.clone())?;
        METRICS.sessions_evicted.add(1);
        self.ended.borrow_mut().add(&key);
        sessions.remove(&key)
    }
}

/// Returns whether one of the patterns covers the host of a request, or the host of the page that
/// caused it.
pub fn is_excepted(except: &[HostPattern], exchange: &Exchange) -> bool {
    let request = &exchange.request;
    let referrer = request
        .fields
        .get("referer")
        .filter(|_| !is_navigation(request));
    let referrer = referrer.and_then(|url| std::str::from_utf8(url).ok());
    let page = referrer.and_then(|url| url.split_once("://")?.1.split('/').next());
    let is_covered = |authority: &str| {
        split_authority(authority, Some(80))
            .is_ok_and(|(host, _)| except.iter().any(|pattern| pattern.covers(&host)))
    };
    is_covered(&request.authority) || page.is_some_and(is_covered)
}

/// The stage that makes no early request to some hosts, whichever page names their resources.
pub struct ExceptedHosts {
    /// The hosts.
    pub except: Rc<[HostPattern]>,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for ExceptedHosts {
    fn call(&self, exchange: Exchange) -> Reply {
        // The browser's own request is not a push.
        if exchange.priority.get().push && is_excepted(&self.except, &exchange) {
            return Reply::fail(Error::new(
                Kind::Forbidden,
                Side::Local,
                "early requests are off for this host",
            ));
        }
        self.next.call(exchange)
    }
}

/// The sessions as a stage.
pub struct ToSolo(pub Rc<SoloSessions>);

impl Stage for ToSolo {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let is_companion = is_companion(request);
        if !is_companion && let Some(refusal) = refuse_reserved(request) {
            return refusal;
        }
        let Some(session) = self.0.session(&exchange.isolation) else {
            return match self.0.without_session.as_ref().filter(|_| !is_companion) {
                Some(next) => next.call(exchange),
                None => Reply::fail(Error::new(
                    Kind::Busy,
                    Side::Local,
                    "too many sessions are in use",
                )),
            };
        };
        exchange.peer = (self.0.peer_of)(&exchange, session.number);
        let use_of = SessionUse::begin(&session, is_companion);
        Reply::new(OfSession {
            reply: session.stage.call(exchange),
            use_of,
        })
    }
}

/// An exchange of a session under way.
struct SessionUse {
    session: Rc<SoloSession>,
    is_companion: bool,
}

impl SessionUse {
    fn begin(session: &Rc<SoloSession>, is_companion: bool) -> Self {
        session.active.set(session.active.get() + 1);
        let companions = session.companions.get() + usize::from(is_companion);
        session.companions.set(companions);
        Self {
            session: Rc::clone(session),
            is_companion,
        }
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        let session = &self.session;
        session.active.set(session.active.get() - 1);
        let companions = session.companions.get() - usize::from(self.is_companion);
        session.companions.set(companions);
        if !self.is_companion {
            session.last.set(Instant::now());
        }
    }
}

/// A reply whose pushes belong to a session.
struct OfSession {
    reply: Reply,
    use_of: SessionUse,
}

impl Parts for OfSession {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Pushed(pushed)))) = &mut part {
            pushed.session = Some(Rc::clone(&self.use_of.session.mark));
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;
    use crate::stage::SessionPool;

    const IDLE: Duration = Duration::from_secs(600);

    fn pool(max_sessions: usize) -> Rc<SoloSessions> {
        pool_before(max_sessions, None)
    }

    fn pool_before(
        max_sessions: usize,
        without_session: Option<Rc<dyn Stage>>,
    ) -> Rc<SoloSessions> {
        let limits = SoloLimits {
            max_sessions,
            idle: IDLE,
        };
        let new_session: NewSession = Box::new(|session| {
            let (number, is_first) = (session.number, session.is_first);
            Rc::new(move |exchange: Exchange| {
                assert_eq!(exchange.peer.session, number);
                let mut head = ResponseHead::new(200);
                head.fields.push("first", is_first.to_string());
                head.fields.push("session", number.to_string());
                head.fields.push("push", exchange.peer.push.to_string());
                Reply::ready(head, Bytes::new())
            })
        });
        let peer_of = |exchange: &Exchange, session| Peer {
            session,
            address: None,
            push: exchange.request.authority != "off.test",
        };
        SoloSessions::new(limits, new_session, Box::new(peer_of), without_session)
    }

    fn exchange(user: &str, scheme: Scheme, host: &str) -> Exchange {
        Exchange {
            isolation: Isolation::new(user.as_bytes(), b""),
            ..Exchange::internal(RequestHead::get(scheme, host, "/"))
        }
    }

    /// Returns the number of the session that answers, and whether it may push.
    async fn asked(to: &ToSolo, user: &str, scheme: Scheme, host: &str) -> (String, bool) {
        let mut reply = to.call(exchange(user, scheme, host));
        let Some(Ok(Part::Head(head))) = reply.part().await else {
            panic!("no head");
        };
        let field = |name| String::from_utf8_lossy(head.fields.get(name).expect(name)).into_owned();
        (field("session"), field("push") == "true")
    }

    async fn in_local<F: Future>(future: F) -> F::Output {
        tokio::task::LocalSet::new().run_until(future).await
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_has_a_session_until_it_is_idle() {
        in_local(async {
            let to = ToSolo(pool(9));
            let http = |user: &'static str| asked(&to, user, Scheme::Http, "a.test");
            assert_eq!(http("one").await, ("1".into(), true));
            assert_eq!(http("two").await, ("2".into(), true));
            assert_eq!(http("one").await, ("1".into(), true));
            let key = |user: &str| Isolation::new(user.as_bytes(), b"");
            let mark = to.open(&key("one")).expect("a mark");
            assert!(to.is_current(&key("one"), &mark) && !to.is_current(&key("two"), &mark));
            tokio::time::sleep(IDLE / 2).await;
            http("two").await;
            tokio::time::sleep(IDLE / 2 + IDLE / 4).await;
            assert!(!to.is_current(&key("one"), &mark));
            assert!(to.current(&key("two")).is_some());
            assert_eq!(http("one").await, ("3".into(), true));
        })
        .await;
    }

    /// Returns whether the session that answers is the first one of its key.
    async fn is_first(to: &ToSolo, user: &str) -> bool {
        let mut reply = to.call(exchange(user, Scheme::Http, "a.test"));
        let Some(Ok(Part::Head(head))) = reply.part().await else {
            panic!("no head");
        };
        head.fields.get("first") == Some(b"true")
    }

    #[tokio::test(start_paused = true)]
    async fn key_of_an_ended_session_is_known() {
        in_local(async {
            let to = ToSolo(pool(2));
            assert!(is_first(&to, "idle").await);
            tokio::time::sleep(2 * IDLE).await;
            for user in ["new", "newer", "newest"] {
                assert!(is_first(&to, user).await, "{user}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert!(!is_first(&to, "idle").await && !is_first(&to, "new").await);
        })
        .await;
    }

    #[test]
    fn known_keys_are_bounded() {
        let mut ended = EndedKeys::default();
        let key = |number: usize| Isolation::new(number.to_string().as_bytes(), b"");
        for number in 0..MAX_ENDED {
            assert!(!ended.contains(&key(number)));
            ended.add(&key(number));
        }
        ended.add(&key(MAX_ENDED));
        assert_eq!(ended.hashes.len(), MAX_ENDED);
        for number in [0, MAX_ENDED, MAX_ENDED + 1] {
            assert!(ended.contains(&key(number)), "{number}");
        }
    }

    #[tokio::test]
    async fn session_of_a_connection_ends_with_it() {
        in_local(async {
            let to = ToSolo(pool(9));
            let key = Isolation::new(b"u", b"");
            let parts = [key.clone(), key.within(1), key.within(2)];
            let marks = parts.each_ref().map(|part| to.open(part).expect("a mark"));
            to.0.end_parts_of(1);
            let is_current: Vec<_> = parts.iter().zip(&marks).collect();
            let is_current = is_current
                .into_iter()
                .map(|(part, mark)| to.is_current(part, mark));
            assert_eq!(is_current.collect::<Vec<_>>(), [true, false, true]);
        })
        .await;
    }

    #[tokio::test]
    async fn full_pool_ends_the_longest_idle_session() {
        in_local(async {
            let to = ToSolo(pool(2));
            let busy = to.call(exchange("busy", Scheme::Http, "a.test"));
            for user in ["idle", "new"] {
                asked(&to, user, Scheme::Http, "a.test").await;
            }
            let key = |user: &str| Isolation::new(user.as_bytes(), b"");
            let is_open = |user| to.current(&key(user)).is_some();
            assert!(is_open("busy") && is_open("new") && !is_open("idle"));
            drop(busy);
        })
        .await;
    }

    #[tokio::test]
    async fn sessions_in_use_are_bounded_if_others_do_without() {
        in_local(async {
            let without = |exchange: Exchange| {
                let mut head = ResponseHead::new(200);
                head.fields.push("session", "none");
                head.fields.push("push", exchange.peer.push.to_string());
                Reply::ready(head, Bytes::new())
            };
            let to = ToSolo(pool_before(2, Some(Rc::new(without))));
            let call = |user| to.call(exchange(user, Scheme::Http, "a.test"));
            let mut busy = vec![call("one"), call("two")];
            let other = || asked(&to, "other", Scheme::Http, "a.test");
            assert_eq!(other().await, ("none".into(), false));
            let key = Isolation::new(b"other", b"");
            assert!(to.open(&key).is_none() && to.current(&key).is_none());
            assert_eq!(to.0.status().len(), 2);
            busy.pop();
            assert_eq!(other().await, ("3".into(), true));
            assert_eq!(to.0.status().len(), 2);
        })
        .await;
    }

    #[test]
    fn exception_covers_the_parts_of_its_pages() {
        let except = ["www.a.test".parse().expect("a pattern")];
        for (host, referrer, accept, expected) in [
            ("www.a.test:80", None, "*/*", true),
            (
                "static.a.test",
                Some("http://www.a.test/x"),
                "text/css",
                true,
            ),
            ("static.a.test", Some("http://www.A.test:80"), "*/*", true),
            ("static.a.test", Some("http://b.test/"), "*/*", false),
            ("b.test", Some("http://www.a.test/"), "text/html", false),
            ("b.test", Some("no URL"), "*/*", false),
        ] {
            let mut request = RequestHead::get(Scheme::Http, host, "/");
            request.fields.push("accept", accept);
            if let Some(referrer) = referrer {
                request.fields.push("referer", referrer);
            }
            let exchange = Exchange::internal(request);
            assert_eq!(
                is_excepted(&except, &exchange),
                expected,
                "{host} {referrer:?}"
            );
        }
    }

    #[tokio::test]
    async fn only_permitted_pages_get_pushes() {
        in_local(async {
            let to = ToSolo(pool(9));
            assert!(asked(&to, "u", Scheme::Http, "a.test").await.1);
            assert!(!asked(&to, "u", Scheme::Http, "off.test").await.1);
            let mut reserved = to.call(exchange("u", Scheme::Http, "push.tandem.invalid"));
            assert!(matches!(reserved.part().await, Some(Err(_))));
        })
        .await;
    }
}
