//! The values that pass through the pipeline. An [`Exchange`] goes in, and its [`Reply`] returns as
//! one stream of parts in wire order.
//!
//! ```text
//!   front ──Exchange { request, body, isolation, peer, priority }──▶ middle ──▶ back
//!         ◀──Reply: Hints* · Pushed* · Head · (Pushed | Data)* · Trailers?────────
//! ```
//!
//! Both are polled by their users, so that back-pressure needs no channel. Dropping one cancels the
//! exchange. All state of one connection lives on one thread, hence `Rc` and no locks.

mod body;
mod generator;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use ring::hmac;
use ring::rand::SystemRandom;
use serde::{Deserialize, Serialize};
use tandem_coding::{Dictionaries, Dictionary};
use tandem_http::{Fields, RequestHead, ResponseHead};

use crate::error::Error;
use crate::priority::SharedPriority;

pub use body::{Body, BodyProgress, Chunk, Chunks};
use generator::Generator;
pub use generator::{Canceller, Sink};

/// A request with all the data that decides about its route.
#[derive(Debug)]
pub struct Exchange {
    /// The head of the request. Stages that remember it share it. [`Exchange::request_mut`] changes
    /// it.
    pub request: Arc<RequestHead>,
    /// The body of the request, or the bytes towards the target of a tunnel.
    pub body: Body,
    /// The key that separates sessions, circuits and stores.
    pub isolation: Isolation,
    /// The connection or session that it arrived on.
    pub peer: Peer,
    /// The place in every queue on the way, shared by all stages and sessions.
    pub priority: SharedPriority,
}

impl Exchange {
    /// Returns an exchange that this process makes for itself. It has no body, no isolation key and
    /// no peer, and the default priority.
    pub fn internal(request: RequestHead) -> Self {
        Self {
            request: Arc::new(request),
            body: Body::empty(),
            isolation: Isolation::none(),
            peer: Peer::none(),
            priority: SharedPriority::default(),
        }
    }

    /// Returns the head of the request for a change, which no other holder of the head sees.
    pub fn request_mut(&mut self) -> &mut RequestHead {
        Arc::make_mut(&mut self.request)
    }
}

/// The connection from which an exchange came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The number of the session or connection, unique while the process runs.
    pub session: u64,
    /// The address of the other end of that connection, if there is one.
    pub address: Option<std::net::IpAddr>,
    /// True if the other end accepts pushes.
    pub push: bool,
}

impl Peer {
    /// Returns the peer of exchanges that this process makes for itself.
    pub const fn none() -> Self {
        Self {
            session: 0,
            address: None,
            push: false,
        }
    }
}

/// The isolation key of a request. At the client, requests with different keys share no session,
/// circuit or stored response. The key is the SOCKS user and password, as in Tor's
/// `IsolateSOCKSAuth`, and reaches Tor unchanged.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Isolation {
    key: Option<Rc<(Vec<u8>, Vec<u8>)>>,
    /// The connection of a browser that the state belongs to, within the key; 0 for all of them.
    scope: u64,
}

impl Isolation {
    /// Returns the key of requests that carry none.
    pub const fn none() -> Self {
        Self {
            key: None,
            scope: 0,
        }
    }

    /// Returns the key of a user name and password.
    pub fn new(user: &[u8], password: &[u8]) -> Self {
        Self {
            key: Some(Rc::new((short(user), short(password)))),
            scope: 0,
        }
    }

    /// Returns the part of this key that belongs to one connection of a browser, by its number. The
    /// parts share nothing. Sessions to gateways and circuits belong to the whole key.
    #[must_use]
    pub fn within(&self, connection: u64) -> Self {
        Self {
            scope: connection,
            ..self.clone()
        }
    }

    /// Returns the number of the connection that this part of a key belongs to; 0 for a whole key.
    pub const fn connection(&self) -> u64 {
        self.scope
    }

    /// Returns the whole key.
    #[must_use]
    pub fn whole(&self) -> Self {
        self.within(0)
    }

    /// Returns the user and password in the form that SOCKS carries.
    pub fn credentials(&self) -> Option<(&[u8], &[u8])> {
        self.key
            .as_deref()
            .map(|(user, password)| (user.as_slice(), password.as_slice()))
    }
}

/// Returns a name of at most 255 bytes, the limit of SOCKS (RFC 1929). Longer names become a hash
/// with a secret of this process (HMAC with SHA-256), so that different names stay different. The
/// name reaches Tor or the proxy of `--via`: without the secret, anyone could write a short name
/// that equals the hash of a known long one.
fn short(name: &[u8]) -> Vec<u8> {
    static SECRET: LazyLock<hmac::Key> = LazyLock::new(|| {
        let random = SystemRandom::new();
        hmac::Key::generate(hmac::HMAC_SHA256, &random).expect("random numbers of the system")
    });
    if name.len() <= 255 {
        return name.to_vec();
    }
    URL_SAFE_NO_PAD
        .encode(hmac::sign(&SECRET, name))
        .into_bytes()
}

/// Shows only the presence of a key, because first-party domains are private.
impl fmt::Debug for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.key.is_some() {
            "Isolation(set)"
        } else {
            "Isolation(none)"
        })
    }
}

/// The identity of a session that carries pushes. Two marks belong to one session if they are the
/// same allocation.
#[derive(Debug)]
pub struct SessionMark {
    /// True if a push promise carries the fields of its request. Otherwise the fields are those of
    /// the exchange that brought it.
    pub promises_have_fields: bool,
    /// The bodies that the session brought compressed, for the difference to later versions.
    pub versions: Dictionaries,
    /// True once a marked response has shown that the gateway consents to HTTPS of opened hosts.
    pub consents: Cell<bool>,
}

impl SessionMark {
    /// Creates the identity of a new session.
    pub fn new(promises_have_fields: bool) -> Self {
        Self {
            promises_have_fields,
            versions: Dictionaries::default(),
            consents: Cell::new(false),
        }
    }
}

/// The session that an exchange was sent on.
#[derive(Clone, Debug)]
pub struct Carrying {
    /// The session.
    pub session: Rc<SessionMark>,
    /// The version of the body that the request named.
    pub version: Option<Dictionary>,
}

/// The field that marks, between client and gateway, a success response that did not agree to an
/// upgrade. Its value is the status of that response, which has the status 501 on the way: a
/// success would mean agreement (RFC 8441 section 5). Older programs left the status and wrote `1`.
pub const UPGRADE_DECLINED: &str = "upgrade-declined";

/// A part of a reply.
#[derive(Debug)]
pub enum Part {
    /// An interim response (1xx). Several may come before the head.
    Hints(ResponseHead),
    /// The response to another request, which the other end sent unasked. It is boxed, so that it
    /// does not enlarge the other parts, which each stage moves.
    Pushed(Box<PushedPart>),
    /// The final head, which comes once.
    Head(ResponseHead),
    /// A piece of the body.
    Data(Bytes),
    /// The fields after the body, as the last part.
    Trailers(Fields),
    /// The end of the data from the far end of a tunnel (the origin's side), as the last part. The
    /// near end (the browser's side) may continue, and the reply ends after it.
    Closed,
}

/// The response to a request that the client did not send.
#[derive(Debug)]
pub struct PushedPart {
    /// The request that the push answers.
    pub request: RequestHead,
    /// The response, as a separate stream of parts.
    pub reply: Reply,
    /// The place in every queue on the way, shared with the exchange behind the push.
    pub priority: SharedPriority,
    /// The session that brought the push; `None` for one that this process makes.
    pub session: Option<Rc<SessionMark>>,
}

/// The way on which the client got a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Supply {
    /// The request crossed the slow path.
    #[default]
    Requested,
    /// A push was under way when the browser requested the resource.
    Joined,
    /// A push was complete when the browser requested the resource.
    Pushed,
    /// The response was in the client's cache.
    Stored,
    /// The request opened an opaque tunnel, such as one for HTTPS.
    Tunnel,
}

/// A stale response whose origin is asked whether it has changed.
pub struct StaleResponse {
    /// The head.
    pub head: ResponseHead,
    /// The pieces of the body.
    pub body: Box<dyn Iterator<Item = Bytes>>,
    /// Returns whether a request of the same user would need no origin.
    pub is_fresh: Box<dyn Fn(&RequestHead) -> bool>,
}

/// The source of a reply, polled for its next part.
///
/// A stage that watches or changes a reply wraps it in another source. Each method but
/// [`Parts::poll_part`] asks the reply below by default, so no wrapper can forget to forward it. A
/// wrapper that does not name the reply below does not compile:
///
/// ```compile_fail,E0046
/// use std::task::{Context, Poll};
/// use tandem::error::Error;
/// use tandem::exchange::{Part, Parts, Reply};
///
/// struct Watched(Reply);
///
/// impl Parts for Watched {
///     fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
///         self.0.poll_part(cx)
///     }
/// }
/// ```
pub trait Parts {
    /// Returns the reply whose parts a stage watches or changes, or `None` if the parts begin here.
    fn below(&self) -> Option<&Reply>;

    /// Returns the way on which the response comes. It is final when the head has come.
    fn supply(&self) -> Supply {
        self.below().map_or(Supply::Requested, Reply::supply)
    }

    /// Takes the session of the exchange, if a stage behind asked for it by
    /// [`Sink::set_carrying`]. It is final when the head has come.
    fn take_carrying(&self) -> Option<Carrying> {
        self.below()?.take_carrying()
    }

    /// Returns the stale response that a stage behind validates. It is there at once or never.
    fn stale_response(&self) -> Option<StaleResponse> {
        self.below()?.stale_response()
    }

    /// Tells the stages behind that the reader can request the rest elsewhere, so that they may
    /// propose it. Withdraws the last proposal. The reader polls the reply after that.
    fn permit_move(&self) {
        if let Some(reply) = self.below() {
            reply.permit_move();
        }
    }

    /// Returns true while a stage behind proposes to request the rest elsewhere. The reply goes on
    /// as its session permits, until the reader drops it.
    fn proposes_move(&self) -> bool {
        self.below().is_some_and(Reply::proposes_move)
    }

    /// Polls for the next part. Returns `None` at the regular end. An error means that the parts so
    /// far are incomplete.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>>;
}

/// The response to an exchange. Dropping it cancels the exchange.
pub struct Reply {
    source: Source,
    /// Changes the fields of each head and of the trailers.
    edit: Option<fn(&mut Fields)>,
}

enum Source {
    Parts(Box<dyn Parts>),
    Generator(Generator),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

impl Reply {
    /// Creates a reply from its source of parts.
    pub fn new(parts: impl Parts + 'static) -> Self {
        Self::from(Source::Parts(Box::new(parts)))
    }

    /// Creates a reply from an async function. The closure's future sends parts to the sink, one at
    /// a time.
    pub fn generate<F>(story: impl FnOnce(Sink) -> F) -> Self
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        Self::from(Source::Generator(Generator::new(story)))
    }

    const fn from(source: Source) -> Self {
        Self { source, edit: None }
    }

    /// Returns the reply with changed fields of each head and of the trailers. The change costs no
    /// allocation, unlike another layer of [`Parts`].
    pub fn edited(self, edit: fn(&mut Fields)) -> Self {
        let inner = match self.edit {
            None => self,
            Some(_) => Self::new(Layered(self)),
        };
        Self {
            edit: Some(edit),
            ..inner
        }
    }

    /// Creates a reply that fails at once.
    pub fn fail(error: Error) -> Self {
        Self::new(Ready(VecDeque::from([Err(error)])))
    }

    /// Creates a reply that is already complete.
    pub fn ready(head: ResponseHead, body: Bytes) -> Self {
        let mut parts = VecDeque::from([Ok(Part::Head(head))]);
        if !body.is_empty() {
            parts.push_back(Ok(Part::Data(body)));
        }
        Self::new(Ready(parts))
    }

    /// See [`Parts::poll_part`].
    pub fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = match &mut self.source {
            Source::Parts(parts) => parts.poll_part(cx),
            Source::Generator(generator) => generator.poll_part(cx),
        };
        if let (Some(edit), Poll::Ready(Some(Ok(part)))) = (self.edit, &mut part) {
            match part {
                Part::Head(head) | Part::Hints(head) => edit(&mut head.fields),
                Part::Trailers(fields) => edit(fields),
                Part::Pushed(_) | Part::Data(_) | Part::Closed => {}
            }
        }
        part
    }

    /// See [`Parts::supply`].
    pub fn supply(&self) -> Supply {
        match &self.source {
            Source::Parts(parts) => parts.supply(),
            Source::Generator(generator) => generator.supply(),
        }
    }

    /// See [`Parts::stale_response`].
    pub fn stale_response(&self) -> Option<StaleResponse> {
        match &self.source {
            Source::Parts(parts) => parts.stale_response(),
            Source::Generator(_) => None,
        }
    }

    /// See [`Parts::permit_move`].
    pub fn permit_move(&self) {
        match &self.source {
            Source::Parts(parts) => parts.permit_move(),
            Source::Generator(generator) => generator.permit_move(),
        }
    }

    /// See [`Parts::proposes_move`].
    pub fn proposes_move(&self) -> bool {
        match &self.source {
            Source::Parts(parts) => parts.proposes_move(),
            Source::Generator(generator) => generator.proposes_move(),
        }
    }

    /// See [`Parts::take_carrying`].
    pub fn take_carrying(&self) -> Option<Carrying> {
        match &self.source {
            Source::Parts(parts) => parts.take_carrying(),
            Source::Generator(generator) => generator.take_carrying(),
        }
    }

    /// Returns the next part.
    pub async fn part(&mut self) -> Option<Result<Part, Error>> {
        std::future::poll_fn(|cx| self.poll_part(cx)).await
    }
}

/// A reply within another reply.
struct Layered(Reply);

impl Parts for Layered {
    fn below(&self) -> Option<&Reply> {
        Some(&self.0)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        self.0.poll_part(cx)
    }
}

struct Ready(VecDeque<Result<Part, Error>>);

impl Parts for Ready {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn poll_part(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        Poll::Ready(self.0.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_key_are_apart() {
        let key = Isolation::new(b"user", b"");
        let (one, two) = (key.within(1), key.within(2));
        assert!(one != key && one != two && one != Isolation::none().within(1));
        assert_eq!((one.connection(), key.connection()), (1, 0));
        assert_eq!(one.within(2), two);
        assert_eq!((one.whole(), two.whole()), (key.clone(), key.clone()));
        assert_eq!(one.credentials(), key.credentials());
    }

    pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        match future
            .as_mut()
            .poll(&mut Context::from_waker(std::task::Waker::noop()))
        {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("would wait"),
        }
    }

    #[test]
    fn sink_is_not_used_by_100_continue() {
        let mut reply = Reply::generate(|mut sink| async move {
            sink.send(Part::Hints(ResponseHead::new(100))).await;
            assert!(!sink.is_used());
            sink.send(Part::Hints(ResponseHead::new(103))).await;
            assert!(sink.is_used());
            sink.send(Part::Hints(ResponseHead::new(100))).await;
            assert!(sink.is_used());
            Ok(())
        });
        let mut count = 0;
        while let Some(Ok(_)) = now(reply.part()) {
            count += 1;
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn reply_edits_heads_and_trailers_in_turn() {
        let first = |fields: &mut Fields| fields.push("a", "1");
        let second = |fields: &mut Fields| fields.set("a", "2");
        let mut reply = Reply::generate(|mut sink| async move {
            sink.send(Part::Hints(ResponseHead::new(103))).await;
            sink.send(Part::Head(ResponseHead::new(200))).await;
            sink.send(Part::Data(Bytes::from_static(b"x"))).await;
            sink.send(Part::Trailers(Fields::new())).await;
            Ok(())
        })
        .edited(first)
        .edited(second);
        let mut values = Vec::new();
        while let Some(Ok(part)) = now(reply.part()) {
            match part {
                Part::Hints(head) | Part::Head(head) => {
                    values.push(head.fields.get("a") == Some(b"2"))
                }
                Part::Trailers(fields) => values.push(fields.len() == 1),
                _ => {}
            }
        }
        assert_eq!(values, [true; 3]);
    }
}
