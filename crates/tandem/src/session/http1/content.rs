//! The rule that ends a connection after content that the other end may not have read.
//!
//! Some servers do not read the content of a request for which they expect none. They take its
//! bytes for the next request, and the response to them for that of the next user (RFC 9112
//! sections 9.3 and 11.2, "request smuggling"). Requests of several users may follow each other on
//! a connection, and a cache may keep the responses. So a connection carries no other request
//! unless its server has good reason to read the content.

use std::cell::Cell;

use tandem_http::h1::Framing;
use tandem_http::{RequestHead, ResponseHead};
use tokio::time::Instant;

/// A request and its content, as sent.
#[derive(Clone, Copy)]
pub(super) struct SentContent {
    pub(super) framing: Framing,
    has_content: bool,
    /// True if the method gives the content a meaning.
    is_usual: bool,
    /// True if the request asks whether the content is wanted (`Expect`).
    asks: bool,
}

/// The progress of content that leaves after the head of its request.
pub(super) struct Progress {
    /// The time at which the last byte left.
    pub(super) asked: Cell<Instant>,
    /// True once all content has left.
    pub(super) was_sent: Cell<bool>,
    /// True if the other end asked for the content before all of it had left.
    is_wanted: Cell<bool>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            asked: Cell::new(Instant::now()),
            was_sent: Cell::new(false),
            is_wanted: Cell::new(false),
        }
    }

    /// Notes an interim response. The status 100 asks for the content.
    pub(super) fn note_interim(&self, status: u16) {
        if status == 100 && !self.was_sent.get() {
            self.is_wanted.set(true);
        }
    }
}

impl SentContent {
    /// Returns the content of a request with this framing.
    pub(super) fn of(request: &RequestHead, framing: Framing) -> Self {
        let has_content = !matches!(framing, Framing::None | Framing::Length(0));
        Self {
            framing,
            has_content,
            is_usual: has_content && request.method.defines_content(),
            asks: has_content && request.fields.contains("expect"),
        }
    }

    /// Returns whether another request may follow this one on its connection. The progress is that
    /// at the beginning of the response. `None` stands for content that left with the head.
    pub(super) fn may_be_followed(
        self,
        response: &ResponseHead,
        progress: Option<&Progress>,
    ) -> bool {
        let was_sent = progress.is_none_or(|it| it.was_sent.get());
        let is_wanted = !self.asks || progress.is_some_and(|it| it.is_wanted.get());
        let is_read = self.is_usual && was_sent && is_wanted && !refuses_method(response);
        !self.has_content || is_read
    }
}

/// Returns whether the server has no use for the method, and so perhaps for the content.
const fn refuses_method(response: &ResponseHead) -> bool {
    matches!(response.status, 405 | 501)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use tandem_http::h1::Form;
    use tandem_http::{Method, Scheme};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio::task::LocalSet;

    use super::super::{Http1Client, Http1Session};
    use super::*;
    use crate::error::Error;
    use crate::exchange::{Body, Chunk, Chunks, Exchange, Part, Reply};
    use crate::path::Path;
    use crate::session::SessionState as _;

    const CONTENT: &str = "GET /evil HTTP/1.1\r\nX: ";
    const LENGTH: Option<u64> = Some(CONTENT.len() as u64);
    const LOGIN: &[(&str, &str)] = &[("authorization", "NTLM TlRM")];
    const CHALLENGE: &str = "401 Unauthorized\r\nWWW-Authenticate: NTLM TlRM";
    const ASKING: &[(&str, &str)] = &[("expect", "100-continue")];
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

    /// A body whose pieces a test sends.
    struct Pieces(mpsc::UnboundedReceiver<&'static str>);

    impl Chunks for Pieces {
        fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            let piece = self.0.poll_recv(cx);
            piece.map(|piece| piece.map(|piece| Ok(Chunk::Data(Bytes::from(piece)))))
        }
    }

    /// The time at which the content, and the end of the body, are there.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Arrival {
        /// Together with the head of the request.
        AtOnce,
        /// The content at once, and the end during the response.
        LateEnd,
        /// Both during the response.
        Late,
        /// The content after the status 100, and the end during the response.
        Asked,
        /// The same, with the status 100 after the content.
        AskedLate,
    }

    #[derive(Clone, Copy)]
    struct Case {
        method: &'static str,
        fields: &'static [(&'static str, &'static str)],
        /// `None` for content in chunks.
        length: Option<u64>,
        arrival: Arrival,
        /// The status line and the fields of the response.
        response: &'static str,
    }

    const GET: Case = Case {
        method: "GET",
        fields: &[],
        length: LENGTH,
        arrival: Arrival::AtOnce,
        response: "200 OK",
    };

    const POST: Case = Case {
        method: "POST",
        ..GET
    };

    async fn read_until(path: &mut Path, read: &mut Vec<u8>, end: &str) {
        while !read.ends_with(end.as_bytes()) {
            assert_ne!(path.read_buf(read).await.expect("a request"), 0);
        }
    }

    /// Returns whether the connection may carry another exchange after this one.
    async fn is_kept(case: Case) -> bool {
        LocalSet::new().run_until(is_kept_in_set(case)).await
    }

    async fn is_kept_in_set(case: Case) -> bool {
        let (near, mut far) = Path::pair(1 << 16);
        let session = Http1Session::new(Form::Origin, crate::role_name::RoleName::Gateway);
        let client = Rc::new(Http1Client::over(session, near));
        let mut request = RequestHead::get(Scheme::Http, "a.example", "/");
        request.method = Method::parse(case.method.as_bytes()).expect("a token");
        request.fields = case.fields.iter().copied().collect();
        let mut exchange = Exchange::internal(request);
        let (pieces, body) = mpsc::unbounded_channel();
        exchange.body = Body::new(Pieces(body), case.length);
        if !matches!(case.arrival, Arrival::Late | Arrival::Asked) {
            pieces.send(CONTENT).expect("the body waits");
        }
        let mut pieces = Some(pieces).filter(|_| case.arrival != Arrival::AtOnce);
        let used = Rc::clone(&client);
        let mut reply =
            Reply::generate(
                |mut sink| async move { used.exchange(&mut exchange, &mut sink).await },
            );
        let end = match case.length {
            Some(_) => CONTENT.to_owned(),
            None => format!("{CONTENT}\r\n0\r\n\r\n"),
        };
        let origin = async {
            let mut read = Vec::new();
            let begins = match case.arrival {
                Arrival::Late | Arrival::Asked => "\r\n\r\n",
                _ => &end,
            };
            read_until(&mut far, &mut read, begins).await;
            if matches!(case.arrival, Arrival::Asked | Arrival::AskedLate) {
                far.write_all(CONTINUE).await.expect("an open path");
                far.flush().await.expect("an open path");
            }
            if case.arrival == Arrival::Asked {
                read_until(&mut far, &mut read, &end).await;
            }
            let head = format!("HTTP/1.1 {}\r\nContent-Length: 1\r\n\r\n", case.response);
            far.write_all(head.as_bytes()).await.expect("an open path");
            far.flush().await.expect("an open path");
            (far, read)
        };
        let head = async {
            let mut part = reply.part().await;
            if let Some(Ok(Part::Hints(_))) = &part {
                if case.arrival == Arrival::Asked
                    && let Some(pieces) = &pieces
                {
                    pieces.send(CONTENT).expect("the body waits");
                }
                part = reply.part().await;
            }
            assert!(matches!(part, Some(Ok(Part::Head(_)))), "{part:?}");
        };
        let ((mut far, mut read), ()) = tokio::join!(origin, head);
        if case.arrival == Arrival::Late
            && let Some(pieces) = &pieces
        {
            pieces.send(CONTENT).expect("the body waits");
        }
        drop(pieces.take());
        read_until(&mut far, &mut read, &end).await;
        // The task that sends the body ends.
        tokio::task::yield_now().await;
        if case.method != "HEAD" {
            far.write_all(b"x").await.expect("an open path");
            far.flush().await.expect("an open path");
        }
        while let Some(part) = reply.part().await {
            part.expect("no failure");
        }
        client.is_ready()
    }

    #[tokio::test]
    async fn content_without_meaning_ends_the_connection() {
        for method in [
            "GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND",
        ] {
            for arrival in [Arrival::AtOnce, Arrival::LateEnd] {
                let case = Case {
                    method,
                    arrival,
                    ..GET
                };
                assert!(!is_kept(case).await, "{method} {arrival:?}");
            }
            let chunked = Case {
                method,
                length: None,
                ..GET
            };
            assert!(!is_kept(chunked).await, "{method} in chunks");
        }
    }

    #[tokio::test]
    async fn usual_content_keeps_the_connection() {
        for method in ["POST", "PUT", "PATCH"] {
            for arrival in [Arrival::AtOnce, Arrival::LateEnd] {
                let case = Case {
                    method,
                    arrival,
                    ..GET
                };
                assert!(is_kept(case).await, "{method} {arrival:?}");
            }
            let chunked = Case {
                method,
                length: None,
                ..GET
            };
            assert!(is_kept(chunked).await, "{method} in chunks");
        }
    }

    #[tokio::test]
    async fn response_before_the_content_ends_the_connection() {
        for length in [LENGTH, None] {
            let case = Case {
                length,
                arrival: Arrival::Late,
                ..POST
            };
            assert!(!is_kept(case).await, "{length:?}");
        }
    }

    #[tokio::test]
    async fn content_that_may_be_unwanted_ends_the_connection() {
        for response in ["405 Method Not Allowed", "501 Not Implemented"] {
            assert!(!is_kept(Case { response, ..POST }).await, "{response}");
        }
    }

    #[tokio::test]
    async fn expected_content_keeps_the_connection_if_asked_for() {
        for (arrival, keeps) in [
            (Arrival::AtOnce, false),
            (Arrival::LateEnd, false),
            (Arrival::AskedLate, false),
            (Arrival::Asked, true),
        ] {
            let case = Case {
                fields: ASKING,
                arrival,
                ..POST
            };
            assert_eq!(is_kept(case).await, keeps, "{arrival:?}");
        }
        let case = Case {
            fields: ASKING,
            arrival: Arrival::Asked,
            ..GET
        };
        assert!(!is_kept(case).await, "GET");
    }

    #[tokio::test]
    async fn content_of_a_login_follows_the_same_rule() {
        let login = |case| Case {
            fields: LOGIN,
            response: CHALLENGE,
            ..case
        };
        assert!(is_kept(login(POST)).await);
        assert!(!is_kept(login(GET)).await);
        let arrival = Arrival::Late;
        assert!(!is_kept(login(Case { arrival, ..POST })).await);
    }
}
