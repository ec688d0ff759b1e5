//! Tests of the time limit, with an origin whose first sessions are silent until they are given up.

use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::h1::Form;
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};

use super::*;
use crate::back::origin::tests_scripted::run;
use crate::back::origin::{Limits, Mode, OriginProtocols, OriginTransports, ToOrigin};
use crate::carrier::{Carrier, LocalBoxFuture};
use crate::endpoint::SessionKind;
use crate::exchange::{Body, Chunk, Chunks, Part, Peer, Reply};
use crate::role_name::RoleName;
use crate::session::http1::Http1Session;
use crate::session::{Connected, Drain, Session, SessionEvents, SessionState};
use crate::stage::Stage;
use crate::transport::Transport;

/// The time after which a silent session is given up.
const GIVEN_UP: Duration = Duration::from_secs(50);

const LIMIT: Duration = Duration::from_secs(60);

/// A transport that no session uses.
struct NoTransport;

impl Transport for NoTransport {
    fn below(&self) -> Option<&dyn Transport> {
        None
    }
}

/// A protocol whose first `silent` sessions never respond.
struct Silent {
    silent: usize,
    begun: Rc<Cell<usize>>,
}

impl Session for Silent {
    fn connect(&self, _: LocalBoxFuture<'static, Result<Carrier, Error>>) -> Rc<dyn Connected> {
        self.begun.set(self.begun.get() + 1);
        Rc::new(Begun {
            is_silent: self.begun.get() <= self.silent,
            is_over: Cell::new(false),
        })
    }

    fn serve(
        &self,
        _: Carrier,
        _: Peer,
        _: Rc<dyn Stage>,
        _: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Begun {
    is_silent: bool,
    is_over: Cell<bool>,
}

impl Connected for Begun {
    fn run<'a>(
        &'a self,
        _: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if self.is_silent {
                tokio::time::sleep(GIVEN_UP).await;
                self.is_over.set(true);
                let error = Error::new(Kind::Timeout, Side::Peer, "the other end does not respond");
                return Err(error.with_retry(Retry::IfIdempotent));
            }
            sink.send(Part::Head(ResponseHead::new(200))).await;
            Ok(())
        })
    }

    fn drain(&self) {}
}

impl SessionState for Begun {
    fn is_ready(&self) -> bool {
        !self.is_over.get()
    }

    fn is_closed(&self) -> bool {
        self.is_over.get()
    }

    fn is_established(&self) -> bool {
        true
    }

    fn active(&self) -> usize {
        0
    }
}

impl SessionEvents for Begun {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Text(Option<&'static str>);

impl Chunks for Text {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let text = self.0.take();
        Poll::Ready(text.map(|text| Ok(Chunk::Data(Bytes::from_static(text.as_bytes())))))
    }
}

/// Sends a request to an origin with silent sessions. Returns the status of the response, the time
/// until it came, and the number of sessions.
async fn ask(silent: usize, method: Method, text: &'static str) -> (u16, Duration, usize) {
    let begun = Rc::<Cell<usize>>::default();
    let transport: Rc<dyn Transport> = Rc::new(NoTransport);
    let transports = OriginTransports {
        secure: Rc::clone(&transport),
        secure_http1: Rc::clone(&transport),
        plain: Rc::clone(&transport),
        tunnels: transport,
    };
    let protocols = OriginProtocols {
        http1: Http1Session {
            response_timeout: LIMIT,
            ..Http1Session::new(Form::Origin, RoleName::Gateway)
        },
        multiplexed: Rc::new(Silent {
            silent,
            begun: Rc::clone(&begun),
        }),
        always: Some(SessionKind::H2),
    };
    let origin = Origin::with(Mode::Forward, transports, protocols, Limits::default());
    let mut exchange = Exchange::internal(RequestHead {
        method,
        ..RequestHead::get(Scheme::Http, "site.example", "/")
    });
    if !text.is_empty() {
        exchange.body = Body::new(Text(Some(text)), None);
    }
    let start = Instant::now();
    let mut reply: Reply = ToOrigin(origin).call(exchange);
    let status = match reply.part().await {
        Some(Ok(Part::Head(head))) => head.status,
        // The front answers a timeout with this status.
        Some(Err(error)) if error.kind == Kind::Timeout => 504,
        other => panic!("{other:?}"),
    };
    (status, start.elapsed(), begun.get())
}

#[test]
fn silent_sessions_share_one_limit_of_the_response() {
    run(async {
        assert_eq!(ask(9, Method::Get, "").await, (504, LIMIT, 2));
        // Another session may respond in the rest of the time.
        assert_eq!(ask(1, Method::Get, "").await, (200, GIVEN_UP, 2));
    });
}

/// An upload has no limit of its own.
#[test]
fn upload_is_not_repeated_after_a_silence() {
    run(async {
        assert_eq!(ask(9, Method::Put, "text").await, (504, GIVEN_UP, 1));
    });
}
