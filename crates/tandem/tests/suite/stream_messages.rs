//! Messages of the session `streams` over a carrier in memory, with the parts of those of the other
//! sessions.

use std::collections::VecDeque;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem::carrier::Carrier;
use tandem::error::{Error, Kind, Side};
use tandem::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply};
use tandem::priority::SharedPriority;
use tandem::role_name::RoleName;
use tandem::session::streams::StreamsSession;
use tandem::session::{Connect, Drain, Serve};
use tandem::stage::Stage;
use tandem_http::h1::Form;
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};
use tokio::task::LocalSet;

use crate::harness::block_on;
use crate::many_streams::http1;
use crate::many_streams::memory::{Connection, MemoryStreams};

/// Sends one request to a gateway with this stage. Returns the parts up to the end or the error.
fn parts_of(
    stage: impl Stage + 'static,
    request: RequestHead,
    body: Body,
) -> (Vec<Part>, Option<Error>) {
    let local = LocalSet::new();
    block_on(local.run_until(async move {
        let (near, far) = Connection::pair();
        let session = StreamsSession::new(http1(Form::Absolute, RoleName::Gateway), None);
        let carrier = Carrier::Streams(MemoryStreams::new(far));
        let serving = session.serve(carrier, Peer::none(), Rc::new(stage), Drain::new());
        tokio::task::spawn_local(serving);
        let carrier = Carrier::Streams(MemoryStreams::new(near));
        let client = session.connect(Box::pin(ready(Ok(carrier))));
        let mut exchange = Exchange {
            request: Arc::new(request),
            body,
            isolation: Isolation::none(),
            peer: Peer::none(),
            priority: SharedPriority::default(),
        };
        let mut reply =
            Reply::generate(|mut sink| async move { client.run(&mut exchange, &mut sink).await });
        let mut parts = Vec::new();
        while let Some(part) = reply.part().await {
            match part {
                Ok(part) => parts.push(part),
                Err(error) => return (parts, Some(error)),
            }
        }
        (parts, None)
    }))
}

fn page(fields: &[(&str, &str)]) -> RequestHead {
    let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
    request.fields = fields.iter().copied().collect();
    request
}

/// A stage that responds with a length, four bytes and trailers.
fn with_trailers(exchange: Exchange) -> Reply {
    Reply::generate(|mut sink| async move {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-length", "4");
        sink.send(Part::Head(head)).await;
        if exchange.request.method == Method::Get {
            sink.send(Part::Data(Bytes::from_static(b"page"))).await;
        }
        if exchange.request.path == "/broken" {
            return Err(Error::new(Kind::Reset, Side::Origin, "the origin resets"));
        }
        let trailers = [("x-sum", "7")].into_iter().collect();
        sink.send(Part::Trailers(trailers)).await;
        Ok(())
    })
}

fn content(parts: &[Part]) -> (Vec<u8>, Option<&Fields>) {
    let mut data = Vec::new();
    for part in parts {
        match part {
            Part::Data(piece) => data.extend_from_slice(piece),
            Part::Trailers(fields) => return (data, Some(fields)),
            _ => {}
        }
    }
    (data, None)
}

#[test]
fn stream_carries_trailers_behind_a_known_length() {
    let asking = [("te", "trailers")];
    let (parts, error) = parts_of(with_trailers, page(&asking), Body::empty());
    assert_eq!(error, None);
    let Some(Part::Head(head)) = parts.first() else {
        panic!("{parts:?}")
    };
    assert_eq!(head.fields.get("content-length"), Some(&b"4"[..]));
    let (data, trailers) = content(&parts);
    assert_eq!(data, b"page");
    let sum = trailers.and_then(|fields| fields.get("x-sum"));
    assert_eq!(sum, Some(&b"7"[..]));
    let head = RequestHead {
        method: Method::Head,
        ..page(&asking)
    };
    for request in [page(&[]), head] {
        let (parts, error) = parts_of(with_trailers, request, Body::empty());
        assert_eq!((error, content(&parts).1), (None, None));
    }
    let mut request = page(&asking);
    request.path = "/broken".into();
    let (_, error) = parts_of(with_trailers, request, Body::empty());
    assert!(error.is_some(), "the trailers are missing");
}

#[test]
fn stream_without_trailers_ends_the_content() {
    let stage = |_: Exchange| {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-length", "4");
        Reply::ready(head, Bytes::from_static(b"page"))
    };
    let (parts, error) = parts_of(stage, page(&[("te", "trailers")]), Body::empty());
    assert_eq!((error, content(&parts)), (None, (b"page".to_vec(), None)));
}

#[test]
fn stream_awaits_trailers_for_a_short_time() {
    let stage = |_: Exchange| {
        Reply::generate(|mut sink| async move {
            let mut head = ResponseHead::new(200);
            head.fields.push("content-length", "4");
            sink.send(Part::Head(head)).await;
            sink.send(Part::Data(Bytes::from_static(b"page"))).await;
            tokio::time::pause();
            std::future::pending().await
        })
    };
    let (parts, error) = parts_of(stage, page(&[("te", "trailers")]), Body::empty());
    assert_eq!((error, content(&parts)), (None, (b"page".to_vec(), None)));
}

#[test]
fn stream_carries_heads_of_many_fields() {
    let names: Vec<_> = (0..1500).map(|number| format!("x-{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let stage = |exchange: Exchange| {
        let mut head = ResponseHead::new(200);
        head.fields = exchange.request.fields.clone();
        head.fields.push("content-length", "0");
        Reply::ready(head, Bytes::new())
    };
    let (parts, error) = parts_of(stage, page(&many), Body::empty());
    assert_eq!(error, None);
    let Some(Part::Head(head)) = parts.first() else {
        panic!("{parts:?}")
    };
    assert_eq!((head.status, head.fields.len()), (200, many.len() + 1));
}

/// A body that breaks off, as that of a browser that has gone.
struct Cut(VecDeque<Bytes>);

impl Chunks for Cut {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let cut = || Error::new(Kind::Truncated, Side::Client, "the body ended too early");
        let piece = self.0.pop_front();
        Poll::Ready(Some(piece.map(Chunk::Data).ok_or_else(cut)))
    }
}

#[test]
fn stream_blames_the_client_for_a_cut_upload() {
    let stage = |exchange: Exchange| {
        Reply::generate(|_sink| async move {
            let mut body = exchange.body.share();
            while let Some(chunk) = std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
                chunk?;
            }
            panic!("the upload looks complete")
        })
    };
    for length in [None, Some(100_000)] {
        let mut request = page(&[]);
        request.method = Method::Post;
        if let Some(length) = length {
            let length: u64 = length;
            request.fields.push("content-length", length.to_string());
        }
        let pieces = [Bytes::from(vec![7; 10_000])].into_iter().collect();
        let body = Body::new(Cut(pieces), length);
        let (parts, error) = parts_of(stage, request, body);
        assert!(parts.is_empty(), "{parts:?}");
        let error = error.expect("the exchange fails");
        assert_eq!((error.side, error.status()), (Side::Client, 400));
    }
}
