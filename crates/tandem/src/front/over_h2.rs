//! Responses to a browser over HTTP/2 that it would take over HTTP/1.1.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_http::Fields;
use tandem_http::message::has_controls;
use tokio::time::Sleep;

use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::stage::Stage;

/// The time between the last bytes of a broken response and its reset. Chromium 156 drops the bytes
/// that it has not yet read when the reset arrives.
const DELAY: Duration = Duration::from_millis(100);

/// The stage before the session of a browser. It gives the browser time for the beginning of a
/// response, before a reset tells that the response has broken off. Control bytes in values become
/// spaces (RFC 9110 section 5.5), since Chromium refuses them over HTTP/2.
pub struct BrowserOverH2 {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for BrowserOverH2 {
    fn call(&self, exchange: Exchange) -> Reply {
        let is_tunnel = exchange.request.is_connect();
        let reply = self.next.call(exchange).edited(without_controls);
        match is_tunnel {
            true => reply,
            false => Reply::new(LateBreak {
                reply,
                has_data: false,
                broken: None,
            }),
        }
    }
}

/// Replaces control bytes in values by spaces.
fn without_controls(fields: &mut Fields) {
    if !fields.iter().any(|field| has_controls(field.value)) {
        return;
    }
    let cleaned = fields.iter().map(|field| {
        let mut value = field.value.to_vec();
        let controls = value.iter_mut().filter(|byte| byte.is_ascii_control());
        controls.for_each(|byte| *byte = b' ');
        (field.name, value.trim_ascii().to_vec())
    });
    *fields = cleaned.collect();
}

struct LateBreak {
    reply: Reply,
    has_data: bool,
    /// The error that waits, and its timer.
    broken: Option<(Error, Pin<Box<Sleep>>)>,
}

impl Parts for LateBreak {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if self.broken.is_none() {
            match ready!(self.reply.poll_part(cx)) {
                Some(Err(error)) if self.has_data => {
                    self.broken = Some((error, Box::pin(tokio::time::sleep(DELAY))));
                }
                part => {
                    self.has_data |= matches!(part, Some(Ok(Part::Data(_))));
                    return Poll::Ready(part);
                }
            }
        }
        match &mut self.broken {
            Some((error, timer)) => {
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Some(Err(error.clone())))
            }
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::{RequestHead, ResponseHead, Scheme};
    use tokio::time::Instant;

    use super::*;
    use crate::error::{Kind, Side};

    fn error() -> Error {
        Error::new(Kind::Truncated, Side::Origin, "broken")
    }

    /// Returns the time after which a reply with or without data reports its error.
    async fn broken_after(has_data: bool) -> Duration {
        let stage = BrowserOverH2 {
            next: Rc::new(move |_: Exchange| {
                Reply::generate(move |mut sink| async move {
                    sink.send(Part::Head(ResponseHead::new(200))).await;
                    if has_data {
                        sink.send(Part::Data(Bytes::from_static(b"x"))).await;
                    }
                    Err(error())
                })
            }),
        };
        let request = RequestHead::get(Scheme::Http, "a.test", "/");
        let mut reply = stage.call(Exchange::internal(request));
        let begun = Instant::now();
        for _ in 0..1 + usize::from(has_data) {
            assert!(matches!(reply.part().await, Some(Ok(_))));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "parts are not late");
        assert!(matches!(reply.part().await, Some(Err(broken)) if broken == error()));
        begun.elapsed()
    }

    #[test]
    fn values_lose_their_controls() {
        let mut fields: Fields = [("a", "\u{1}x\u{7f}y\u{c}"), ("b", "x\ty"), ("c", "\u{1}")]
            .into_iter()
            .collect();
        without_controls(&mut fields);
        let values: Vec<_> = fields.iter().map(|field| field.value).collect();
        assert_eq!(values, [&b"x y"[..], b"x y", b""]);
    }

    #[tokio::test(start_paused = true)]
    async fn break_comes_after_the_data() {
        assert!(broken_after(true).await >= DELAY);
        assert_eq!(broken_after(false).await, Duration::ZERO);
    }
}
