//! Tests of the stage with a gateway that misbehaves. The way without a gateway echoes the body of
//! the request.

use std::cell::Cell;

use bytes::Bytes;
use tandem_http::{Method, RequestHead, Scheme};

use super::*;
use crate::announcement::FIELD;
use crate::error::{Kind, Side};
use crate::exchange::{Body, Chunk, Chunks};
use crate::stage::doubles::OneSession;

/// A body of three pieces.
struct Pieces(u8);

impl Chunks for Pieces {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        self.0 += 1;
        let piece = Bytes::from(vec![self.0; 1000]);
        Poll::Ready((self.0 <= 3).then(|| Ok(Chunk::Data(piece))))
    }
}

/// The behaviour of a gateway after it has read a piece of the body.
#[derive(Clone)]
enum Gateway {
    Answers(u16),
    /// The gateway itself reports an error.
    Reports(Kind, Side),
    /// The session ends before the head.
    Fails(Retry),
    /// The session stays open, and the exchange fails.
    Resets(Kind, Retry),
    /// The session ends after the head.
    Truncates,
}

async fn read(body: &mut Body, pieces: usize) -> Vec<u8> {
    let mut read = Vec::new();
    for _ in 0..pieces {
        match std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
            Some(Ok(Chunk::Data(data))) => read.extend_from_slice(&data),
            _ => break,
        }
    }
    read
}

fn reset(retry: Retry) -> Error {
    Error::new(Kind::Reset, Side::Peer, "reset").with_retry(retry)
}

impl Gateway {
    /// Serves an exchange. `live` becomes false when the session ends.
    fn serve(&self, mut exchange: Exchange, live: Rc<Cell<bool>>) -> Reply {
        let behaviour = self.clone();
        Reply::generate(|mut sink| async move {
            read(&mut exchange.body, 1).await;
            match behaviour {
                Self::Answers(status) => {
                    sink.send(Part::Head(ResponseHead::new(status))).await;
                    Ok(())
                }
                Self::Reports(kind, side) => {
                    let error = Error::new(kind, side, "x");
                    let (head, _) =
                        crate::failure::response(&error, crate::role_name::RoleName::Gateway);
                    sink.send(Part::Head(head)).await;
                    Ok(())
                }
                Self::Resets(kind, retry) => {
                    Err(Error::new(kind, Side::Peer, "reset").with_retry(retry))
                }
                Self::Fails(retry) => {
                    live.set(false);
                    Err(reset(retry))
                }
                Self::Truncates => {
                    sink.send(Part::Head(ResponseHead::new(200))).await;
                    live.set(false);
                    Err(reset(Retry::Safe))
                }
            }
        })
    }
}

/// A client with one site, which has this gateway.
struct Client {
    discovery: Rc<Discovery>,
    live: Rc<Cell<bool>>,
    awake: Rc<Cell<bool>>,
    /// The number of exchanges that the gateway got.
    served: Rc<Cell<usize>>,
}

impl Client {
    fn new(gateway: Gateway) -> Self {
        let direct = |mut exchange: Exchange| {
            Reply::generate(|mut sink| async move {
                let mut head = ResponseHead::new(200);
                let way = "\"h2+tcp://a.onion:9980\"";
                head.fields.push(FIELD, way);
                sink.send(Part::Head(head)).await;
                let body = read(&mut exchange.body, 10).await;
                sink.send(Part::Data(body.into())).await;
                Ok(())
            })
        };
        let (live, served) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
        let awake = Rc::new(Cell::new(true));
        let (of_lane, counter) = (Rc::clone(&live), Rc::clone(&served));
        let of_pool = Rc::clone(&awake);
        let new_lane = move |_: &Endpoint| {
            let (gateway, live, served) = (gateway.clone(), of_lane.clone(), counter.clone());
            let stage = move |exchange: Exchange| {
                served.set(served.get() + 1);
                gateway.serve(exchange, live.clone())
            };
            let lane = Lane {
                stage: Rc::new(stage),
                sessions: Rc::new(OneSession {
                    is_live: of_lane.clone(),
                    is_awake: of_pool.clone(),
                    ..OneSession::default()
                }),
                continuing: None,
            };
            Some(SiteLane {
                lane,
                prepare: Box::new(|_| Box::pin(std::future::ready(Ok(())))),
            })
        };
        Self {
            discovery: Discovery::new(Rc::new(direct), Box::new(new_lane), 8),
            live,
            awake,
            served,
        }
    }

    /// Sends a request, and returns the status, the body and the error.
    async fn send(&self, method: Method) -> (u16, Vec<u8>, Option<Error>) {
        let mut request = RequestHead::get(Scheme::Http, "a.onion", "/");
        request.method = method;
        self.send_request(request).await
    }

    /// Sends a request with one more field, and returns whether the gateway gets it.
    async fn reaches(&self, name: &'static str, value: &'static str) -> bool {
        let before = self.served.get();
        let mut request = RequestHead::get(Scheme::Http, "a.onion", "/x");
        request.fields.push(name, value);
        self.send_request(request).await;
        self.served.get() > before
    }

    async fn send_request(&self, request: RequestHead) -> (u16, Vec<u8>, Option<Error>) {
        let mut exchange = Exchange::internal(request);
        exchange.body = Body::new(Pieces(0), None);
        let mut reply = self.discovery.call(exchange);
        let (mut status, mut body) = (0, Vec::new());
        while let Some(part) = reply.part().await {
            match part {
                Ok(Part::Head(head)) => status = head.status,
                Ok(Part::Data(data)) => body.extend_from_slice(&data),
                Ok(_) => {}
                Err(error) => return (status, body, Some(error)),
            }
        }
        (status, body, None)
    }

    /// Runs the steps up to a gateway in use.
    async fn discover(&self) {
        for _ in 0..2 {
            assert_eq!(self.send(Method::Get).await.0, 200);
        }
        // The trial is a task.
        while self.discovery.memory.borrow().gateways().count() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(self.served.get(), 0);
    }
}

fn whole() -> Vec<u8> {
    [1, 2, 3].map(|piece| vec![piece; 1000]).concat()
}

async fn outcome(gateway: Gateway, method: Method) -> (u16, bool, bool) {
    let local = tokio::task::LocalSet::new();
    let outcome = local.run_until(async {
        let client = Client::new(gateway);
        client.discover().await;
        let (status, body, error) = client.send(method).await;
        assert_eq!(client.served.get(), 1);
        // The gateway is suspended, and the next request goes on without it.
        if client.discovery.memory.borrow().gateways().count() == 0 {
            assert_eq!(client.send(Method::Post).await.1, whole());
            assert_eq!(client.served.get(), 1);
        }
        (status, body == whole(), error.is_some())
    });
    outcome.await
}

#[tokio::test(start_paused = true)]
async fn resources_use_the_gateway_of_their_document() {
    let page = ("accept", "text/html,*/*;q=0.8");
    let resources = [("referer", "http://a.onion/"), ("sec-fetch-dest", "image")];
    let local = tokio::task::LocalSet::new();
    let steps = async {
        for has_page in [true, false] {
            let client = Client::new(Gateway::Answers(200));
            client.discover().await;
            for (name, value) in resources {
                assert!(!client.reaches(name, value).await, "{name}");
            }
            if has_page {
                assert!(client.reaches(page.0, page.1).await);
            } else {
                tokio::time::sleep(memory::PAGE).await;
            }
            for (name, value) in resources {
                assert!(client.reaches(name, value).await, "{name}");
            }
        }
    };
    local.run_until(steps).await;
}

#[tokio::test]
async fn refused_request_goes_directly_with_its_body() {
    for status in [407, 421] {
        let result = outcome(Gateway::Answers(status), Method::Post).await;
        assert_eq!(result, (200, true, false), "{status}");
    }
    let forbidden = Gateway::Reports(Kind::Forbidden, Side::Local);
    assert_eq!(outcome(forbidden, Method::Post).await, (200, true, false));
    for (kind, side, status) in [
        (Kind::Busy, Side::Local, 503),
        (Kind::Internal, Side::Local, 500),
        (Kind::ConnectionRefused, Side::Origin, 502),
    ] {
        let result = outcome(Gateway::Reports(kind, side), Method::Put).await;
        assert_eq!(result, (200, true, false), "{status}");
        let result = outcome(Gateway::Reports(kind, side), Method::Post).await;
        assert_eq!(result, (status, false, false), "{status}");
    }
}

#[tokio::test]
async fn origin_keeps_its_errors_and_its_gateway() {
    for status in [200, 404, 500, 502, 503, 504] {
        for method in [Method::Get, Method::Post] {
            let result = outcome(Gateway::Answers(status), method).await;
            assert_eq!(result, (status, false, false), "{status}");
        }
        assert_eq!(uses_until_left(Gateway::Answers(status)).await, 9);
    }
}

/// Sends nine requests, and returns the number of those that the gateway got.
async fn uses_until_left(gateway: Gateway) -> usize {
    let local = tokio::task::LocalSet::new();
    let uses = local.run_until(async {
        let client = Client::new(gateway);
        client.discover().await;
        for _ in 0..9 {
            client.send(Method::Get).await;
        }
        client.served.get()
    });
    uses.await
}

#[tokio::test]
async fn gateway_that_fails_exchanges_is_left() {
    let busy = Gateway::Reports(Kind::Busy, Side::Local);
    assert_eq!(uses_until_left(busy).await, 1);
    for gateway in [
        Gateway::Resets(Kind::Reset, Retry::Never),
        Gateway::Resets(Kind::Busy, Retry::Safe),
        Gateway::Reports(Kind::ConnectionRefused, Side::Origin),
    ] {
        assert_eq!(uses_until_left(gateway).await, 3);
    }
    // A full session is no failure.
    let full = Gateway::Resets(Kind::Full, Retry::Safe);
    assert_eq!(uses_until_left(full.clone()).await, 9);
    assert_eq!(outcome(full, Method::Post).await, (200, true, false));
}

#[tokio::test]
async fn silent_session_gets_safe_requests_only() {
    let local = tokio::task::LocalSet::new();
    let test = local.run_until(async {
        let client = Client::new(Gateway::Answers(404));
        client.discover().await;
        client.awake.set(false);
        for method in [Method::Post, Method::Put, Method::Delete] {
            assert_eq!(client.send(method).await.1, whole());
        }
        assert_eq!(client.served.get(), 0);
        assert_eq!(client.send(Method::Get).await.0, 404);
        client.awake.set(true);
        assert_eq!(client.send(Method::Post).await.0, 404);
    });
    test.await;
}

#[tokio::test(start_paused = true)]
async fn trial_uses_the_ways_in_their_order() {
    let lane = |works: Option<bool>| {
        let stage = |_: Exchange| Reply::fail(reset(Retry::Never));
        let lane = Lane {
            stage: Rc::new(stage),
            sessions: Rc::new(OneSession::default()),
            continuing: None,
        };
        Rc::new(SiteLane {
            lane,
            prepare: Box::new(move |_| {
                Box::pin(async move {
                    match works {
                        Some(true) => Ok(()),
                        Some(false) => Err(reset(Retry::Never)),
                        None => std::future::pending().await,
                    }
                })
            }),
        })
    };
    let lanes = vec![lane(Some(false)), lane(None), lane(Some(true))];
    let found = first_that_works(lanes.clone(), &Isolation::none()).await;
    assert!(found.is_some_and(|found| Rc::ptr_eq(&found, &lanes[2])));
    let lanes = lanes[..2].to_vec();
    assert!(first_that_works(lanes, &Isolation::none()).await.is_none());
}

/// The dial of a gateway that does not answer would last for up to a minute.
#[tokio::test]
async fn trial_ends_with_the_connection_of_its_part() {
    let local = tokio::task::LocalSet::new();
    let steps = async {
        let under_way = Rc::new(());
        let dialled = Rc::clone(&under_way);
        let new_lane = move |_: &Endpoint| {
            let dialled = Rc::clone(&dialled);
            Some(SiteLane {
                lane: Lane {
                    stage: Rc::new(|_: Exchange| Reply::fail(reset(Retry::Never))),
                    sessions: Rc::new(OneSession::default()),
                    continuing: None,
                },
                prepare: Box::new(move |_| {
                    let dial = Rc::clone(&dialled);
                    Box::pin(async move {
                        std::future::pending::<()>().await;
                        drop(dial);
                        Ok(())
                    })
                }),
            })
        };
        let direct = |_: Exchange| {
            let mut head = ResponseHead::new(200);
            head.fields.push(FIELD, "\"h2+tcp://a.onion:9980\"");
            Reply::ready(head, Bytes::new())
        };
        let discovery = Discovery::new(Rc::new(direct), Box::new(new_lane), 8);
        for part in [1, 1, 2, 2] {
            let request = RequestHead::get(Scheme::Http, "a.onion", "/");
            let mut exchange = Exchange::internal(request);
            exchange.isolation = exchange.isolation.within(part);
            let mut reply = discovery.call(exchange);
            while reply.part().await.is_some() {}
            tokio::task::yield_now().await;
        }
        // Each lane holds a share too, which the lanes that are not dialled would keep as well.
        let of_two = Rc::strong_count(&under_way);
        discovery.end_parts_of(1);
        while Rc::strong_count(&under_way) == of_two {
            tokio::task::yield_now().await;
        }
        assert_eq!(Rc::strong_count(&under_way) - 2, (of_two - 2) / 2);
        discovery.end_parts_of(2);
        while Rc::strong_count(&under_way) > 2 {
            tokio::task::yield_now().await;
        }
    };
    local.run_until(steps).await;
}

#[tokio::test]
async fn lost_request_is_repeated_if_that_is_harmless() {
    for (retry, method, expected) in [
        (Retry::Safe, Method::Post, (200, true, false)),
        (Retry::IfIdempotent, Method::Put, (200, true, false)),
        (Retry::IfIdempotent, Method::Post, (0, false, true)),
        (Retry::Never, Method::Get, (200, true, false)),
        (Retry::Never, Method::Put, (0, false, true)),
    ] {
        let result = outcome(Gateway::Fails(retry), method.clone()).await;
        assert_eq!(result, expected, "{retry:?} {method:?}");
    }
    // A part of the response has been passed on.
    let result = outcome(Gateway::Truncates, Method::Get).await;
    assert_eq!(result, (200, false, true));
}

#[tokio::test]
async fn closed_session_serves_no_request() {
    let local = tokio::task::LocalSet::new();
    let test = local.run_until(async {
        let client = Client::new(Gateway::Answers(500));
        client.discover().await;
        client.live.set(false);
        let (status, body, error) = client.send(Method::Post).await;
        assert_eq!((status, body, error), (200, whole(), None));
        assert_eq!(client.served.get(), 0);
    });
    test.await;
}
