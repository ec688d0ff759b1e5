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
//! error, never as a complete response.

use std::rc::Rc;
use std::task::{Context, Poll};

use tandem_coding::{Budget, CodingError, Decoder, Reservation, wire};
use tandem_http::{Method, ResponseHead};
use tandem_push::wire::{is_companion, is_reserved};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, PushedPart, Reply, Supply};
use crate::metrics::METRICS;
use crate::stage::Stage;

/// The memory in bytes for the decoders of all sessions, 128 of them.
pub const ALL_DECODERS: usize = 128 * Decoder::memory();

/// The stage before the sessions of a route.
pub struct Decompress {
    budget: Budget,
    next: Rc<dyn Stage>,
}

impl Decompress {
    /// Creates a stage before `next`. Its decoders share the memory `budget` with others.
    pub fn new(budget: Budget, next: Rc<dyn Stage>) -> Self {
        Self { budget, next }
    }
}

impl Stage for Decompress {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let is_companion = is_companion(request);
        let is_read = request.method == Method::Get
            && request.protocol.is_none()
            && !is_reserved(&request.authority);
        if !is_companion && !is_read {
            return self.next.call(exchange);
        }
        // The response to the companion has no body. Its pushes find memory when they come.
        let memory = (!is_companion).then(|| self.budget.reserve(Decoder::memory()));
        let memory = match memory {
            Some(None) => return self.next.call(exchange),
            memory => memory.flatten(),
        };
        wire::offer(&mut exchange.request_mut().fields);
        Restored::reply(&self.budget, memory, self.next.call(exchange))
    }
}

/// A reply with a body to restore, if the gateway coded it.
struct Restored {
    budget: Budget,
    /// The memory for a decoder, until the head shows that none is needed.
    memory: Option<Reservation>,
    reply: Reply,
    decoding: Option<Decoding>,
    is_over: bool,
}

/// The decoder of a body, with its memory.
struct Decoding {
    decoder: Decoder,
    _memory: Reservation,
}

impl Restored {
    fn reply(budget: &Budget, memory: Option<Reservation>, reply: Reply) -> Reply {
        Reply::new(Self {
            budget: budget.clone(),
            memory,
            reply,
            decoding: None,
            is_over: false,
        })
    }

    fn on_head(&mut self, head: &mut ResponseHead) -> Result<(), Error> {
        let reserved = self.memory.take();
        let Some(coded) = wire::restore(head).map_err(failed)? else {
            return Ok(());
        };
        let memory = reserved.or_else(|| self.budget.reserve(Decoder::memory()));
        let Some(memory) = memory else {
            let detail = "too many compressed bodies are under way";
            return Err(Error::new(Kind::Busy, Side::Local, detail));
        };
        self.decoding = Some(Decoding {
            decoder: Decoder::new(coded.length).map_err(failed)?,
            _memory: memory,
        });
        Ok(())
    }

    /// Prepares a part for the browser, or returns `None` if it is data for the decoder.
    fn take(&mut self, part: Part) -> Result<Option<Part>, Error> {
        Ok(Some(match (part, &mut self.decoding) {
            (Part::Head(mut head), _) => {
                self.on_head(&mut head)?;
                Part::Head(head)
            }
            (Part::Pushed(pushed), _) => Part::Pushed(Box::new(PushedPart {
                reply: Self::reply(&self.budget, None, pushed.reply),
                ..*pushed
            })),
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
        match self.decoding.take() {
            Some(decoding) => decoding.decoder.finish().map_err(failed),
            None => Ok(()),
        }
    }

    fn poll_restored(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Part>, Error>> {
        loop {
            if let Some(decoding) = &mut self.decoding
                && let Some(piece) = decoding.decoder.read().map_err(failed)?
            {
                return Poll::Ready(Ok(Some(Part::Data(piece))));
            }
            let Some(part) = std::task::ready!(self.reply.poll_part(cx)).transpose()? else {
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
    fn supply(&self) -> Supply {
        self.reply.supply()
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
    use bytes::Bytes;
    use tandem_coding::Encoder;
    use tandem_http::{Fields, RequestHead, Scheme};

    use super::super::compress::tests::gateway;
    use super::*;
    use crate::exchange::Sink;
    use crate::priority::SharedPriority;

    const TYPE: (&str, &str) = ("content-type", "text/html");

    /// Returns the parts of the response to a GET request behind this stage.
    async fn get(budget: &Budget, next: Rc<dyn Stage>) -> Result<(Fields, Vec<u8>), Error> {
        let stage = Decompress::new(budget.clone(), next);
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

    fn all() -> Budget {
        Budget::new(ALL_DECODERS)
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
        for (budget, expected) in [(all(), true), (Budget::new(0), false)] {
            let (next, sent) = gateway(sending(&fields, &body));
            let (restored, got) = get(&budget, next).await.expect("a response");
            assert_eq!(restored, fields.into_iter().collect());
            assert!(got == body);
            assert_eq!(sent.get() < 1000, expected, "{}", sent.get());
        }
    }

    #[tokio::test]
    async fn malformed_bodies_end_with_an_error() {
        const CODED: (&str, &str) = ("tandem-coded", "zstd");
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
        ] {
            let error = get(&all(), sending(fields, body))
                .await
                .expect_err("malformed");
            assert_eq!(error.side, Side::Peer, "{error}");
        }
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
            let budget = Budget::new(memory * Decoder::memory());
            let stage = Decompress::new(budget, Rc::new(next));
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
