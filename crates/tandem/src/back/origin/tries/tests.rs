//! Tests of the time limit, with an origin whose first sessions are silent until they are given up.

use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::h1::Form;
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};

use super::*;
use crate::back::doubles::{FakeSession, no_transport, run};
use crate::back::origin::{Limits, Mode, OriginProtocols, OriginTransports, ToOrigin};
use crate::carrier::{CarrierFuture, LocalBoxFuture};
use crate::endpoint::SessionKind;
use crate::exchange::{Body, Chunk, Chunks, Part, Reply};
use crate::role_name::RoleName;
use crate::session::Connected;
use crate::session::http1::Http1Session;
use crate::stage::Stage;
use crate::transport::doubles::FakeDial;

/// The time after which a silent session is given up.
const GIVEN_UP: Duration = Duration::from_secs(50);

const LIMIT: Duration = Duration::from_secs(60);

/// The time that a session waits for a stream.
const STREAM_WAIT: Duration = Duration::from_secs(7);

/// The behaviour of a session.
#[derive(Clone, Copy)]
enum Script {
    Responds,
    /// It never responds.
    Silent,
    /// Other exchanges use all of its streams until this time.
    Taken(Instant),
    /// It takes no new exchanges.
    Closing,
    /// It closes the connection in place of a response.
    Empty,
}

struct Scripted {
    script: Script,
    is_over: Cell<bool>,
}

fn full() -> Error {
    Error::new(Kind::Full, Side::Peer, "no stream is free").with_retry(Retry::Safe)
}

impl FakeSession for Scripted {
    fn run<'a>(
        &'a self,
        _: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match self.script {
                Script::Responds => {}
                Script::Silent => {
                    tokio::time::sleep(GIVEN_UP).await;
                    self.is_over.set(true);
                    let error =
                        Error::new(Kind::Timeout, Side::Peer, "the other end does not respond");
                    return Err(error.with_retry(Retry::IfIdempotent));
                }
                Script::Taken(until) => {
                    let wait = tokio::time::sleep_until(until);
                    if tokio::time::timeout(STREAM_WAIT, wait).await.is_err() {
                        return Err(full());
                    }
                }
                Script::Closing => {
                    self.is_over.set(true);
                    return Err(full());
                }
                Script::Empty => {
                    self.is_over.set(true);
                    let error = Error::new(Kind::Reset, Side::Origin, "no response");
                    return Err(error.with_retry(Retry::IfIdempotent));
                }
            }
            sink.send(Part::Head(ResponseHead::new(200))).await;
            Ok(())
        })
    }

    fn drain(&self) {}

    fn is_closed(&self) -> bool {
        self.is_over.get()
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
    let script = move |number| match number <= silent {
        true => Script::Silent,
        false => Script::Responds,
    };
    ask_sessions(script, method, text).await
}

fn protocols(
    multiplexed: impl Fn(CarrierFuture<'static>) -> Rc<dyn Connected> + 'static,
) -> OriginProtocols {
    OriginProtocols {
        http1: Http1Session {
            response_timeout: LIMIT,
            ..Http1Session::new(Form::Origin, RoleName::Gateway)
        },
        multiplexed: Rc::new(multiplexed),
        always: Some(SessionKind::H2),
    }
}

/// Returns the pool of a forward gateway without transports.
fn origin(protocols: OriginProtocols) -> Rc<Origin> {
    let transport = no_transport();
    let transports = OriginTransports {
        secure: Rc::clone(&transport),
        secure_http1: Rc::clone(&transport),
        plain: Rc::clone(&transport),
        tunnels: transport,
    };
    Origin::with(Mode::Forward, transports, protocols, Limits::default())
}

/// Each exchange under way has such a future, and the processor's cache holds that many more of
/// them.
#[test]
fn future_of_an_exchange_has_at_most_a_kibibyte() {
    run(async {
        let origin = origin(protocols(|_| unreachable!("no session begins")));
        let mut exchange = Exchange::internal(RequestHead::get(Scheme::Http, "a.test", "/"));
        let reply = Reply::generate(|mut sink| {
            let future = async move { origin.answer(&mut exchange, &mut sink).await };
            let size = size_of_val(&future);
            assert!(size <= 1024, "{size} bytes");
            future
        });
        drop(reply);
    });
}

/// Sends a request to an origin whose sessions have these scripts by their number, as [`ask`].
async fn ask_sessions(
    script: impl Fn(usize) -> Script + 'static,
    method: Method,
    text: &'static str,
) -> (u16, Duration, usize) {
    let begun = Rc::<Cell<usize>>::default();
    let counter = Rc::clone(&begun);
    let protocols = protocols(move |_| {
        counter.set(counter.get() + 1);
        let session = Scripted {
            script: script(counter.get()),
            is_over: Cell::new(false),
        };
        Rc::new(session) as Rc<dyn Connected>
    });
    let origin = origin(protocols);
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
        // The front answers a timeout or a limit with this status.
        Some(Err(error)) => error.status(),
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

/// An origin may allow one stream at a time.
#[test]
fn request_waits_for_a_stream_up_to_the_time_limit() {
    run(async {
        let taken_for = |time| {
            let until = Instant::now() + time;
            move |_| Script::Taken(until)
        };
        let late = LIMIT - STREAM_WAIT / 2;
        for (method, text) in [(Method::Get, ""), (Method::Post, "text")] {
            let asked = ask_sessions(taken_for(late), method, text).await;
            assert_eq!(asked, (200, late, 1));
        }
        let asked = ask_sessions(taken_for(2 * LIMIT), Method::Get, "").await;
        assert_eq!(asked, (504, LIMIT, 1));
        let asked = ask_sessions(taken_for(2 * LIMIT), Method::Post, "text").await;
        // An upload has no limit of its own, so its last wait is a whole one.
        assert_eq!(asked, (503, 9 * STREAM_WAIT, 1));
    });
}

#[test]
fn sessions_that_take_no_requests_are_tried_few_times() {
    run(async {
        let asked = ask_sessions(|_| Script::Closing, Method::Get, "").await;
        assert_eq!(asked, (503, Duration::ZERO, TRIES));
    });
}

/// The origin may have processed the request before it closed the connection.
#[test]
fn request_without_a_response_is_repeated_once() {
    run(async {
        for (method, sessions) in [(Method::Get, UNSURE_TRIES), (Method::Post, 1)] {
            let asked = ask_sessions(|_| Script::Empty, method, "").await;
            assert_eq!(asked, (502, Duration::ZERO, sessions));
        }
    });
}

/// A gateway may have too many tunnels, and a client opens another session to it for each attempt.
#[test]
fn full_gateway_on_the_way_is_asked_few_times() {
    run(async {
        let secure = FakeDial::new(|_| async {
            tokio::time::sleep(STREAM_WAIT).await;
            Err(full())
        });
        let transport = no_transport();
        let transports = OriginTransports {
            secure: Rc::clone(&secure) as _,
            secure_http1: Rc::clone(&transport),
            plain: Rc::clone(&transport),
            tunnels: transport,
        };
        let protocols = OriginProtocols {
            always: None,
            ..protocols(|_| -> Rc<dyn Connected> { unreachable!("no path is open") })
        };
        let origin = Origin::with(Mode::Forward, transports, protocols, Limits::default());
        let request = RequestHead::get(Scheme::Https, "site.example", "/");
        let mut reply = ToOrigin(origin).call(Exchange::internal(request));
        let failed = reply.part().await;
        assert!(matches!(failed, Some(Err(error)) if error.kind == Kind::Full));
        assert_eq!(secure.dials(), TRIES);
    });
}
