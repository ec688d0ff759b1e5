//! The gateway's stage that compresses the bodies of responses for the path to the client.
//!
//! ```text
//!  request with an offer ─▶ Compress ─▶ push, cache, origin
//!  coded body ◀── Coded ◀── reply ──────────┘   (pushes in it: the same, each for itself)
//! ```
//!
//! It lies before `push`, so that the stages behind it see bodies as origins send them.
//! [`tandem_coding`] decides and encodes; this stage moves the data. It flushes the encoder as soon
//! as the origin pauses, so compression delays no byte. It keeps the latest version of each short
//! body, as a dictionary for the next one of the same URL on the same session. Bodies with gzip are
//! decoded first, if both ends permit it ([`tandem_coding::recode`]).

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tandem_coding::dictionary::{MAX_DICTIONARY, Memory};
use tandem_coding::level::level;
use tandem_coding::rule::{Credentials, may_compress, may_recode};
use tandem_coding::{
    Budget, CodingError, Dictionaries, Dictionary, Encoder, Gunzip, Name, Reservation, recode, wire,
};
use tandem_http::message::content_length;
use tandem_http::{Fields, Method, RequestHead, ResponseHead};
use tandem_push::wire::{ASKED_FIELD, RequestHashes};
use tokio::time::Sleep;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, PushedPart, Reply};
use crate::metrics::METRICS;
use crate::middle::logins::Logins;
use crate::path::Facts;
use crate::path_speed::PathSpeed;
use crate::stage::Stage;
use crate::versions::CollectedBody;

/// The memory in bytes for the encoders of one thread.
const ALL_ENCODERS: usize = 64 << 20;

/// The memory in bytes for the former versions of bodies of one thread.
const ALL_VERSIONS: usize = 64 << 20;

/// The memory in bytes for the encoders of one session.
const ENCODERS: usize = 32 << 20;

/// The number of bytes of output that are sent without waiting for more.
const ENOUGH: usize = 16 << 10;

/// The number of bytes that one poll encodes before other streams have their turn.
const TURN: usize = 64 << 10;

/// The number of bytes that gzip may expand to without a pause, at any ratio.
const UNPAUSED: u64 = 16 << 20;

/// The number of bytes above which a byte of gzip expands like no text, on average of a body.
const EXPANSION: u64 = 100;

/// The pause after each [`TURN`] of a body that expands like no text. It leaves 6 MB/s, which take
/// a few per cent of a core.
const PAUSE: Duration = Duration::from_millis(10);

/// The stage of one session.
pub struct Compress {
    session: Rc<CompressSession>,
    next: Rc<dyn Stage>,
}

/// The memory that the sessions of one thread of a gateway share.
#[derive(Clone, Debug)]
pub struct CodingMemory {
    /// The memory of encoders.
    pub(super) coders: Budget,
    /// The memory of the former versions of bodies.
    pub(super) versions: Memory,
}

impl CodingMemory {
    /// Returns the memory of one thread of a gateway.
    pub fn of_gateway() -> Self {
        Self::new(ALL_ENCODERS, ALL_VERSIONS)
    }

    /// Creates memory of these sizes in bytes.
    pub(super) fn new(coders: usize, versions: usize) -> Self {
        Self {
            coders: Budget::new(coders),
            versions: Memory::new(versions),
        }
    }
}

/// The properties that the replies of a session share.
struct CompressSession {
    encoders: Budget,
    /// The latest versions of bodies by URL. They end with the session.
    versions: Dictionaries,
    all: CodingMemory,
    speed: Option<PathSpeed>,
    /// True if bodies with gzip may lose that coding.
    permits_recoding: bool,
    logins: Logins,
}

impl Compress {
    /// Creates the stage for a session on `path`. The session shares `all` with others. With
    /// `permits_recoding`, bodies with gzip may lose that coding.
    pub fn new(
        all: &CodingMemory,
        path: &Rc<dyn Facts>,
        permits_recoding: bool,
        next: Rc<dyn Stage>,
    ) -> Self {
        let session = CompressSession {
            permits_recoding,
            logins: Logins::default(),
            versions: Dictionaries::default(),
            encoders: all.coders.part(ENCODERS),
            all: all.clone(),
            speed: PathSpeed::of(path),
        };
        Self {
            session: Rc::new(session),
            next,
        }
    }
}

impl Stage for Compress {
    fn call(&self, mut exchange: Exchange) -> Reply {
        self.session.logins.note(&exchange.request);
        if !wire::has_offer(&exchange.request.fields) {
            return self.next.call(exchange);
        }
        let offer = wire::take_offer(&mut exchange.request_mut().fields);
        let request = Arc::clone(&exchange.request);
        let reply = self.next.call(exchange);
        match offer {
            Some(offer) if !request.is_connect() && request.protocol.is_none() => {
                let recodes = offer.permits_recoding && self.session.permits_recoding;
                let asked = AskedResponse::Request(request, offer.version);
                Coded::reply(&self.session, recodes, asked, reply)
            }
            _ => reply,
        }
    }
}

/// The stage that stands in for [`Compress`] when bodies are not compressed. It removes the offers
/// of clients, which would make requests differ for push and the cache.
pub struct NoCompress {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for NoCompress {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if wire::has_offer(&exchange.request.fields) {
            wire::take_offer(&mut exchange.request_mut().fields);
        }
        self.next.call(exchange)
    }
}

/// The request of a response.
enum AskedResponse {
    /// The client sent it, and holds this version of the body.
    Request(Arc<RequestHead>, Option<Name>),
    /// The gateway sent it for a push, with fields that the head of the push describes.
    Push(RequestHead),
}

impl AskedResponse {
    fn request(&self) -> &RequestHead {
        match self {
            Self::Request(request, _) => request,
            Self::Push(request) => request,
        }
    }

    /// Returns the credentials of the request. A push without a description may have had any.
    fn credentials(&self, logins: &Logins, head: &ResponseHead) -> Credentials {
        let named = logins.credentials(self.request());
        if matches!(self, Self::Request(..)) || named == Credentials::Other {
            return named;
        }
        let asked = head.fields.get(ASKED_FIELD).and_then(RequestHashes::parse);
        match asked {
            None => Credentials::Other,
            Some(asked) if asked.has_same_cookie(RequestHashes::of(&Fields::new())) => named,
            Some(_) => Credentials::Cookies,
        }
    }

    /// Returns the version that the client holds, if the gateway holds the same. For a push, that
    /// is unknown.
    fn common(&self, session: &CompressSession) -> Option<Dictionary> {
        let Self::Request(request, Some(name)) = self else {
            return None;
        };
        let version = session.versions.get(&request.url());
        version.filter(|version| version.name == *name)
    }
}

/// A reply with a compressed body, if the body may be compressed.
struct Coded {
    session: Rc<CompressSession>,
    /// True if both ends permit bodies with gzip to lose that coding.
    recodes: bool,
    asked: AskedResponse,
    reply: Reply,
    encoding: Option<Encoding>,
    /// The part or error that follows the last data of the frame.
    held: Option<Result<Part, Error>>,
    /// The pause of a body that expands like no text.
    pause: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

/// The encoder of a body, with its memory.
struct Encoding {
    /// The decoder of a body with gzip.
    gunzip: Option<Gunzip>,
    encoder: Encoder,
    /// The body so far, unless it is too long for a dictionary.
    body: CollectedBody,
    _memory: Reservation,
}

impl Coded {
    fn reply(
        session: &Rc<CompressSession>,
        recodes: bool,
        asked: AskedResponse,
        reply: Reply,
    ) -> Reply {
        Reply::new(Self {
            session: Rc::clone(session),
            recodes,
            asked,
            reply,
            encoding: None,
            held: None,
            pause: None,
            is_over: false,
        })
    }

    /// Begins to encode the body after `head`, unless a rule, the speed of the path or the memory
    /// prevents that.
    fn on_head(&mut self, head: &mut ResponseHead) {
        let request = self.asked.request();
        let credentials = self.asked.credentials(&self.session.logins, head);
        if may_compress(request, credentials, head) {
            self.encode(head, false);
        } else if self.recodes && head.status == 304 {
            recode::transform_not_modified(request, head);
        } else if self.recodes && may_recode(request, credentials, head) {
            let mut decoded = head.clone();
            recode::transform(&mut decoded);
            let is_head = request.method == Method::Head && self.session.level().is_some();
            if is_head || self.encode(&mut decoded, true) {
                *head = decoded;
            }
        }
    }

    /// Begins to encode the body after `head`, with the difference to a version if there is one.
    /// Returns false if the speed of the path or the memory prevents that.
    fn encode(&mut self, head: &mut ResponseHead, is_gzip: bool) -> bool {
        if let Some(common) = self.asked.common(&self.session) {
            self.encoding = self.session.encoding(head, Some(&common), is_gzip);
            if self.encoding.is_some() {
                wire::mark(head);
                wire::need_dictionary(head, common.name);
                return true;
            }
        }
        self.encoding = self.session.encoding(head, None, is_gzip);
        if self.encoding.is_some() {
            wire::mark(head);
        }
        self.encoding.is_some()
    }

    /// Adds data to the frame, or to the input of its decoder. Returns the part to send now, if
    /// there is enough output.
    fn on_data(encoding: &mut Encoding, data: Bytes) -> Result<Option<Part>, Error> {
        if let Some(gunzip) = &mut encoding.gunzip {
            gunzip.write(data);
            return Ok(None);
        }
        encoding.encoder.write(&data).map_err(failed)?;
        encoding.body.add(&data);
        Ok(encoding.take_enough())
    }

    /// Decodes a piece of a body with gzip and encodes it. Returns its length, or `None` if there
    /// is none.
    fn recode(&mut self) -> Result<Option<usize>, Error> {
        let length = self.encoding.as_mut().map_or(Ok(0), Encoding::recode);
        let length = length.map_err(failed)?;
        Ok((length > 0).then_some(length))
    }

    /// Ends the frame before `last`, or before the end of the reply. A body that broke off is not
    /// ended, but the client gets all of it.
    fn on_end(&mut self, last: Option<Result<Part, Error>>) -> Option<Result<Part, Error>> {
        self.held = last;
        self.is_over = true;
        let mut encoding = self.encoding.take()?;
        let gunzip = encoding.gunzip.as_ref().map(Gunzip::finish);
        if let (None | Some(Ok(_)), Some(Err(error))) = (&self.held, gunzip) {
            self.held = Some(Err(failed(error)));
        }
        let is_whole = !matches!(self.held, Some(Err(_)));
        let written = match is_whole {
            true => encoding.encoder.finish(),
            false => encoding.encoder.flush(),
        };
        match written {
            Ok(()) => {
                if let Some(body) = encoding.body.finish().filter(|_| is_whole) {
                    let (session, url) = (&self.session, self.asked.request().url());
                    session.versions.insert(url, body, &session.all.versions);
                }
                encoding.take().map(Ok)
            }
            Err(error) => {
                self.held = None;
                Some(Err(failed(error)))
            }
        }
    }

    /// Takes a part of a body that is encoded. Returns the part to send now, if there is one.
    fn on_part(&mut self, part: Part) -> Result<Option<Part>, Error> {
        match (part, &mut self.encoding) {
            (Part::Data(data), Some(encoding)) => Self::on_data(encoding, data),
            (Part::Trailers(mut fields), Some(encoding)) => {
                if encoding.gunzip.is_some() {
                    recode::transform_trailers(&mut fields);
                }
                self.on_end(Some(Ok(Part::Trailers(fields)))).transpose()
            }
            (part, _) => Ok(Some(self.unencoded(part))),
        }
    }

    /// Lets other tasks have their turn, with a pause if the body expands like no text.
    fn give_turn(&mut self, cx: &mut Context<'_>) {
        if self.encoding.as_ref().is_some_and(Encoding::is_expanding) {
            let mut pause = Box::pin(tokio::time::sleep(PAUSE));
            if pause.as_mut().poll(cx).is_pending() {
                self.pause = Some(pause);
                return;
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Returns the data so far, so that the client need not wait for the origin.
    fn flush(&mut self) -> Result<Option<Part>, Error> {
        let Some(encoding) = &mut self.encoding else {
            return Ok(None);
        };
        encoding.encoder.flush().map_err(failed)?;
        Ok(encoding.take())
    }

    /// Passes on a part that is not encoded. A head may begin the encoding, and a push becomes
    /// another coded reply.
    fn unencoded(&mut self, part: Part) -> Part {
        match part {
            Part::Head(mut head) => {
                self.on_head(&mut head);
                Part::Head(head)
            }
            Part::Pushed(pushed) => {
                let asked = AskedResponse::Push(pushed.request.clone());
                Part::Pushed(Box::new(PushedPart {
                    reply: Self::reply(&self.session, self.recodes, asked, pushed.reply),
                    ..*pushed
                }))
            }
            other => other,
        }
    }
}

impl CompressSession {
    /// Returns the level for the present speed of the path.
    fn level(&self) -> Option<i32> {
        match &self.speed {
            None => level(None),
            Some(speed) => level(speed.measure().map(|measure| measure.rate)),
        }
    }

    fn encoding(
        &self,
        head: &ResponseHead,
        version: Option<&Dictionary>,
        is_gzip: bool,
    ) -> Option<Encoding> {
        let level = self.level()?;
        let length = content_length(&head.fields).ok()?;
        let dictionary = version.map_or(&[][..], |version| &version.body);
        let memory = Encoder::memory(length, dictionary.len());
        let gunzip = if is_gzip { Gunzip::MEMORY } else { 0 };
        let memory = self.encoders.reserve(memory + MAX_DICTIONARY + gunzip)?;
        let encoder = Encoder::with_dictionary(level, length, dictionary)
            .inspect_err(|error| tracing::warn!(%error, "a body is sent uncompressed"));
        Some(Encoding {
            gunzip: is_gzip.then(Gunzip::new),
            encoder: encoder.ok()?,
            body: CollectedBody::of(length),
            _memory: memory,
        })
    }
}

impl Encoding {
    fn take(&mut self) -> Option<Part> {
        self.encoder.take().map(Part::Data)
    }

    fn take_enough(&mut self) -> Option<Part> {
        let is_enough = self.encoder.ready() >= ENOUGH;
        is_enough.then(|| self.take()).flatten()
    }

    /// Returns whether the body expands like no text. A few bytes of it would otherwise keep the
    /// thread busy for long, and the path does not slow that down.
    fn is_expanding(&self) -> bool {
        let counts = self.gunzip.as_ref().map(Gunzip::counts);
        counts.is_some_and(|(coded, decoded)| decoded > UNPAUSED.max(coded * EXPANSION))
    }

    /// Decodes a piece of a body with gzip and encodes it. Returns its length, or 0 if it needs
    /// more data.
    fn recode(&mut self) -> Result<usize, CodingError> {
        let Some(gunzip) = &mut self.gunzip else {
            return Ok(0);
        };
        let Some(piece) = gunzip.read()? else {
            return Ok(0);
        };
        self.encoder.write(piece)?;
        self.body.add(piece);
        Ok(piece.len())
    }
}

impl Drop for Encoding {
    fn drop(&mut self) {
        let (before, after) = self.encoder.counts();
        let gunzip = self.gunzip.as_ref().map(Gunzip::counts);
        METRICS
            .coding_bytes_before
            .add(gunzip.map_or(before, |(coded, _)| coded));
        METRICS.coding_bytes_after.add(after);
    }
}

impl Parts for Coded {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let mut turn = 0;
        while !self.is_over {
            let part = match self.recode() {
                Err(error) => self.on_end(Some(Err(error))),
                Ok(Some(length)) => {
                    turn += length;
                    self.encoding
                        .as_mut()
                        .and_then(Encoding::take_enough)
                        .map(Ok)
                }
                Ok(None) => match self.reply.poll_part(cx) {
                    Poll::Ready(Some(Ok(part))) => {
                        if let Part::Data(data) = &part {
                            turn += data.len();
                        }
                        self.on_part(part).transpose()
                    }
                    Poll::Ready(end) => self.on_end(end),
                    Poll::Pending => match self.flush().transpose() {
                        None => return Poll::Pending,
                        flushed => flushed,
                    },
                },
            };
            if part.is_some() {
                self.is_over |= matches!(part, Some(Err(_)));
                return Poll::Ready(part);
            }
            if turn >= TURN && !self.is_over {
                self.give_turn(cx);
                return Poll::Pending;
            }
        }
        Poll::Ready(self.held.take())
    }
}

fn failed(error: CodingError) -> Error {
    // The encoder checks the body against the length that the origin stated.
    Error::new(Kind::Truncated, Side::Origin, error.to_string())
}

#[cfg(test)]
pub(super) mod tests;
