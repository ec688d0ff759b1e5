//! Pipelining at the client end of an HTTP/1.1 connection (RFC 9112 section 9.3.2): a second
//! request leaves before the response to the first has ended.
//!
//! ```text
//!  leader   ──request──▶ reads its response ──turn──┐
//!  follower ──request──▶ waits for its turn         └▶ reads its response ──▶ idle connection
//! ```
//!
//! The exchange that reads holds the turn: the bytes that were read too far, and the timer of the
//! connection. If the leader fails or is dropped, the connection is used up, and the follower
//! reports an error after which a GET may be repeated. The follower also gives up if the response
//! before it is very long or makes no progress. Its own response then uses the path in vain, so
//! requests are not pipelined while the origin sends large responses.
//!
//! Some servers drop a request that arrives while they serve another. If a third request then left,
//! its response would pass for the dropped one's. So no request leaves between the turn of the
//! follower and the end of its response.
//!
//! Many servers close a connection after a number of responses. A request behind the last one is
//! lost. A request therefore follows another one only if some connection to the origin stayed open
//! after as many responses. One request at a time, the *scout*, is exempt: it finds the number for
//! all connections.
//!
//! A server that closes its connection resets it if a request on it is unread. The end of a
//! response that only the close marks is then unknown, and the last bytes may be lost. If a request
//! is behind such a response, both are repeated, each on its own connection. Requests to this
//! origin are not pipelined any more. Interim responses such as 103 wait for the head that shows
//! this, since no request is repeated after a part of its response.
//!
//! The same holds for a response whose framing was repaired. It has a clear end itself and is
//! passed on, so only the request behind it is repeated.
//!
//! nginx keeps each connection with pipelined requests after its last response until the client
//! closes it too, and counts it as one in use. [`Http1Client::fate`] therefore tells whether a
//! request may be the last one of such a connection. The client closes it before that.

use std::cell::Cell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::Method;
use tandem_http::h1::{Framing, Response, Version};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;

use super::Http1Client;
use super::buffers;
use super::client::{CarrierState, send_head, sent_error};
use super::response::{ReadTimer, ResponseReader};
use super::shared_path::SharedPath;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Part, Sink};

/// The largest number of requests without a complete response on one connection.
pub const DEPTH: usize = 2;

/// The media type of event streams.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// The time between two checks of the response before a request.
const CHECK: Duration = Duration::from_millis(250);

/// The time for the first byte of a follower's response, until the origin has [answered](PROVEN)
/// some. An origin that drops such requests costs this time once.
const UNPROVEN: Duration = Duration::from_secs(3);

/// The number of answered followers after which their responses may take [longer](LATE).
const PROVEN: usize = 8;

/// The time for the first byte of a follower's response if the origin has answered others.
const LATE: Duration = Duration::from_secs(15);

/// The bytes of a response from which it is large. It takes a round trip or more by itself, so a
/// request behind it saves little time, and its connection ends if that request moves.
const LARGE: u64 = 256 << 10;

/// The number of responses that are not large after which a large one is forgotten.
const LARGE_WEIGHT: u8 = 4;

/// The largest number of them after several large ones.
const MAX_LARGE_WEIGHT: u8 = 16;

/// The exchanges on one connection.
pub(super) struct Line {
    path: SharedPath,
    /// The number of the first exchange on this connection, from 1.
    leader: usize,
    /// The exchange behind the one that reads.
    follower: Option<oneshot::Sender<Turn>>,
    /// True if no request may follow.
    is_closed: bool,
}

/// The right to read the next response.
struct Turn {
    path: SharedPath,
    timer: ReadTimer,
    /// The bytes that were read and belong to this response.
    input: Bytes,
    /// True if another response came before this one.
    follows: bool,
}

/// The properties of an origin that its connections show.
#[derive(Clone, Debug, Default)]
pub struct Traits(Rc<TraitCells>);

#[derive(Debug, Default)]
struct TraitCells {
    is_persistent: Cell<bool>,
    /// The number of followers that were answered.
    answered: Cell<usize>,
    is_refused: Cell<bool>,
    /// The number of responses after which the origin closes connections, if it has announced that.
    /// A request behind the last one would be lost, and the origin would wait for more of them
    /// before it closes.
    lasts: Cell<Option<usize>>,
    /// True if two connections have ended after that number.
    is_confirmed: Cell<bool>,
    /// The largest number of responses after which a connection has stayed open.
    survived: Cell<usize>,
    /// True while a scout waits for the response before its own.
    is_scouted: Cell<bool>,
    /// The number of responses that are not large before requests are pipelined again.
    large: Cell<u8>,
}

impl Traits {
    /// Returns whether requests may be pipelined: the origin keeps connections open, and no
    /// pipelined request has failed. The last responses were not large.
    pub fn permits(&self) -> bool {
        self.0.is_persistent.get() && !self.0.is_refused.get() && self.0.large.get() == 0
    }

    /// Notes whether a response is large.
    fn note_size(&self, is_large: bool) {
        let large = self.0.large.get();
        self.0.large.set(match is_large {
            true => (large + LARGE_WEIGHT).min(MAX_LARGE_WEIGHT),
            false => large.saturating_sub(1),
        });
    }

    fn lasts(&self) -> usize {
        self.0.lasts.get().unwrap_or(usize::MAX)
    }

    /// Learns from the last of the `answered` responses of a connection.
    fn note_life(&self, answered: usize, keeps: bool) {
        if !keeps {
            self.0.is_confirmed.set(answered == self.lasts());
            self.0.lasts.set(Some(answered));
            return;
        }
        self.0.survived.set(answered.max(self.0.survived.get()));
        if answered >= self.lasts() {
            self.0.lasts.set(None);
        }
    }

    /// Returns whether connections have stayed open after this number of responses.
    fn is_survived(&self, answered: usize) -> bool {
        answered <= self.0.survived.get()
    }

    /// Returns the fate of a connection after the response with this number. A single connection
    /// may have ended for another reason.
    fn fate(&self, number: usize) -> ConnectionFate {
        match number.cmp(&self.lasts()) {
            Ordering::Less if self.is_survived(number) => ConnectionFate::StaysOpen,
            Ordering::Less => ConnectionFate::Unknown,
            Ordering::Equal if !self.0.is_confirmed.get() => ConnectionFate::Unknown,
            Ordering::Equal | Ordering::Greater => ConnectionFate::Ends,
        }
    }

    /// Returns whether a request may follow the one with this number on a connection.
    /// `may_scout` permits that the connection ends with it.
    fn may_follow(&self, leader: usize, may_scout: bool) -> bool {
        let is_safe = match self.fate(leader + 1) {
            ConnectionFate::StaysOpen => true,
            ConnectionFate::Unknown => {
                may_scout && (self.is_survived(leader) || !self.0.is_scouted.get())
            }
            ConnectionFate::Ends => false,
        };
        self.permits() && is_safe
    }

    /// Begins to scout if nothing is known about connections after this number of responses.
    fn scout(&self, leader: usize) -> Option<Scout> {
        let is_scout = !self.is_survived(leader);
        is_scout.then(|| {
            self.0.is_scouted.set(true);
            Scout(self.clone())
        })
    }

    /// Notes that a pipelined request has failed.
    fn refuse(&self) {
        self.0.is_refused.set(true);
    }

    /// Notes a response, and returns whether its connection can carry another one. A follower fails
    /// if the origin has probably not understood its request.
    fn note_response(&self, response: &Response, follows: bool) -> Result<bool, Error> {
        let keeps = response.keep_alive;
        if follows && !keeps && matches!(response.head.status, 400 | 408) {
            return Err(used_up());
        }
        // Servers of HTTP/1.0 need not know pipelining.
        if keeps && response.version == Version::Http11 {
            self.0.is_persistent.set(true);
        }
        Ok(keeps)
    }

    fn note_answered(&self) {
        let answered = &self.0.answered;
        answered.set(answered.get().saturating_add(1));
    }
}

/// The state of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFate {
    /// Another connection stayed open, or it does not matter.
    StaysOpen,
    /// No connection has had as many responses.
    Unknown,
    /// The origin closes its connections then.
    Ends,
}

/// A request that may be lost because the response before it may be the last of its connection.
struct Scout(Traits);

impl Drop for Scout {
    fn drop(&mut self) {
        self.0.0.is_scouted.set(false);
    }
}

/// Returns whether a request may be pipelined, and may have requests behind it. Documents are
/// excluded, since origins may take long for them, and event streams, which do not end.
pub fn is_pipelinable(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    let accepts = |kind: &[u8]| {
        let accept = request.fields.get("accept");
        accept.is_some_and(|accept| contains(accept, kind))
    };
    request.method == Method::Get
        && request.protocol.is_none()
        && exchange.body.is_empty()
        && request.fields.get("range").is_none()
        && !accepts(b"text/html")
        && !accepts(EVENT_STREAM)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Marks the connection as used up unless the response ends regularly.
struct Reading<'a> {
    client: &'a Http1Client,
    is_over: bool,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.client.state.replace(CarrierState::Taken);
        }
    }
}

impl Http1Client {
    /// Returns whether a request may follow on this connection now.
    /// `may_scout` permits that the connection ends with it.
    pub fn may_be_followed(&self, traits: &Traits, may_scout: bool) -> bool {
        let may_be_followed = self.with_line(|line| {
            !line.is_closed && traits.may_follow(line.leader, may_scout) && line.path.is_short()
        });
        may_be_followed == Some(true)
    }

    /// Reads or changes the line of exchanges, if there is one.
    fn with_line<T>(&self, change: impl FnOnce(&mut Line) -> T) -> Option<T> {
        match &mut *self.state.borrow_mut() {
            CarrierState::Pipelined(line) => Some(change(line)),
            _ => None,
        }
    }

    /// Returns the fate of this idle connection after its next response. It matters only if the
    /// connection has carried pipelined requests.
    pub fn fate(&self, traits: &Traits) -> ConnectionFate {
        match self.is_pipelined.get() {
            true => traits.fate(self.answered.get() + 1),
            false => ConnectionFate::StaysOpen,
        }
    }

    /// Returns whether this connection has carried pipelined requests, and may end with the
    /// responses under way.
    pub fn is_scouting(&self, traits: &Traits) -> bool {
        self.is_pipelined.get() && traits.fate(self.sent.get()) != ConnectionFate::StaysOpen
    }

    /// Runs the first exchange of an idle connection, a request without a body. Another exchange
    /// may follow if this is [permitted](is_pipelinable). `begun` is called once it may.
    ///
    /// # Errors
    /// Fails like [`Http1Client::exchange`].
    pub async fn lead(
        &self,
        traits: &Traits,
        exchange: &mut Exchange,
        sink: &mut Sink,
        begun: impl FnOnce(),
    ) -> Result<(), Error> {
        let _busy = self.enter();
        let (path, timer) = self.take_path().await?;
        let path = SharedPath::new(path);
        self.write_head(&path, exchange).await?;
        let line = Line {
            path: path.clone(),
            leader: self.answered.get() + 1,
            follower: None,
            is_closed: !is_pipelinable(exchange),
        };
        self.sent.set(line.leader);
        self.state.replace(CarrierState::Pipelined(line));
        begun();
        let turn = Turn {
            path,
            timer,
            input: Bytes::new(),
            follows: false,
        };
        self.read(traits, turn, exchange, sink).await
    }

    /// Runs an exchange behind the one that is under way. [`Self::may_be_followed`] must hold.
    ///
    /// # Errors
    /// Fails like [`Http1Client::exchange`], and with [`Retry::IfIdempotent`] if the connection
    /// ends before the response.
    pub async fn follow(
        &self,
        traits: &Traits,
        exchange: &mut Exchange,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let _busy = self.enter();
        let (turn, mut arrived) = oneshot::channel();
        let joined = self.with_line(|line| {
            line.follower = Some(turn);
            line.is_closed = true;
            self.is_pipelined.set(true);
            self.sent.set(line.leader + 1);
            (line.path.clone(), traits.scout(line.leader))
        });
        let (path, scout) = joined.ok_or_else(used_up)?;
        self.write_head(&path, exchange).await?;
        let mut turn = loop {
            match tokio::time::timeout(CHECK, &mut arrived).await {
                Ok(Ok(turn)) => break turn,
                Ok(Err(_)) => return Err(used_up()),
                Err(_) if path.is_tedious() => return Err(used_up()),
                Err(_) => {}
            }
        };
        drop((path, scout));
        turn.path.begin();
        if turn.input.is_empty() {
            let limit = match traits.0.answered.get() {
                0..PROVEN => UNPROVEN,
                _ => LATE,
            };
            let first = first_bytes(&mut turn.path, limit).await;
            turn.input = first.ok_or_else(|| {
                self.state.replace(CarrierState::Taken);
                traits.refuse();
                used_up()
            })?;
        }
        let read = self.read(traits, turn, exchange, sink).await;
        read.map_err(|error| of_follower(traits, error))?;
        traits.note_answered();
        Ok(())
    }

    async fn write_head(&self, path: &SharedPath, exchange: &Exchange) -> Result<(), Error> {
        let mut path = path.clone();
        {
            let rest = send_head(
                &mut path,
                &exchange.request,
                self.session.form,
                Framing::None,
                &[],
            )
            .map_err(sent_error)?;
            if !rest.is_empty() {
                path.write_all(&rest).await.map_err(sent_error)?;
            }
        }
        path.flush().await.map_err(sent_error)
    }

    fn has_follower(&self) -> bool {
        self.with_line(|line| line.follower.is_some()) == Some(true)
    }

    /// Lets no other request follow. Returns whether one has followed.
    fn close_line(&self) -> bool {
        let followed = self.with_line(|line| {
            line.is_closed = true;
            line.follower.is_some()
        });
        followed == Some(true)
    }

    /// Reads the response of the exchange that has the turn, and passes the turn on.
    async fn read(
        &self,
        traits: &Traits,
        turn: Turn,
        exchange: &Exchange,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let Turn {
            mut path,
            mut timer,
            input,
            follows,
        } = turn;
        let mut reading = Reading {
            client: self,
            is_over: false,
        };
        let is_reused = self.answered.get() > 0;
        let mut reader = ResponseReader {
            input,
            // The response may have to be read on another connection. Browsers take hints for
            // documents only.
            held: is_pipelinable(exchange).then(Vec::new),
            ..ResponseReader::new(
                &self.session,
                &exchange.request.method,
                is_reused,
                &mut timer,
            )
        };
        let response = async {
            let response = reader.heads(&mut path, sink).await?;
            // No request follows a document, so the end of one says nothing about others.
            if matches!(response.framing, Framing::UntilClose) && is_pipelinable(exchange) {
                traits.refuse();
                if self.close_line() {
                    return Err(used_up());
                }
            }
            // Its connection ends, and the request behind it goes elsewhere.
            if response.is_repaired {
                traits.refuse();
            }
            let kind = response.head.fields.get("content-type");
            if kind.is_some_and(|kind| contains(&kind.to_ascii_lowercase(), EVENT_STREAM)) {
                path.note_endless();
            }
            let counts = is_pipelinable(exchange);
            let mut is_sized = false;
            if let Framing::Length(length) = response.framing {
                is_sized = true;
                path.note_length(length);
                if length > LARGE {
                    self.close_line();
                }
                if counts {
                    traits.note_size(length > LARGE);
                }
            }
            let keeps = traits.note_response(&response, follows)?;
            self.answered.set(self.answered.get() + 1);
            traits.note_life(self.answered.get(), keeps);
            for hints in reader.held.take().unwrap_or_default() {
                sink.send(Part::Hints(hints)).await;
            }
            reader.rest(&mut path, response, sink).await?;
            if counts && !is_sized {
                traits.note_size(path.received() > LARGE);
            }
            Ok(keeps)
        };
        let keeps = response.await.inspect_err(|_| {
            if self.has_follower() {
                traits.refuse();
            }
        })?;
        let input = std::mem::take(&mut reader.input);
        if !keeps {
            return Ok(());
        }
        reading.is_over = self.pass_on(Turn {
            path,
            timer,
            input,
            follows: true,
        });
        Ok(())
    }

    /// Passes the turn to the follower, or leaves the connection idle. Returns false if the
    /// connection is used up.
    fn pass_on(&self, turn: Turn) -> bool {
        match self.with_line(|line| line.follower.take()).flatten() {
            // If the follower has given up, its response still comes on this connection.
            Some(next) => next.send(turn).is_ok(),
            None if turn.input.is_empty() => {
                // The line shares the path.
                self.state.replace(CarrierState::Taken);
                if let Some(path) = turn.path.into_path() {
                    self.state.replace(CarrierState::Idle(path, turn.timer));
                }
                true
            }
            None => false,
        }
    }
}

/// Reads the first bytes of a response. Returns `None` if none come within `limit`.
async fn first_bytes(path: &mut SharedPath, limit: Duration) -> Option<Bytes> {
    let read = std::future::poll_fn(|cx| buffers::poll_read(path, buffers::ReadSize::First, cx));
    let read = tokio::time::timeout(limit, read).await;
    read.ok()?.ok().filter(|bytes| !bytes.is_empty())
}

/// Returns the error of a follower whose response could not be read. The bytes may belong to the
/// response before it, so the request may be repeated until a part of its response has left.
fn of_follower(traits: &Traits, error: Error) -> Error {
    match error.kind {
        Kind::Protocol | Kind::Truncated | Kind::Reset => {
            traits.refuse();
            error.with_retry(Retry::IfIdempotent)
        }
        _ => error,
    }
}

/// Returns the error of a request whose response will not come on this connection.
fn used_up() -> Error {
    let detail = "the connection ended before the response to a pipelined request";
    Error::new(Kind::Reset, Side::Origin, detail).with_retry(Retry::IfIdempotent)
}
