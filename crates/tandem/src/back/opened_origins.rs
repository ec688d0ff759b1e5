//! The connections to origins of HTTPS that the client opens, for the requests of the browser and
//! for early ones.
//!
//! ```text
//!  connection of the browser ──── its own connection ────────────────┐
//!  early request to the same host ──── the same connection ──────────┼─▶ origin
//!  early request to another host ── one for the page's host, which ──┘
//!                                   the browser's next connection takes over
//! ```
//!
//! Each connection of the browser has a separate connection to the origin, so that the browser's
//! partitions stay apart. Early requests leave on the connection of their page. Another listed host
//! gets a connection before the browser opens one, and the next connection of the browser to this
//! host uses it. Only origins of HTTP/2 get early requests.
//!
//! Connections to other hosts belong to a part of an isolation key ([`BrowserContext`]). They are
//! made only if the browser's connections to these hosts surely belong to the same part.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_http::{RequestHead, Scheme};
use tandem_push::fetch_standard::is_navigation;
use tokio::sync::OnceCell;

use super::growth::{LONGEST_PAUSE, REFUSED_PAUSE};
use super::origin::Origin;
use super::origin::prepare::Prepared;
use super::polite::{early_refused, retry_after};
use crate::end_listeners::EndListeners;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply, Sink};
use crate::expiring::ExpiringSet;
use crate::stage::Stage;
use crate::transport::Target;

/// The time in which a connection of the browser must take over an early one.
const WAIT: Duration = Duration::from_secs(60);

/// The largest number of early connections of an isolation key that wait for the browser's.
const MAX_WAITING: usize = 16;

/// The largest number of early connections of all keys.
const MAX_EARLY: usize = 256;

/// The largest number of origins that get no early requests for a while.
const MAX_BUSY: usize = 1024;

/// Returns whether the user has listed a host, in lower case, and a port.
pub type IsListed = Box<dyn Fn(&str, u16) -> bool>;

/// Returns the number of a new connection.
pub type NewNumber = Box<dyn Fn() -> u64>;

/// The connections to the origins of opened hosts.
pub struct OpenedOrigins {
    origin: Rc<Origin>,
    next: Rc<dyn Stage>,
    is_listed: IsListed,
    new_number: NewNumber,
    table: RefCell<BrowserTable>,
    /// The origins that refused requests, and get no early ones for a while.
    busy: ExpiringSet<(Isolation, Target), MAX_BUSY>,
    /// Receive the number of the connection whose part has ended.
    on_end: EndListeners,
}

/// The connections of the browser, and those for early requests.
#[derive(Default)]
struct BrowserTable {
    connections: HashMap<u64, BrowserConnection>,
    early: HashMap<EarlyKey, Rc<EarlyConnection>>,
}

/// The context of a browser that opens a connection.
#[derive(Clone, Debug)]
pub struct BrowserContext {
    /// The part of the isolation key that shares what is learned and requested early. It may be the
    /// whole key.
    pub part: Isolation,
    /// True if connections to other hosts are known to belong to the same part.
    pub spans_hosts: bool,
}

/// A connection of the browser to an opened host.
struct BrowserConnection {
    isolation: Isolation,
    context: BrowserContext,
    target: Target,
    /// The number of its connection to the origin.
    number: u64,
    is_h2: bool,
    /// True once its requests have shown the page that it belongs to.
    has_page: bool,
}

/// The part of an isolation key, the host of a page, and the host of its resources.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EarlyKey {
    part: Isolation,
    page: Target,
    target: Target,
}

/// The connection for the early requests of pages of one host to one host.
struct EarlyConnection {
    number: u64,
    /// True if a connection of the browser uses it.
    is_taken: Cell<bool>,
    /// True if the origin speaks HTTP/2, once it is connected.
    outcome: OnceCell<Result<bool, Error>>,
}

impl OpenedOrigins {
    /// Creates the table. `next` leads to the connections of `origin`.
    pub fn new(
        origin: Rc<Origin>,
        next: Rc<dyn Stage>,
        is_listed: IsListed,
        new_number: NewNumber,
    ) -> Rc<Self> {
        Rc::new(Self {
            origin,
            next,
            is_listed,
            new_number,
            table: RefCell::default(),
            busy: ExpiringSet::default(),
            on_end: EndListeners::default(),
        })
    }

    /// Connects for a connection of the browser, and verifies the origin's certificate. Returns
    /// true if the origin speaks HTTP/2, which is offered if `is_h2_offered`.
    ///
    /// # Errors
    /// Returns the reason why the origin cannot be reached, or why its certificate is not accepted.
    pub async fn connect(
        &self,
        wanted: Prepared,
        context: BrowserContext,
        is_h2_offered: bool,
    ) -> Result<bool, Error> {
        let connection = wanted.session;
        if is_h2_offered && let Some(early) = self.take_over(&wanted.target, &context) {
            self.note(&wanted, &context, early.number, false);
            let taken = Prepared {
                session: early.number,
                ..wanted.clone()
            };
            let outcome = self.open(&early, &taken).await;
            if let Ok(is_h2) = outcome
                && self.origin.is_prepared(&taken)
            {
                self.note(&wanted, &context, early.number, is_h2);
                return Ok(is_h2);
            }
            self.end(connection);
        }
        let is_h2 = self.origin.prepare(wanted.clone(), is_h2_offered).await?;
        self.note(&wanted, &context, connection, is_h2);
        Ok(is_h2)
    }

    /// Ends a connection of the browser, and that to its origin. The part of the isolation key that
    /// belongs to this connection alone ends too.
    pub fn end(&self, connection: u64) {
        let (ended, number) = self.table.borrow_mut().end(connection);
        self.origin.end_session(number);
        if ended.is_some_and(|ended| ended.context.part.connection() == connection) {
            self.end_part(connection);
        }
    }

    /// Calls `on_end` with the number of each connection of a browser that ends with its part of an
    /// isolation key.
    pub fn on_end(&self, on_end: impl Fn(u64) + 'static) {
        self.on_end.add(on_end);
    }

    /// Forgets everything about the part of an isolation key that belongs to a connection.
    pub fn end_part(&self, connection: u64) {
        let is_of = |part: &Isolation| part.connection() == connection;
        // A connection that the browser uses ends with that of the browser.
        let ended = self.table.borrow_mut().end_early(is_of);
        let waiting = ended.iter().filter(|early| !early.is_taken.get());
        waiting.for_each(|early| self.origin.end_session(early.number));
        self.busy.retain(|(part, _)| !is_of(part));
        self.on_end.notify(connection);
    }

    /// Returns the part of the isolation key that the requests of a browser's connection belong to.
    pub fn part(&self, connection: u64) -> Option<Isolation> {
        let table = self.table.borrow();
        let of = table.connections.get(&connection)?;
        Some(of.context.part.clone())
    }

    /// Returns whether requests of a connection of the browser reach an origin of HTTP/2.
    pub fn is_h2(&self, connection: u64) -> bool {
        let table = self.table.borrow();
        let of = table.connections.get(&connection);
        of.is_some_and(|it| it.is_h2)
    }

    fn note(&self, wanted: &Prepared, context: &BrowserContext, number: u64, is_h2: bool) {
        let connection = BrowserConnection {
            isolation: wanted.isolation.clone(),
            context: context.clone(),
            target: wanted.target.clone(),
            number,
            is_h2,
            has_page: number != wanted.session,
        };
        let mut table = self.table.borrow_mut();
        table.connections.insert(wanted.session, connection);
    }

    /// Takes an early connection for a connection of the browser, if one waits for it.
    fn take_over(&self, target: &Target, context: &BrowserContext) -> Option<Rc<EarlyConnection>> {
        if !context.spans_hosts {
            return None;
        }
        let table = self.table.borrow();
        let (_, found) = table.early.iter().find(|(key, early)| {
            key.part == context.part && key.target == *target && !early.is_taken.get()
        })?;
        found.is_taken.set(true);
        Some(Rc::clone(found))
    }

    /// Connects once for all who wait. Returns true if the origin speaks HTTP/2.
    async fn open(&self, early: &EarlyConnection, prepared: &Prepared) -> Result<bool, Error> {
        let dial = || self.origin.prepare(prepared.clone(), true);
        early.outcome.get_or_init(dial).await.clone()
    }

    /// Returns the connection to the origin for an exchange on the browser's own connection.
    fn own(&self, exchange: &Exchange, target: &Target) -> Option<Prepared> {
        let table = &mut *self.table.borrow_mut();
        let own = table.connections.get_mut(&exchange.peer.session)?;
        if !own.carries(&exchange.isolation) || own.target != *target {
            return None;
        }
        let request = &exchange.request;
        // The partition of a navigation is that of the page itself. Browsers may have a separate
        // connection for requests without credentials, which carries no others.
        let page = if is_navigation(request) {
            Some(target.clone())
        } else {
            let page = page_of(request).filter(|_| !own.has_page);
            page.filter(|_| !may_be_anonymous(request))
        };
        let prepared = Prepared {
            session: own.number,
            isolation: own.isolation.clone(),
            target: target.clone(),
        };
        let is_for_early = own.is_h2 && own.context.spans_hosts;
        if let Some(page) = page.filter(|_| is_for_early) {
            own.has_page = true;
            let key = EarlyKey {
                part: own.context.part.clone(),
                page,
                target: target.clone(),
            };
            table.bind(key, prepared.session, is_navigation(request));
        }
        Some(prepared)
    }

    /// Returns the connection for early requests, which may be a new one.
    fn early(self: &Rc<Self>, key: EarlyKey) -> Option<Rc<EarlyConnection>> {
        let number = (self.new_number)();
        let mut table = self.table.borrow_mut();
        if let Some(found) = table.early.get(&key) {
            return Some(Rc::clone(found));
        }
        if !table.has_room(&key) {
            return None;
        }
        let connection = Rc::new(EarlyConnection {
            number,
            is_taken: Cell::new(false),
            outcome: OnceCell::new(),
        });
        table.early.insert(key, Rc::clone(&connection));
        let (this, waiting) = (Rc::downgrade(self), Rc::downgrade(&connection));
        tokio::task::spawn_local(async move {
            tokio::time::sleep(WAIT).await;
            let (Some(this), Some(waiting)) = (this.upgrade(), waiting.upgrade()) else {
                return;
            };
            if !waiting.is_taken.get() {
                this.end(waiting.number);
            }
        });
        Some(connection)
    }

    /// Sends an early request on the connection of its page.
    fn call_early(self: &Rc<Self>, mut exchange: Exchange, target: Target) -> Reply {
        let request = &exchange.request;
        let is_listed = (self.is_listed)(&target.host, target.port);
        if request.scheme != Scheme::Https || request.is_connect() || !is_listed {
            return refused("the user has not listed this host");
        }
        let Some((isolation, page)) = self.page_across_hosts(&exchange) else {
            return refused("nothing connects the page of an early request with other hosts");
        };
        let key = EarlyKey {
            part: exchange.isolation.clone(),
            page,
            target: target.clone(),
        };
        let Some(early) = self.early(key) else {
            return refused("no connection for early requests to this host");
        };
        let prepared = Prepared {
            session: early.number,
            isolation,
            target,
        };
        exchange.peer.session = early.number;
        exchange.isolation = prepared.isolation.clone();
        let this = Rc::clone(self);
        Reply::generate(|mut sink: Sink| async move {
            if !this.open(&early, &prepared).await? {
                return Err(forbidden("early requests are for origins of HTTP/2"));
            }
            let mut reply = this.next.call(exchange);
            while let Some(part) = reply.part().await {
                sink.send(part?).await;
            }
            Ok(())
        })
    }

    /// Returns the isolation key and the host of the connection that carried the page of an early
    /// request, if its context spans hosts. If all connections of the key share one memory, the
    /// request tells the page whose connection is not known any more.
    fn page_across_hosts(&self, exchange: &Exchange) -> Option<(Isolation, Target)> {
        let table = self.table.borrow();
        let Some(of) = table.connections.get(&exchange.peer.session) else {
            let is_shared = exchange.isolation.connection() == 0;
            let page = page_of(&exchange.request).filter(|_| is_shared)?;
            return Some((exchange.isolation.clone(), page));
        };
        let spans_hosts = of.context.spans_hosts && of.context.part == exchange.isolation;
        spans_hosts.then(|| (of.isolation.clone(), of.target.clone()))
    }
}

impl BrowserTable {
    /// Removes a connection of the browser, and the early connections with the same number at the
    /// origin. Returns the connection, and that number.
    fn end(&mut self, connection: u64) -> (Option<BrowserConnection>, u64) {
        let ended = self.connections.remove(&connection);
        let number = ended.as_ref().map_or(connection, |ended| ended.number);
        self.early.retain(|_, early| early.number != number);
        (ended, number)
    }

    /// Removes the early connections of some parts of isolation keys.
    fn end_early(&mut self, is_of: impl Fn(&Isolation) -> bool) -> Vec<Rc<EarlyConnection>> {
        let ended = self.early.extract_if(|key, _| is_of(&key.part));
        ended.map(|(_, early)| early).collect()
    }

    /// Makes a connection of the browser carry the early requests of a page's host, if no other one
    /// does or if `replaces`.
    fn bind(&mut self, key: EarlyKey, number: u64, replaces: bool) {
        if self.early.contains_key(&key) && !replaces {
            return;
        }
        let connection = EarlyConnection {
            number,
            is_taken: Cell::new(true),
            outcome: OnceCell::new_with(Some(Ok(true))),
        };
        self.early.insert(key, Rc::new(connection));
    }

    /// Returns whether another early connection may wait. The browser's own connection is the only
    /// one to the page's host.
    fn has_room(&self, key: &EarlyKey) -> bool {
        let of_part = self.early.iter().filter(|(of, _)| of.part == key.part);
        let waiting = of_part.filter(|(_, early)| !early.is_taken.get());
        key.page != key.target && self.early.len() < MAX_EARLY && waiting.count() < MAX_WAITING
    }
}

impl BrowserConnection {
    /// Returns whether exchanges with this isolation key, or part of one, belong to the connection.
    fn carries(&self, isolation: &Isolation) -> bool {
        *isolation == self.isolation || *isolation == self.context.part
    }
}

/// The connections to the origins of opened hosts, as a stage.
pub struct ToOpened(pub Rc<OpenedOrigins>);

impl Stage for ToOpened {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let origins = &self.0;
        let Some(target) = target_of(&exchange.request) else {
            let problem = "the authority is no host and port";
            return Reply::fail(Error::new(Kind::BadRequest, Side::Client, problem));
        };
        let origin = (exchange.isolation.clone(), target);
        let is_early = exchange.priority.get().push;
        if is_early && origins.busy.contains_key(&origin) {
            return Reply::fail(early_refused());
        }
        let reply = match origins.own(&exchange, &origin.1) {
            Some(own) => {
                exchange.peer.session = own.session;
                exchange.isolation = own.isolation;
                origins.next.call(exchange)
            }
            None => origins.call_early(exchange, origin.1.clone()),
        };
        Reply::new(Watched {
            reply,
            is_early,
            origin,
            origins: Rc::clone(origins),
        })
    }
}

/// A reply that may show that its origin is too busy for early requests.
struct Watched {
    reply: Reply,
    /// True if no request of the browser waited for it at its beginning.
    is_early: bool,
    origin: (Isolation, Target),
    origins: Rc<OpenedOrigins>,
}

impl Parts for Watched {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &part
            && matches!(head.status, 429 | 503)
        {
            let pause = retry_after(head).clamp(REFUSED_PAUSE, LONGEST_PAUSE);
            self.origins.busy.insert(self.origin.clone(), pause);
            if self.is_early {
                // A request that has joined it leaves by itself instead.
                return Poll::Ready(Some(Err(early_refused())));
            }
        }
        part
    }
}

/// Returns the origin of a request.
fn target_of(request: &RequestHead) -> Option<Target> {
    let default = Some(request.scheme.default_port());
    let (host, port) = split_authority(&request.authority, default).ok()?;
    Some(Target::new(host, port))
}

/// Returns the host of the page that caused a request, as the request tells it.
fn page_of(request: &RequestHead) -> Option<Target> {
    let referrer = std::str::from_utf8(request.fields.get("referer")?).ok()?;
    let rest = referrer.strip_prefix("https://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let (host, port) = split_authority(authority, Some(Scheme::Https.default_port())).ok()?;
    Some(Target::new(host, port))
}

/// Returns whether a browser may send a request without credentials, by CORS.
fn may_be_anonymous(request: &RequestHead) -> bool {
    let fields = &request.fields;
    fields.get("sec-fetch-mode") == Some(b"cors") && !fields.contains("cookie")
}

fn forbidden(detail: &'static str) -> Error {
    Error::new(Kind::Forbidden, Side::Local, detail)
}

fn refused(detail: &'static str) -> Reply {
    Reply::fail(forbidden(detail))
}
