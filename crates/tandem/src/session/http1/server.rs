//! The server end of one HTTP/1.1 connection. It reads a request, passes the exchange on and writes
//! its reply (RFC 9112 section 9).
//!
//! It serves browsers (absolute-form, CONNECT, upgrades) and the gateways that listen for HTTP/1.1.
//! A response that cannot be completed is never ended as if it were complete. If its last chunk or
//! bytes of its length are missing, the connection is closed, and browsers show the bytes that
//! arrived. It is reset if the close would end the response, or if browsers do not check its
//! length.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tandem_http::h1::{BadRequest, Form, Framing, Request, Version};
use tandem_http::message::content_length;
use tandem_http::{Method, ResponseHead, upgrade};
use tokio::time::Instant;

use super::Http1Session;
use super::connection::ClientConnection;
use super::writer::Writer;
use crate::carrier::LocalBoxFuture;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Isolation, Peer, Reply};
use crate::metrics::METRICS;
use crate::path::Path;
use crate::priority::SharedPriority;
use crate::session::Drain;
use crate::stage::Stage;

/// Time that the next request of a connection has after a drain began.
const NEXT_REQUEST: Duration = Duration::from_secs(1);

/// The origin-form requests (`GET /path` with a Host field) that a server accepts. A forward proxy
/// must not become a transparent one by accident.
#[derive(Clone, Debug)]
pub enum OriginForm {
    /// Accepts all: the server represents the origins.
    Any,
    /// Accepts those that name one of these authorities of the listener.
    Only(Rc<[String]>),
}

/// The server end of one HTTP/1.1 connection.
pub struct Http1Server {
    session: Http1Session,
    connection: ClientConnection,
    peer: Peer,
    stage: Rc<dyn Stage>,
}

/// Resolves when a connection without a request is to end: a moment after the drain began, or after
/// this call if that is later. A request may be on its way over the slow path, and its client would
/// not repeat it, such as a POST. Its response says that the connection ends.
fn next_request_missed(drain: &Drain) -> impl Future<Output = ()> + 'static {
    let begun = drain.begun();
    async move {
        begun.await;
        tokio::time::sleep(NEXT_REQUEST).await;
    }
}

impl Http1Server {
    /// Serves `path`.
    pub fn new(session: Http1Session, path: Path, peer: Peer, stage: Rc<dyn Stage>) -> Self {
        Self::with_early(session, path, peer, stage, BytesMut::new())
    }

    /// Serves `path`, of which `early` has been read already.
    pub fn with_early(
        session: Http1Session,
        path: Path,
        peer: Peer,
        stage: Rc<dyn Stage>,
        early: BytesMut,
    ) -> Self {
        Self {
            session,
            connection: ClientConnection::new(path, early),
            peer,
            stage,
        }
    }

    /// Runs until the connection ends, or the drain ends it between two exchanges.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let ends_unasked = self.session.ends_unasked;
        let drain_ends = || -> LocalBoxFuture<'static, ()> {
            match ends_unasked {
                true => Box::pin(drain.begun()),
                false => Box::pin(next_request_missed(&drain)),
            }
        };
        let mut draining = drain_ends();
        loop {
            let request = {
                let mut next = std::pin::pin!(self.next_request());
                let raced = std::future::poll_fn(|cx| {
                    if let Poll::Ready(request) = next.as_mut().poll(cx) {
                        return Poll::Ready(Some(request));
                    }
                    let may_end = ends_unasked || !self.connection.has_input();
                    if may_end && draining.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    Poll::Pending
                });
                match raced.await {
                    Some(request) => request?,
                    None => None,
                }
            };
            let Some(request) = request else {
                return self.connection.close().await;
            };
            if !self.serve_one(request, &drain).await? {
                return self.connection.close().await;
            }
            draining = drain_ends();
        }
    }

    /// Reads the next request; `None` when the client has closed. A malformed request receives its
    /// error response here.
    async fn next_request(&self) -> Result<Option<Request>, Error> {
        let timeouts = &self.session.timeouts;
        let mut begun = None;
        loop {
            let request = self
                .connection
                .take_request(self.session.scheme, &self.session.limits);
            match request {
                Ok(None) => {}
                Ok(request) => return Ok(request),
                Err(bad) => return Err(self.refuse(&bad).await),
            }
            if begun.is_none() && self.connection.has_input() {
                begun = Some(Instant::now());
            }
            // One limit covers the whole head, however slowly its bytes arrive.
            let limit = begun.map_or(timeouts.idle, |begun| {
                timeouts.head.saturating_sub(begun.elapsed())
            });
            match tokio::time::timeout(
                limit,
                std::future::poll_fn(|cx| self.connection.poll_fill(cx)),
            )
            .await
            {
                Ok(Ok(0)) if !self.connection.has_input() => return Ok(None),
                Ok(Ok(0)) => {
                    return Err(Error::new(
                        Kind::Truncated,
                        Side::Client,
                        "the client closed within a request's head",
                    ));
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) if begun.is_some() => {
                    let error = Error::new(
                        Kind::Timeout,
                        Side::Client,
                        "the request's head did not arrive in time",
                    );
                    self.answer(&Method::Get, ResponseHead::new(408), Bytes::new())
                        .await?;
                    return Err(error);
                }
                Err(_) => return Ok(None),
            }
        }
    }

    async fn refuse(&self, bad: &BadRequest) -> Error {
        METRICS.requests_malformed.add(1);
        let mut head = ResponseHead::new(bad.status());
        head.fields.push("content-type", "text/plain");
        let body = Bytes::from(format!("{bad}\n"));
        // Even a bad request tells by its method if the response may have content.
        let method = match self.connection.has_head_request() {
            true => Method::Head,
            false => Method::Get,
        };
        match self.answer(&method, head, body).await {
            Ok(()) => Error::new(Kind::BadRequest, Side::Client, bad.to_string()),
            Err(error) => error,
        }
    }

    /// Writes a last response to a request, after which the connection closes.
    async fn answer(
        &self,
        method: &Method,
        mut head: ResponseHead,
        body: Bytes,
    ) -> Result<(), Error> {
        head.fields.set("content-length", body.len().to_string());
        // A web page must not learn that a proxy listens here.
        head.fields
            .set("cross-origin-resource-policy", "same-origin");
        let reply = Reply::ready(head, body);
        let mut writer = Writer::new(
            self.connection.clone(),
            reply,
            method,
            Version::Http11,
            false,
            &self.session,
        );
        std::future::poll_fn(|cx| writer.poll(cx)).await?;
        drop(writer);
        self.connection.close().await
    }

    /// Serves one exchange. Returns whether the connection can carry another.
    async fn serve_one(&self, request: Request, drain: &Drain) -> Result<bool, Error> {
        let Request {
            mut head,
            form,
            version,
            framing,
            upgrade: offered,
            keep_alive,
            ..
        } = request;
        // A server may ignore any offer (RFC 9110 section 7.8), such as one with a request body,
        // which the upgraded connection could not carry.
        let plain = head.method == Method::Get && matches!(framing, Framing::None);
        let upgrade = offered.filter(|protocol| plain && upgrade::is_passed_on(protocol));
        if self.is_misdirected(form, &head.authority) {
            let mut refusal = ResponseHead::new(421);
            refusal.fields.push("content-type", "text/plain");
            let body = Bytes::from_static(b"Misdirected request.\n");
            self.answer(&head.method, refusal, body).await?;
            return Ok(false);
        }
        let method = head.method.clone();
        let tunnel = head.is_connect() || upgrade.is_some();
        if let Some(protocol) = &upgrade {
            head.method = Method::Connect;
            head.protocol = Some(protocol.clone());
        }
        let takes_trailers = head.fields.has_token("te", "trailers");
        let body = self.request_body(&head, framing, tunnel);
        let exchange = Exchange {
            request: Arc::new(head),
            body,
            isolation: Isolation::none(),
            peer: self.peer,
            priority: SharedPriority::default(),
        };
        let reply = self.stage.call(exchange);
        let mut writer = Writer::new(
            self.connection.clone(),
            reply,
            &method,
            version,
            keep_alive,
            &self.session,
        );
        writer.upgrade = upgrade;
        writer.drain = Some(drain.clone());
        writer.trailers_after_length = self.session.one_exchange && takes_trailers;
        let written = std::future::poll_fn(|cx| writer.poll(cx)).await;
        let keep_alive = writer.keeps_alive();
        let shows_break = writer.shows_break();
        drop(writer);
        if let Err(error) = written {
            // Browsers show the beginning of a page after a close, but not after a reset.
            let may_close = shows_break && !self.session.one_exchange;
            if !may_close || error.side == Side::Client || self.connection.close().await.is_err() {
                self.connection.break_off().await;
            }
            return Err(error);
        }
        if self.connection.is_tunnel() {
            return Ok(false);
        }
        // The unread rest of a body lies between this exchange and the next.
        Ok(keep_alive && self.connection.skip_body().await)
    }

    /// Returns whether a request in origin form names another server than this one.
    fn is_misdirected(&self, form: Form, authority: &str) -> bool {
        match (form, &self.session.origin_form) {
            (Form::Origin | Form::Asterisk, OriginForm::Only(own)) => {
                !own.iter().any(|name| name.eq_ignore_ascii_case(authority))
            }
            _ => false,
        }
    }

    fn request_body(
        &self,
        head: &tandem_http::RequestHead,
        framing: Framing,
        tunnel: bool,
    ) -> Body {
        let Some(body) = self.connection.begin_body(framing, tunnel) else {
            return Body::empty();
        };
        let length = content_length(&head.fields).ok().flatten();
        Body::new(body, length.filter(|_| !tunnel))
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::exchange::Part;

    fn session() -> Http1Session {
        Http1Session::new(Form::Absolute, crate::role_name::RoleName::Client)
    }

    #[tokio::test]
    async fn server_reads_origin_form_in_its_own_scheme() {
        for (scheme, name) in [(Scheme::Http, "http"), (Scheme::Https, "https")] {
            let (mut near, far) = Path::pair(1 << 16);
            let peer = Peer::none();
            let stage = |exchange: Exchange| {
                let read = format!(
                    "{}://{}",
                    exchange.request.scheme.as_str(),
                    exchange.request.authority
                );
                Reply::ready(ResponseHead::new(200), Bytes::from(read))
            };
            let session = Http1Session {
                scheme,
                ..session()
            };
            let server = Http1Server::new(session, far, peer, Rc::new(stage)).run(Drain::new());
            let asked = async {
                near.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
                    .await
                    .expect("the server is there");
                let mut answer = String::new();
                near.read_to_string(&mut answer).await.expect("an end");
                answer
            };
            let (served, answer) = tokio::join!(server, asked);
            served.expect("a regular end");
            assert!(answer.contains(&format!("{name}://a.example")), "{answer}");
        }
    }

    #[tokio::test]
    async fn drain_lets_a_new_connection_ask_once() {
        let (mut near, far) = Path::pair(1 << 16);
        let peer = Peer::none();
        let stage = |_: Exchange| Reply::ready(ResponseHead::new(204), Bytes::new());
        let drain = Drain::new();
        drain.begin();
        let server = Http1Server::new(session(), far, peer, Rc::new(stage)).run(drain);
        let asked = async {
            near.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .await
                .expect("the server is there");
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.expect("an end");
            answer
        };
        let (served, answer) = tokio::join!(server, asked);
        assert!(served.is_ok() && answer.starts_with(b"HTTP/1.1 204"));
    }

    /// The rest of a request that comes after a reload belongs to the new configuration.
    #[tokio::test(start_paused = true)]
    async fn drain_ends_a_connection_without_a_complete_request() {
        for (begun, later, status) in [
            ("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHo", "st: a\r\n\r\n", None),
            (
                "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                "",
                Some("HTTP/1.1 204"),
            ),
        ] {
            let (mut near, far) = Path::pair(1 << 16);
            let stage = |_: Exchange| Reply::ready(ResponseHead::new(204), Bytes::new());
            let session = Http1Session {
                ends_unasked: true,
                ..session()
            };
            let drain = Drain::new();
            let server = Http1Server::new(session, far, Peer::none(), Rc::new(stage));
            let serving = server.run(drain.clone());
            let asked = async {
                near.write_all(begun.as_bytes()).await.expect("room");
                tokio::task::yield_now().await;
                drain.begin();
                tokio::task::yield_now().await;
                // The connection may be closed already.
                let _ = near.write_all(later.as_bytes()).await;
                let mut answer = String::new();
                near.read_to_string(&mut answer).await.expect("an end");
                answer
            };
            let (served, answer) = tokio::join!(serving, asked);
            served.expect("a regular end");
            match status {
                Some(status) => assert!(answer.starts_with(status), "{answer}"),
                None => assert_eq!(answer, "", "{begun}"),
            }
        }
    }

    /// The client of a kept connection would send its next request, which may be a POST, into the
    /// end of the connection.
    #[tokio::test(start_paused = true)]
    async fn drain_marks_the_last_response_of_each_connection() {
        for ends_unasked in [false, true] {
            let (mut near, far) = Path::pair(1 << 16);
            let answers = Rc::new(tokio::sync::Notify::new());
            let (begun, answer) = (Rc::new(tokio::sync::Notify::new()), Rc::clone(&answers));
            let asked = Rc::clone(&begun);
            let stage = move |_: Exchange| {
                asked.notify_one();
                let answer = Rc::clone(&answer);
                Reply::generate(|mut sink| async move {
                    answer.notified().await;
                    sink.send(Part::Head(ResponseHead::new(204))).await;
                    Ok(())
                })
            };
            let drain = Drain::new();
            let session = Http1Session {
                ends_unasked,
                ..session()
            };
            let server = Http1Server::new(session, far, Peer::none(), Rc::new(stage));
            let serving = server.run(drain.clone());
            let asking = async {
                near.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
                    .await
                    .expect("the server is there");
                begun.notified().await;
                drain.begin();
                answers.notify_one();
                let mut answer = String::new();
                near.read_to_string(&mut answer).await.expect("an end");
                answer.to_ascii_lowercase()
            };
            let (served, answer) = tokio::join!(serving, asking);
            served.expect("a regular end");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        }
    }

    /// The next request of an idle connection may be on its way already.
    #[tokio::test(start_paused = true)]
    async fn drain_lets_an_idle_connection_ask_once_more() {
        let (mut near, far) = Path::pair(1 << 16);
        let stage = |_: Exchange| Reply::ready(ResponseHead::new(204), Bytes::new());
        let drain = Drain::new();
        let server = Http1Server::new(session(), far, Peer::none(), Rc::new(stage));
        let serving = server.run(drain.clone());
        let asking = async {
            let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
            near.write_all(request).await.expect("the server is there");
            let mut first = [0; 12];
            near.read_exact(&mut first).await.expect("a response");
            tokio::time::sleep(NEXT_REQUEST).await;
            drain.begin();
            tokio::time::sleep(NEXT_REQUEST / 2).await;
            near.write_all(request).await.expect("the server is there");
            let mut rest = String::new();
            near.read_to_string(&mut rest).await.expect("an end");
            rest.to_ascii_lowercase()
        };
        let (served, rest) = tokio::join!(serving, asking);
        served.expect("a regular end");
        let (_, last) = rest.split_once("http/1.1 204").expect("two responses");
        assert!(last.contains("\r\nconnection: close\r\n"), "{rest}");
    }
}
