//! The client's stage that restores the bodies that the gateway compressed.
//!
//! ```text
//!  request ─▶ Decompress ─▶ request with an offer ─▶ gateways
//!  body ◀── Restored ◀── coded reply ────────────────────┘   (pushes in it as well)
//! ```
//!
//! It lies before `gateways`, so that the stages before it, pushed responses and the browser see
//! heads and bodies as the gateway had them. The gateway is not trusted: windows, the number of
//! decoders and the size of each piece are bounded, and a body that does not decode ends with an
//! error, never as a complete response. Each isolation key has a share of the memory
//! ([`decoding_memory`](super::decoding_memory)), since the offer shows whether there is any left.
//!
//! The stage keeps the latest version of each short body with the session that brought it. The pool
//! of sessions names that version in the next request for the same URL by a page of the same site
//! on that session. The reply holds the named version, so that other responses cannot replace it
//! meanwhile.

use std::rc::Rc;
use std::task::{Context, Poll};

use tandem_coding::{CodingError, Decoder, Reservation, wire};
use tandem_http::{Method, ResponseHead};
use tandem_push::site::first_party;
use tandem_push::wire::{is_companion, is_reserved};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, PushedPart, Reply, SessionMark};
use crate::metrics::METRICS;
use crate::middle::decoding_memory::{DecodingMemory, KeyMemory, MEMORY};
use crate::stage::Stage;
use crate::versions::{CollectedBody, keyed};

/// The number of bytes that are decoded before other streams have their turn. A reader that throws
/// them away would otherwise keep the thread for as long as the frame expands.
const TURN: usize = 256 << 10;

/// The stage before the sessions of a route.
pub struct Decompress {
    memory: DecodingMemory,
    /// True if bodies with gzip may lose that coding.
    permits_recoding: bool,
    next: Rc<dyn Stage>,
}

impl Decompress {
    /// Creates a stage before `next`, which shares `memory` with others. With `permits_recoding`,
    /// bodies with gzip may lose that coding.
    pub fn new(memory: DecodingMemory, permits_recoding: bool, next: Rc<dyn Stage>) -> Self {
        Self {
            memory,
            permits_recoding,
            next,
        }
    }
}

impl Stage for Decompress {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let is_companion = is_companion(request);
        let is_about_body = request.protocol.is_none() && !is_reserved(&request.authority);
        let is_read = request.method == Method::Get && is_about_body;
        // The response to HEAD has the fields of the response to GET.
        let is_head = request.method == Method::Head && is_about_body && self.permits_recoding;
        if !is_companion && !is_read && !is_head {
            return self.next.call(exchange);
        }
        // The response to the companion has no body. Its pushes find memory when they come.
        let all = self.memory.of(&exchange.isolation);
        let memory = is_read.then(|| all.decoders.reserve(MEMORY));
        let memory = match memory {
            Some(None) => return self.next.call(exchange),
            memory => memory.flatten(),
        };
        let site = first_party(request);
        let key = site.as_deref().filter(|_| is_read);
        let key = key.map(|site| keyed(site, request));
        let fields = &mut exchange.request_mut().fields;
        wire::offer(fields, self.permits_recoding);
        if key.is_some() {
            wire::ask_dictionary(fields);
        }
        Reply::new(Restored {
            all,
            site,
            key,
            session: None,
            memory,
            reply: self.next.call(exchange),
            decoding: None,
            turn: 0,
            is_over: false,
        })
    }
}

/// A reply with a body to restore, if the gateway coded it.
struct Restored {
    /// The memory of the isolation key.
    all: Rc<KeyMemory>,
    /// The site of the page, if it is known.
    site: Option<String>,
    /// The key of the body among the versions, if it may have one.
    key: Option<String>,
    /// The session that brought a push. The session of another body is known with its head.
    session: Option<Rc<SessionMark>>,
    /// The memory for a decoder, until the head shows that none is needed.
    memory: Option<Reservation>,
    reply: Reply,
    decoding: Option<Decoding>,
    /// The number of bytes that were decoded since another task had a turn.
    turn: usize,
    is_over: bool,
}

/// The decoder of a body, with its memory.
struct Decoding {
    decoder: Decoder,
    /// The body so far, unless it is too long for a dictionary.
    body: CollectedBody,
    _memory: Reservation,
}

impl Restored {
    fn on_head(&mut self, head: &mut ResponseHead) -> Result<(), Error> {
        let reserved = self.memory.take();
        // No budget counts the version that the reply carries. It is dropped with this call.
        let carrying = self.reply.take_carrying();
        let Some(coded) = wire::restore(head).map_err(failed)? else {
            return Ok(());
        };
        let memory = reserved.or_else(|| self.all.decoders.reserve(MEMORY));
        let Some(memory) = memory else {
            let detail = "too many compressed bodies are under way";
            return Err(Error::new(Kind::Busy, Side::Local, detail));
        };
        let named = carrying.as_ref().and_then(|it| it.version.as_ref());
        let named = named.filter(|version| Some(version.name) == coded.dictionary);
        if coded.dictionary.is_some() && named.is_none() {
            return Err(failed(CodingError::Dictionary));
        }
        let dictionary = named.map_or(&[][..], |version| &version.body);
        self.decoding = Some(Decoding {
            decoder: Decoder::with_dictionary(coded.length, dictionary).map_err(failed)?,
            body: CollectedBody::of(coded.length),
            _memory: memory,
        });
        self.session = self
            .session
            .take()
            .or_else(|| carrying.map(|it| it.session));
        Ok(())
    }

    /// Prepares a part for the browser, or returns `None` if it is data for the decoder.
    fn take(&mut self, part: Part) -> Result<Option<Part>, Error> {
        Ok(Some(match (part, &mut self.decoding) {
            (Part::Head(mut head), _) => {
                self.on_head(&mut head)?;
                Part::Head(head)
            }
            (Part::Pushed(pushed), _) => Part::Pushed(Box::new(self.pushed(*pushed))),
            (Part::Data(data), Some(decoding)) => {
                decoding.decoder.write(data);
                return Ok(None);
            }
            (last @ Part::Trailers(_), Some(_)) => {
                self.on_end()?;
                last
            }
            (other, _) => other,
        }))
    }

    /// Checks that the body is complete.
    fn on_end(&mut self) -> Result<(), Error> {
        let Some(mut decoding) = self.decoding.take() else {
            return Ok(());
        };
        decoding.decoder.finish().map_err(failed)?;
        if let (Some(session), Some(key)) = (self.session.take(), self.key.take())
            && let Some(body) = decoding.body.finish()
        {
            session.versions.insert(key, body, &self.all.versions);
        }
        Ok(())
    }

    /// Returns a push with a body to restore. Its page is that of the request, unless it tells.
    fn pushed(&self, pushed: PushedPart) -> PushedPart {
        let site = first_party(&pushed.request).or_else(|| self.site.clone());
        let key = site.as_deref().map(|site| keyed(site, &pushed.request));
        PushedPart {
            reply: Reply::new(Self {
                all: Rc::clone(&self.all),
                site,
                key,
                session: pushed.session.clone(),
                memory: None,
                reply: pushed.reply,
                decoding: None,
                turn: 0,
                is_over: false,
            }),
            ..pushed
        }
    }

    fn poll_restored(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Part>, Error>> {
        if self.turn >= TURN {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(decoding) = &mut self.decoding
                && let Some(piece) = decoding.decoder.read().map_err(failed)?
            {
                decoding.body.add(&piece);
                self.turn += piece.len();
                return Poll::Ready(Ok(Some(Part::Data(piece))));
            }
            let next = self.reply.poll_part(cx);
            if next.is_pending() {
                self.turn = 0;
            }
            let Some(part) = std::task::ready!(next).transpose()? else {
                self.is_over = true;
                return Poll::Ready(self.on_end().map(|()| None));
            };
            if let Some(part) = self.take(part)? {
                return Poll::Ready(Ok(Some(part)));
            }
        }
    }
}

impl Parts for Restored {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let part = std::task::ready!(self.poll_restored(cx));
        self.is_over |= part.is_err();
        Poll::Ready(part.transpose())
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        let (after, before) = self.decoder.counts();
        METRICS.coding_bytes_before.add(after);
        METRICS.coding_bytes_after.add(before);
    }
}

fn failed(error: CodingError) -> Error {
    let kind = match error {
        CodingError::Truncated => Kind::Truncated,
        _ => Kind::Protocol,
    };
    Error::new(kind, Side::Peer, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bytes::Bytes;
    use tandem_coding::Encoder;
    use tandem_http::{Fields, RequestHead, Scheme};

    use super::super::compress::tests::gateway;
    use super::*;
    use crate::exchange::{Carrying, Isolation, Sink};
    use crate::priority::SharedPriority;

    const TYPE: (&str, &str) = ("content-type", "text/html");
    const CODED: (&str, &str) = ("tandem-coded", "zstd");

    /// Returns the parts of the response to a GET request behind this stage.
    async fn get(coding: &DecodingMemory, next: Rc<dyn Stage>) -> Result<(Fields, Vec<u8>), Error> {
        let stage = Decompress::new(coding.clone(), true, next);
        let request = RequestHead::get(Scheme::Http, "own.example", "/");
        let mut reply = stage.call(Exchange::internal(request));
        let (mut fields, mut body) = (Fields::new(), Vec::new());
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(head) => fields = head.fields,
                Part::Data(data) => body.extend_from_slice(&data),
                other => panic!("{other:?}"),
            }
        }
        Ok((fields, body))
    }

    fn all() -> DecodingMemory {
        DecodingMemory::default()
    }

    /// Returns a gateway that sends these fields and this body, whatever the request says.
    fn sending(fields: &[(&str, &str)], body: &[u8]) -> Rc<dyn Stage> {
        let fields: Fields = fields.iter().copied().collect();
        let body = Bytes::copy_from_slice(body);
        Rc::new(move |_: Exchange| {
            let fields = fields.clone();
            Reply::ready(
                ResponseHead {
                    status: 200,
                    fields,
                },
                body.clone(),
            )
        })
    }

    fn frame(body: &[u8]) -> Bytes {
        let mut encoder = Encoder::new(1, None).expect("valid parameters");
        encoder
            .write(body)
            .and_then(|()| encoder.finish())
            .expect("no length");
        encoder.take().expect("a frame")
    }

    #[tokio::test]
    async fn both_stages_together_change_nothing() {
        let body = b"<p>all of it</p>".repeat(1000);
        let length = body.len().to_string();
        let fields = [TYPE, ("content-length", &length), ("vary", "Origin")];
        for (budget, expected) in [(all(), true), (DecodingMemory::new(0), false)] {
            let (next, sent) = gateway(sending(&fields, &body));
            let (restored, got) = get(&budget, next).await.expect("a response");
            assert_eq!(restored, fields.into_iter().collect());
            assert!(got == body);
            assert_eq!(sent.get() < 1000, expected, "{}", sent.get());
        }
    }

    #[tokio::test]
    async fn malformed_bodies_end_with_an_error() {
        const NAME: &str = "0123456789abcdef0123456789abcdef";
        let good = frame(&[7; 3000]);
        let length = |length| [CODED, ("tandem-length", length)];
        let (fields, body) = get(&all(), sending(&length("3000"), &good))
            .await
            .expect("valid");
        assert_eq!(
            (fields.get("content-length"), body.len()),
            (Some(&b"3000"[..]), 3000)
        );
        let long = [&good[..], b"x"].concat();
        for (fields, body) in [
            (&length("2999"), &good[..]),
            (&length("3001"), &good),
            (&length("3000"), &good[..good.len() - 1]),
            (&length("3000"), &long),
            (&length("3000"), b"plain text"),
            (&length("x"), &good),
            (&[("tandem-coded", "br"), TYPE], &good),
            (&[CODED, ("tandem-dictionary", NAME)], &good),
        ] {
            let error = get(&all(), sending(fields, body))
                .await
                .expect_err("malformed");
            assert_eq!(error.side, Side::Peer, "{error}");
        }
    }

    #[tokio::test]
    async fn uncoded_download_holds_no_version() {
        let mark = Rc::new(SessionMark::new(true));
        let session = Rc::downgrade(&mark);
        let next = move |_: Exchange| {
            let session = session.upgrade();
            Reply::generate(|mut sink: Sink| async move {
                sink.set_carrying(session.map(|session| Carrying {
                    session,
                    version: None,
                }));
                sink.send(Part::Head(ResponseHead::new(200))).await;
                std::future::pending().await
            })
        };
        let stage = Decompress::new(all(), true, Rc::new(next));
        let request = RequestHead::get(Scheme::Http, "own.example", "/");
        let mut reply = stage.call(Exchange::internal(request));
        assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
        assert_eq!(Rc::strong_count(&mark), 1, "only the session itself");
    }

    /// A gateway could recognise by the offers that two keys belong to the same client.
    #[tokio::test]
    async fn offers_of_a_key_do_not_depend_on_other_keys() {
        let offers: Rc<RefCell<Vec<bool>>> = Rc::default();
        let seen = Rc::clone(&offers);
        let next = move |exchange: Exchange| {
            let fields = &exchange.request.fields;
            seen.borrow_mut().push(wire::has_offer(fields));
            Reply::generate(|_: Sink| std::future::pending())
        };
        let stage = Decompress::new(all(), true, Rc::new(next));
        let begin = |key: &[u8]| {
            let mut exchange =
                Exchange::internal(RequestHead::get(Scheme::Http, "own.example", "/"));
            exchange.isolation = Isolation::new(key, b"");
            stage.call(exchange)
        };
        let held: Vec<_> = (0..1000).map(|_| begin(b"one")).collect();
        let first = offers
            .borrow()
            .iter()
            .filter(|has_offer| **has_offer)
            .count();
        assert!((1..1000).contains(&first), "the memory of a key is bounded");
        offers.borrow_mut().clear();
        let other: Vec<_> = (0..first).map(|_| begin(b"other")).collect();
        assert_eq!(*offers.borrow(), vec![true; first]);
        drop((held, other));
    }

    #[tokio::test]
    async fn expanding_body_leaves_turns_to_others() {
        let body = vec![0; 4 << 20];
        let coded = frame(&body);
        assert!(coded.len() < 1000, "{}", coded.len());
        let stage = Decompress::new(all(), true, sending(&[CODED, TYPE], &coded));
        let request = RequestHead::get(Scheme::Http, "own.example", "/");
        let mut reply = stage.call(Exchange::internal(request));
        let (mut turn, mut total) = (0, 0);
        std::future::poll_fn(|cx| {
            loop {
                match reply.poll_part(cx) {
                    Poll::Ready(Some(Ok(Part::Data(data)))) => turn += data.len(),
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(end) => {
                        assert!(end.is_none());
                        return Poll::Ready(());
                    }
                    Poll::Pending => {
                        assert!(turn < 2 * TURN, "{turn}");
                        total += std::mem::take(&mut turn);
                        return Poll::Pending;
                    }
                }
            }
        })
        .await;
        assert_eq!(total + turn, body.len());
        assert!(turn < 2 * TURN, "{turn}");
    }

    #[tokio::test]
    async fn push_without_memory_for_it_is_refused() {
        let next = |_: Exchange| {
            let fields = [("tandem-coded", "zstd")].into_iter().collect();
            let head = ResponseHead {
                status: 200,
                fields,
            };
            let pushed = PushedPart {
                request: RequestHead::get(Scheme::Http, "own.example", "/a"),
                reply: Reply::ready(head, frame(b"text")),
                priority: SharedPriority::default(),
                session: None,
            };
            Reply::generate(|mut sink: Sink| async move {
                sink.send(Part::Pushed(Box::new(pushed))).await;
                Ok(())
            })
        };
        for (memory, expected) in [(1, Err(Kind::Busy)), (2, Ok(()))] {
            let coding = DecodingMemory::new(memory);
            let stage = Decompress::new(coding, true, Rc::new(next));
            let request = RequestHead::get(Scheme::Http, "own.example", "/");
            let mut page = stage.call(Exchange::internal(request));
            let Some(Ok(Part::Pushed(mut pushed))) = page.part().await else {
                panic!("no push");
            };
            let head = pushed.reply.part().await.expect("a head");
            assert_eq!(head.map(drop).map_err(|error| error.kind), expected);
        }
    }
}
