//! The body of a request that is complete before its head is sent. Both then leave in one write,
//! and no task is needed to send the body.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tandem_http::h1::Framing;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk};

/// The length up to which a body is copied behind its head. It is far below the limit for bodies
/// that can be read again.
const LONGEST: u64 = 8 << 10;

/// Takes the body if it has a known, small length and all of it is there. Otherwise the body is
/// unread afterwards.
pub(super) fn take(body: &mut Body, framing: Framing) -> Result<Option<Bytes>, Error> {
    let length = match framing {
        Framing::Length(length) if length <= LONGEST => length,
        _ => return Ok(None),
    };
    // The reader of the rest of the body registers its own waker.
    let mut cx = Context::from_waker(Waker::noop());
    let mut whole = None;
    loop {
        match body.poll_chunk(&mut cx) {
            Poll::Ready(Some(Ok(Chunk::Data(data)))) if whole.is_none() => {
                if data.len() as u64 > length {
                    return Err(Error::new(
                        Kind::BadRequest,
                        Side::Client,
                        "more body than content-length says",
                    ));
                }
                whole = Some(data);
            }
            // A body of known length cannot carry trailers.
            Poll::Ready(Some(Ok(Chunk::Trailers(_)))) => {}
            Poll::Ready(Some(Err(error))) => return Err(error),
            Poll::Ready(None) if whole.as_ref().map_or(0, Bytes::len) as u64 == length => {
                return Ok(Some(whole.unwrap_or_default()));
            }
            _ => {
                body.rewind();
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bytes::BytesMut;
    use tandem_http::h1::Form;
    use tandem_http::{Method, RequestHead, Scheme};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::{Http1Client, Http1Session};
    use super::*;
    use crate::exchange::{Chunks, Exchange, Part, Reply};
    use crate::path::Path;

    /// A body whose pieces are there, followed by its end or by a pause.
    struct Pieces(VecDeque<&'static str>, bool);

    impl Chunks for Pieces {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            match self.0.pop_front() {
                Some(piece) => Poll::Ready(Some(Ok(Chunk::Data(Bytes::from(piece))))),
                None if self.1 => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    /// A body whose end has arrived, without content.
    struct Ended;

    impl Chunks for Ended {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            Poll::Ready(None)
        }

        fn has_arrived(&self) -> bool {
            true
        }
    }

    /// Over HTTP/3, the end of a request follows its head as a separate event.
    #[tokio::test]
    async fn request_that_ended_without_content_has_no_chunks() {
        for (method, length) in [
            (Method::Get, ""),
            (Method::Head, ""),
            (Method::Delete, ""),
            (Method::Post, "Content-Length: 0\r\n"),
        ] {
            let (near, mut far) = Path::pair(1 << 16);
            let session = Http1Session::new(Form::Origin, crate::role_name::RoleName::Gateway);
            let client = Http1Client::over(session, near);
            let mut request = RequestHead::get(Scheme::Http, "a.example", "/");
            request.method = method.clone();
            let mut exchange = Exchange::internal(request);
            exchange.body = Body::new(Ended, None);
            let mut reply = Reply::generate(|mut sink| async move {
                client.exchange(&mut exchange, &mut sink).await
            });
            let mut cx = Context::from_waker(Waker::noop());
            assert!(reply.poll_part(&mut cx).is_pending());
            let mut read = BytesMut::new();
            far.read_buf(&mut read).await.expect("a request");
            let head = format!(
                "{} / HTTP/1.1\r\nHost: a.example\r\n{length}\r\n",
                method.as_str()
            );
            assert_eq!(read, head);
        }
    }

    fn body(pieces: &[&'static str], ends: bool) -> Body {
        Body::new(Pieces(pieces.iter().copied().collect(), ends), None)
    }

    #[tokio::test]
    async fn small_body_leaves_together_with_its_head() {
        let (near, mut far) = Path::pair(1 << 16);
        let client = Http1Client::over(
            Http1Session::new(Form::Origin, crate::role_name::RoleName::Gateway),
            near,
        );
        let mut request = RequestHead::get(Scheme::Http, "a.example", "/");
        request.method = Method::Post;
        let mut exchange = Exchange::internal(request);
        let pieces = Pieces(VecDeque::from(["small"]), true);
        exchange.body = Body::new(pieces, Some(5));
        let mut reply =
            Reply::generate(
                |mut sink| async move { client.exchange(&mut exchange, &mut sink).await },
            );
        let mut cx = Context::from_waker(Waker::noop());
        assert!(reply.poll_part(&mut cx).is_pending());
        let mut read = BytesMut::new();
        far.read_buf(&mut read).await.expect("a request");
        assert!(read.ends_with(b"\r\n\r\nsmall"), "{read:?}");
        far.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .expect("the client reads");
        let part = reply.part().await;
        assert!(matches!(part, Some(Ok(Part::Head(head))) if head.status == 204));
    }

    #[test]
    fn small_complete_body_is_taken() {
        let taken = take(&mut body(&["small"], true), Framing::Length(5));
        assert_eq!(taken.expect("no failure").as_deref(), Some(&b"small"[..]));
    }

    #[test]
    fn long_or_incomplete_body_stays_unread() {
        for (mut body, framing) in [
            (body(&["small"], false), Framing::Length(5)),
            (body(&["sm", "all"], true), Framing::Length(5)),
            (body(&["small"], true), Framing::Length(6)),
            (body(&[], false), Framing::Length(5)),
            (body(&["small"], true), Framing::Length(LONGEST + 1)),
            (body(&["small"], true), Framing::Chunked),
        ] {
            let taken = take(&mut body, framing);
            assert_eq!(taken.expect("no failure"), None);
            assert!(body.is_untouched(), "{framing:?}");
        }
    }

    #[test]
    fn body_beyond_its_length_fails() {
        let taken = take(&mut body(&["small"], true), Framing::Length(4));
        assert_eq!(taken.map_err(|error| error.kind), Err(Kind::BadRequest));
    }
}
