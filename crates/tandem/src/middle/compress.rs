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

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_coding::dictionary::MAX_DICTIONARY;
use tandem_coding::level::level;
use tandem_coding::rule::{Credentials, may_compress, may_recode};
use tandem_coding::{
    Budget, CodingError, Dictionaries, Dictionary, Encoder, Gunzip, Name, Reservation, recode, wire,
};
use tandem_http::message::content_length;
use tandem_http::{Fields, Method, RequestHead, ResponseHead};
use tandem_push::wire::{ASKED_FIELD, RequestHashes};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, PushedPart, Reply, Supply};
use crate::metrics::METRICS;
use crate::middle::logins::Logins;
use crate::path::Facts;
use crate::path_speed::PathSpeed;
use crate::stage::Stage;
use crate::versions::Body;

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

/// The stage of one session.
pub struct Compress {
    session: Rc<Session>,
    next: Rc<dyn Stage>,
}

/// The memory that the sessions of one thread of a gateway, or those of a client, share.
#[derive(Clone, Debug)]
pub struct CodingMemory {
    /// The memory of encoders or decoders.
    pub(super) coders: Budget,
    /// The memory of the former versions of bodies.
    pub(super) versions: Budget,
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
            versions: Budget::new(versions),
        }
    }
}

/// The properties that the replies of a session share.
struct Session {
    encoders: Budget,
    /// The latest versions of bodies by URL. They end with the session.
    versions: RefCell<Dictionaries>,
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
        let session = Session {
            permits_recoding,
            logins: Logins::default(),
            versions: RefCell::default(),
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
                let asked = Asked::Request(request, offer.version);
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
enum Asked {
    /// The client sent it, and holds this version of the body.
    Request(Arc<RequestHead>, Option<Name>),
    /// The gateway sent it for a push, with fields that the head of the push describes.
    Push(RequestHead),
}

impl Asked {
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
    fn common(&self, session: &Session) -> Option<Dictionary> {
        let Self::Request(request, Some(name)) = self else {
            return None;
        };
        let version = session.versions.borrow_mut().get(&request.url());
        version.filter(|version| version.name == *name)
    }
}

/// A reply with a compressed body, if the body may be compressed.
struct Coded {
    session: Rc<Session>,
    /// True if both ends permit bodies with gzip to lose that coding.
    recodes: bool,
    asked: Asked,
    reply: Reply,
    encoding: Option<Encoding>,
    /// The part or error that follows the last data of the frame.
    held: Option<Result<Part, Error>>,
    is_over: bool,
}

/// The encoder of a body, with its memory.
struct Encoding {
    /// The decoder of a body with gzip.
    gunzip: Option<Gunzip>,
    encoder: Encoder,
    /// The body so far, unless it is too long for a dictionary.
    body: Body,
    _memory: Reservation,
}

impl Coded {
    fn reply(session: &Rc<Session>, recodes: bool, asked: Asked, reply: Reply) -> Reply {
        Reply::new(Self {
            session: Rc::clone(session),
            recodes,
            asked,
            reply,
            encoding: None,
            held: None,
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
        let written = match &self.held {
            Some(Err(_)) => encoding.encoder.flush(),
            Some(Ok(_)) | None => encoding.finish(),
        };
        match written {
            Ok(()) => {
                let is_whole = !matches!(self.held, Some(Err(_)));
                if let Some(body) = encoding.body.finish().filter(|_| is_whole) {
                    let mut versions = self.session.versions.borrow_mut();
                    let url = self.asked.request().url();
                    versions.insert(url, body, &self.session.all.versions);
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
                let asked = Asked::Push(pushed.request.clone());
                Part::Pushed(Box::new(PushedPart {
                    reply: Self::reply(&self.session, self.recodes, asked, pushed.reply),
                    ..*pushed
                }))
            }
            other => other,
        }
    }
}

impl Session {
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
            body: Body::of(length),
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

    /// Ends the frame, if the body is complete.
    fn finish(&mut self) -> Result<(), CodingError> {
        if let Some(gunzip) = &self.gunzip {
            gunzip.finish()?;
        }
        self.encoder.finish()
    }
}

impl Drop for Encoding {
    fn drop(&mut self) {
        let (before, after) = self.encoder.counts();
        METRICS.coding_bytes_before.add(before);
        METRICS.coding_bytes_after.add(after);
    }
}

impl Parts for Coded {
    fn supply(&self) -> Supply {
        self.reply.supply()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut turn = 0;
        while !self.is_over {
            let part = match self.recode() {
                Err(error) => Some(Err(error)),
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
                cx.waker().wake_by_ref();
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
pub(super) mod tests {
    use std::cell::Cell;

    use tandem_http::Scheme;

    use super::*;
    use crate::exchange::Sink;
    use crate::path::Measure;
    use crate::priority::SharedPriority;

    /// A path with this rate in bytes per second.
    struct Rate(f64);

    impl Facts for Rate {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn peer_address(&self) -> Option<std::net::SocketAddr> {
            "203.0.113.5:443".parse().ok()
        }

        fn measure(&self) -> Option<Measure> {
            Some(Measure {
                round_trip: 0.1,
                rate: self.0,
            })
        }
    }

    /// A stage that counts the bytes of bodies from the next one.
    struct Counting(Rc<Cell<usize>>, Rc<dyn Stage>);

    impl Stage for Counting {
        fn call(&self, exchange: Exchange) -> Reply {
            let (count, mut reply) = (Rc::clone(&self.0), self.1.call(exchange));
            Reply::generate(|mut sink: Sink| async move {
                while let Some(part) = reply.part().await {
                    let part = part?;
                    if let Part::Data(data) = &part {
                        count.set(count.get() + data.len());
                    }
                    sink.send(part).await;
                }
                Ok(())
            })
        }
    }

    fn stage(rate: f64, budget: usize, next: Rc<dyn Stage>) -> (Compress, Rc<dyn Facts>) {
        let path: Rc<dyn Facts> = Rc::new(Rate(rate));
        (
            Compress::new(&CodingMemory::new(budget, ALL_VERSIONS), &path, true, next),
            path,
        )
    }

    /// Returns the stage before `next`, and the number of bytes of bodies that it has sent.
    pub(in super::super) fn gateway(next: Rc<dyn Stage>) -> (Rc<dyn Stage>, Rc<Cell<usize>>) {
        let path: Rc<dyn Facts> = Rc::new(Rate(1e6));
        let compress = Compress::new(&CodingMemory::of_gateway(), &path, true, next);
        let sent = Rc::new(Cell::new(0));
        let counting = Counting(Rc::clone(&sent), Rc::new(compress));
        (Rc::new(counting), sent)
    }

    fn text() -> ResponseHead {
        ResponseHead {
            status: 200,
            fields: [("content-type", "text/html")].into_iter().collect(),
        }
    }

    fn asking(offers: bool, change: impl FnOnce(&mut RequestHead)) -> Exchange {
        let mut request = RequestHead::get(Scheme::Http, "own.example", "/");
        if offers {
            wire::offer(&mut request.fields, true);
        }
        change(&mut request);
        Exchange::internal(request)
    }

    async fn parts(mut reply: Reply) -> Vec<Result<Part, Error>> {
        let mut parts = Vec::new();
        while let Some(part) = reply.part().await {
            parts.push(part);
        }
        parts
    }

    /// Returns whether the body of the first head is coded.
    fn is_coded(parts: &[Result<Part, Error>]) -> bool {
        match parts.first() {
            Some(Ok(Part::Head(head))) => {
                matches!(wire::restore(&mut head.clone()), Ok(Some(_)))
            }
            other => panic!("{other:?}"),
        }
    }

    fn answering() -> Rc<dyn Stage> {
        Rc::new(|exchange: Exchange| {
            assert!(
                !wire::has_offer(&exchange.request.fields),
                "the offer goes no further"
            );
            Reply::ready(text(), Bytes::from_static(&[b'a'; 4000]))
        })
    }

    #[tokio::test]
    async fn body_is_coded_on_offer_over_slow_paths() {
        for (offers, rate, budget, expected) in [
            (true, 1e6, ALL_ENCODERS, true),
            (false, 1e6, ALL_ENCODERS, false),
            (true, 1e9, ALL_ENCODERS, false),
            (true, 1e6, 1000, false),
        ] {
            let (stage, _path) = stage(rate, budget, answering());
            let parts = parts(stage.call(asking(offers, |_| {}))).await;
            assert_eq!(is_coded(&parts), expected, "{offers} {rate} {budget}");
        }
        let (stage, _path) = stage(1e6, ALL_ENCODERS, answering());
        let post = |request: &mut RequestHead| request.method = Method::Post;
        assert!(!is_coded(&parts(stage.call(asking(true, post))).await));
    }

    #[tokio::test]
    async fn memory_returns_with_the_end_of_each_body() {
        let enough = Encoder::memory(None, 0) + MAX_DICTIONARY;
        let (stage, _path) = stage(1e6, enough, answering());
        for _ in 0..3 {
            let mut first = stage.call(asking(true, |_| {}));
            let head = first.part().await.expect("a head");
            assert!(is_coded(&[head]), "the memory is free");
            assert!(!is_coded(&parts(stage.call(asking(true, |_| {}))).await));
            let rest = parts(first).await;
            assert!(rest.iter().all(Result::is_ok) && !rest.is_empty());
        }
    }

    #[tokio::test]
    async fn body_that_breaks_off_reaches_the_client() {
        let next = |_: Exchange| {
            Reply::generate(|mut sink: Sink| async move {
                sink.send(Part::Head(text())).await;
                sink.send(Part::Data(Bytes::from_static(b"half"))).await;
                Err(Error::new(Kind::Truncated, Side::Origin, "cut"))
            })
        };
        let (stage, _path) = stage(1e6, ALL_ENCODERS, Rc::new(next));
        let parts = parts(stage.call(asking(true, |_| {}))).await;
        let [Ok(Part::Head(_)), Ok(Part::Data(data)), Err(_)] = &parts[..] else {
            panic!("{parts:?}");
        };
        let mut decoder = tandem_coding::Decoder::new(None).expect("memory");
        decoder.write(data.clone());
        assert_eq!(decoder.read(), Ok(Some(Bytes::from_static(b"half"))));
        assert!(decoder.finish().is_err());
    }

    #[tokio::test]
    async fn push_with_unknown_credentials_stays_plain() {
        let described = |cookie: Option<&str>| {
            let fields = cookie.map(|cookie| ("cookie", cookie));
            RequestHashes::of(&fields.into_iter().collect()).encode()
        };
        for (asked, expected) in [
            (None, false),
            (Some(described(None)), true),
            (Some(described(Some("a=b"))), false),
        ] {
            let next = move |_: Exchange| {
                let asked = asked.clone();
                Reply::generate(|mut sink: Sink| async move {
                    let mut head = text();
                    if let Some(asked) = asked {
                        head.fields.push(ASKED_FIELD, asked);
                    }
                    sink.send(Part::Pushed(Box::new(PushedPart {
                        request: RequestHead::get(Scheme::Http, "own.example", "/a"),
                        reply: Reply::ready(head, Bytes::from_static(b"pushed")),
                        priority: SharedPriority::default(),
                        session: None,
                    })))
                    .await;
                    Ok(())
                })
            };
            let (stage, _path) = stage(1e6, ALL_ENCODERS, Rc::new(next));
            let carried = parts(stage.call(asking(true, |request| request.method = Method::Post)));
            let Some(Ok(Part::Pushed(pushed))) = carried.await.pop() else {
                panic!("no push");
            };
            assert_eq!(is_coded(&parts(pushed.reply).await), expected);
        }
    }
}
