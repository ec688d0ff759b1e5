//! The script of an origin behind a bridge: one behaviour for each path.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tandem::error::{Error, Kind, Side};
use tandem::exchange::{Chunk, Exchange, Part, Reply};
use tandem_http::{Fields, Method, ResponseHead};
use tokio::sync::{Barrier, Notify};

use super::ends::content;

/// The number of requests that are under way at once.
pub(super) const AT_ONCE: usize = 100;

/// The state of an origin.
pub(super) struct Script {
    barrier: Barrier,
    /// Requests for `/endless` that were cancelled.
    cancelled: AtomicUsize,
    change: Notify,
}

impl Script {
    pub(super) fn new() -> Self {
        Self {
            barrier: Barrier::new(AT_ONCE),
            cancelled: AtomicUsize::new(0),
            change: Notify::new(),
        }
    }

    /// Waits until a request for `/endless` was cancelled.
    pub(super) async fn cancellation(&self) {
        while self.cancelled.load(Ordering::SeqCst) == 0 {
            let changed = self.change.notified();
            if self.cancelled.load(Ordering::SeqCst) == 0 {
                changed.await;
            }
        }
    }
}

/// Counts the end of an exchange whose reply was dropped.
struct Cancelled(std::sync::Arc<Script>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.cancelled.fetch_add(1, Ordering::SeqCst);
        self.0.change.notify_waiters();
    }
}

fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    let mut head = ResponseHead::new(status);
    for (name, value) in fields {
        head.fields.push(name, *value);
    }
    head
}

impl Script {
    /// Answers a request by its method and path.
    pub(super) fn answer(self: &std::sync::Arc<Self>, exchange: Exchange) -> Reply {
        if exchange.request.method == Method::Connect {
            return echo(exchange, head(200, &[]));
        }
        match exchange.request.path.as_str() {
            "/echo" => echo(exchange, head(200, &[("content-type", "text/plain")])),
            "/together" => self.together(),
            "/hints" => hints(),
            "/half" => half(),
            "/endless" => self.endless(),
            "/large" => Reply::ready(head(200, &[]), content(1 << 20)),
            "/page" => page(&exchange),
            _ => Reply::ready(head(404, &[]), Bytes::new()),
        }
    }

    /// Answers once all requests have come.
    fn together(self: &std::sync::Arc<Self>) -> Reply {
        let script = std::sync::Arc::clone(self);
        Reply::generate(|mut sink| async move {
            script.barrier.wait().await;
            sink.send(Part::Head(head(200, &[("content-length", "8")])))
                .await;
            sink.send(Part::Data(Bytes::from_static(b"together"))).await;
            Ok(())
        })
    }

    fn endless(self: &std::sync::Arc<Self>) -> Reply {
        let cancelled = Cancelled(std::sync::Arc::clone(self));
        Reply::generate(|mut sink| async move {
            let _cancelled = cancelled;
            sink.send(Part::Head(head(200, &[]))).await;
            // A server over HTTP/1.1 notices by its writes that the client has gone.
            loop {
                sink.send(Part::Data(content(16 << 10))).await;
            }
        })
    }
}

/// Answers with the body of the request as it comes, and with its trailers.
fn echo(exchange: Exchange, head: ResponseHead) -> Reply {
    Reply::generate(|mut sink| async move {
        sink.send(Part::Head(head)).await;
        let mut body = exchange.body.share();
        while let Some(chunk) = std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
            match chunk? {
                Chunk::Data(data) => sink.send(Part::Data(data)).await,
                Chunk::Trailers(fields) => sink.send(Part::Trailers(fields)).await,
            }
        }
        Ok(())
    })
}

fn hints() -> Reply {
    Reply::generate(|mut sink| async move {
        let link = ("link", "</style.css>; rel=preload; as=style");
        sink.send(Part::Hints(head(103, &[link]))).await;
        sink.send(Part::Head(head(200, &[("content-length", "4")])))
            .await;
        sink.send(Part::Data(Bytes::from_static(b"page"))).await;
        Ok(())
    })
}

/// Breaks off within the body.
fn half() -> Reply {
    Reply::generate(|mut sink| async move {
        sink.send(Part::Head(head(200, &[("content-length", "10")])))
            .await;
        sink.send(Part::Data(Bytes::from_static(b"half1"))).await;
        Err(Error::new(Kind::Reset, Side::Local, "the scene breaks off"))
    })
}

/// Serves a page with a validator, and repeats parts of the request.
fn page(exchange: &Exchange) -> Reply {
    let request = &exchange.request;
    let asked = |name: &str| {
        let value = request.fields.get(name).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    };
    let mut head = head(200, &[("etag", "\"1\""), ("content-length", "4")]);
    let mut put = |name: &str, value: String| head.fields.push(name, value);
    put("seen-authority", request.authority.clone());
    put("seen-scheme", request.scheme.as_str().to_owned());
    put("seen-test", asked("x-test"));
    put("seen-via", asked("via"));
    put("seen-pair", asked("tandem-test"));
    put("seen-credentials", asked("proxy-authorization"));
    if asked("if-none-match") == "\"1\"" {
        head.status = 304;
        head.fields.remove("content-length");
        return Reply::ready(head, Bytes::new());
    }
    match request.method {
        Method::Head => Reply::ready(head, Bytes::new()),
        _ => Reply::ready(head, Bytes::from_static(b"page")),
    }
}

/// Returns the trailers that the scenes send.
pub(super) fn trailers() -> Fields {
    [("x-checksum", "17")].into_iter().collect()
}
