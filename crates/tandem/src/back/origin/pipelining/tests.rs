//! Tests of pipelined requests, in virtual time, with an origin that a script controls.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tandem_http::{RequestHead, Scheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::super::{Limits, Mode, ToOrigin};
use crate::back::tests_over_paths;
use crate::carrier::LocalBoxFuture;
use crate::error::{Error, Kind};
use crate::exchange::{Exchange, Isolation, Part, Peer};
use crate::path::Path;
use crate::stage::Stage as _;
use crate::transport::{Target, Transport};

/// The time of the origin for one response.
const THINKS: Duration = Duration::from_millis(100);

/// The behaviour of an origin. The body of each response is the path of its request, repeated.
#[derive(Clone, Copy)]
struct Behaviour {
    /// The number of responses after which it closes a connection.
    closes_after: usize,
    /// True if it says so in the last response.
    announces: bool,
    /// True if it drops requests that arrive before the response to an earlier one.
    drops: bool,
    /// The length of its responses in bytes.
    length: usize,
    /// The time before each response.
    thinks: Duration,
    /// True if it answers requests in pairs: the first when the second has arrived.
    pairs: bool,
    /// The bytes with which it answers a request that arrives before the response to an earlier
    /// one. It closes the connection after them.
    confused: Option<&'static str>,
    /// The version of its responses.
    version: &'static str,
}

const REGULAR: Behaviour = Behaviour {
    closes_after: usize::MAX,
    announces: true,
    drops: false,
    length: 20,
    thinks: THINKS,
    pairs: false,
    confused: None,
    version: "HTTP/1.1",
};

/// The observations of an origin.
#[derive(Default)]
struct Seen {
    dials: Cell<usize>,
    open: Cell<usize>,
    greatest: Cell<usize>,
    requests: RefCell<Vec<String>>,
    /// The number of requests that had another one behind them.
    followed: Cell<usize>,
    /// The requests that arrived before the end of their connection, and were not answered.
    lost: Cell<usize>,
}

struct Scripted {
    behaviour: Rc<Cell<Behaviour>>,
    seen: Rc<Seen>,
}

impl Transport for Scripted {
    fn below(&self) -> Option<&dyn Transport> {
        None
    }

    fn dial<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        let seen = &self.seen;
        seen.dials.set(seen.dials.get() + 1);
        seen.open.set(seen.open.get() + 1);
        seen.greatest.set(seen.greatest.get().max(seen.open.get()));
        let (near, far) = Path::pair(1 << 16);
        let (behaviour, seen) = (Rc::clone(&self.behaviour), Rc::clone(seen));
        tokio::task::spawn_local(async move {
            // A client that leaves breaks the connection.
            let _ = serve(far, &behaviour, &seen).await;
            seen.open.set(seen.open.get() - 1);
        });
        Box::pin(std::future::ready(Ok(near)))
    }
}

fn body(path: &str, length: usize) -> Vec<u8> {
    path.bytes().cycle().take(length).collect()
}

async fn serve(mut path: Path, behaviour: &Cell<Behaviour>, seen: &Seen) -> io::Result<()> {
    let mut input = Vec::new();
    for answered in 1.. {
        let end = loop {
            let ends = input
                .windows(4)
                .enumerate()
                .filter(|it| it.1 == b"\r\n\r\n");
            let ends: Vec<usize> = ends.map(|it| it.0 + 4).collect();
            let waits = behaviour.get().pairs && answered % 2 == 0;
            match ends.get(usize::from(waits)) {
                Some(_) => break ends[0],
                None if path.read_buf(&mut input).await? == 0 => return Ok(()),
                None => {}
            }
        };
        let head = String::from_utf8(input.drain(..end).collect()).expect("a head");
        let target = head.split(' ').nth(1).expect("a target").to_owned();
        seen.requests.borrow_mut().push(target.clone());
        let now = behaviour.get();
        tokio::time::sleep(now.thinks).await;
        if now.drops {
            let mut dropped = [0; 4096];
            let read = path.read(&mut dropped);
            // Nothing is there if the client does not pipeline.
            let _ = tokio::time::timeout(Duration::ZERO, read).await;
        } else {
            let more = path.read_buf(&mut input);
            // As above.
            let _ = tokio::time::timeout(Duration::ZERO, more).await;
        }
        let followed = seen.followed.get() + usize::from(!input.is_empty());
        seen.followed.set(followed);
        let is_last = answered >= now.closes_after;
        let close = if is_last && now.announces {
            "Connection: close\r\n"
        } else {
            "Connection: keep-alive\r\n"
        };
        let version = now.version;
        let length = now.length;
        let head = format!("{version} 200 OK\r\n{close}Content-Length: {length}\r\n\r\n");
        path.write_all(head.as_bytes()).await?;
        for piece in body(&target, length).chunks(64 << 10) {
            path.write_all(piece).await?;
            if length > 1 << 20 {
                tokio::time::sleep(THINKS / 5).await;
            }
        }
        let confused = now.confused.filter(|_| !input.is_empty());
        path.write_all(confused.unwrap_or_default().as_bytes())
            .await?;
        path.flush().await?;
        if is_last {
            let more = path.read_buf(&mut input);
            // As above.
            let _ = tokio::time::timeout(Duration::ZERO, more).await;
            let is_lost = !input.is_empty();
            seen.lost.set(seen.lost.get() + usize::from(is_lost));
        }
        if is_last || confused.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// An origin behind a stage that uses at most `connections` connections.
struct Scene {
    stage: ToOrigin,
    behaviour: Rc<Cell<Behaviour>>,
    seen: Rc<Seen>,
}

fn exchange(path: &str, fields: &[(&str, &str)]) -> Exchange {
    let mut request = RequestHead::get(Scheme::Http, "site.example", path);
    for (name, value) in fields {
        request.fields.push(*name, *value);
    }
    Exchange {
        peer: Peer {
            session: 1,
            ..Peer::none()
        },
        ..Exchange::internal(request)
    }
}

type Fetched = JoinHandle<Result<Vec<u8>, Error>>;

impl Scene {
    fn new(behaviour: Behaviour, connections: usize) -> Self {
        let scripted = Scripted {
            behaviour: Rc::new(Cell::new(behaviour)),
            seen: Rc::default(),
        };
        let (behaviour, seen) = (Rc::clone(&scripted.behaviour), Rc::clone(&scripted.seen));
        let limits = Limits::default();
        let stage = tests_over_paths::to_origin(Mode::Forward, Rc::new(scripted), limits);
        stage.0.pipeline(Box::new(move |_, _| connections));
        Self {
            stage,
            behaviour,
            seen,
        }
    }

    fn fetch_with(&self, path: &str, fields: &[(&str, &str)]) -> Fetched {
        let mut reply = self.stage.call(exchange(path, fields));
        tokio::task::spawn_local(async move {
            let mut body = Vec::new();
            while let Some(part) = reply.part().await {
                if let Part::Data(data) = part? {
                    body.extend_from_slice(&data);
                }
            }
            Ok(body)
        })
    }

    fn fetch(&self, path: &str) -> Fetched {
        self.fetch_with(path, &[])
    }

    /// Shows the stage that the origin keeps connections open.
    async fn begin(&self) {
        let first = self.fetch("/first").await.expect("a task");
        assert_eq!(first, Ok(body("/first", self.behaviour.get().length)));
    }

    async fn expect(&self, path: &str, fetched: Fetched) {
        let got = fetched.await.expect("a task");
        let got = got.unwrap_or_else(|error| panic!("{path}: {error:?}"));
        assert!(got == body(path, self.behaviour.get().length), "{path}");
    }

    fn depth(&self) -> usize {
        self.stage.0.depth(&exchange("/", &[]))
    }

    fn requests(&self) -> usize {
        self.seen.requests.borrow().len()
    }
}

fn run(scene: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, scene);
}

#[test]
fn second_request_leaves_before_the_first_response() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        scene.behaviour.set(Behaviour {
            pairs: true,
            ..REGULAR
        });
        let paths = ["/a", "/bb", "/ccc", "/dddd"];
        let fetched = paths.map(|path| scene.fetch(path));
        for (path, fetched) in paths.into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!(scene.seen.dials.get(), 1);
        assert_eq!(scene.depth(), 2);
    });
}

#[test]
fn unknown_origin_gets_one_request_on_each_connection() {
    run(async {
        let scene = Scene::new(REGULAR, 2);
        assert_eq!(scene.depth(), 1);
        let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
        tokio::time::sleep(THINKS / 2).await;
        assert_eq!((scene.requests(), scene.seen.dials.get()), (2, 2));
        for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
    });
}

#[test]
fn connections_stay_below_their_limit() {
    run(async {
        let scene = Scene::new(REGULAR, 3);
        scene.begin().await;
        let paths: Vec<_> = (0..40).map(|number| format!("/{number}")).collect();
        let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
        for (path, fetched) in paths.iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!((scene.seen.greatest.get(), scene.requests()), (3, 41));
    });
}

#[test]
fn document_and_part_are_not_pipelined() {
    run(async {
        for fields in [("accept", "text/html,*/*"), ("range", "bytes=0-1")] {
            let scene = Scene::new(REGULAR, 1);
            scene.begin().await;
            let special = scene.fetch_with("/special", &[fields]);
            let behind = scene.fetch("/behind");
            tokio::time::sleep(Duration::ZERO).await;
            let more = scene.fetch_with("/more", &[fields]);
            scene.expect("/special", special).await;
            let before = scene.requests();
            assert!(before <= 3, "{before}");
            scene.expect("/behind", behind).await;
            scene.expect("/more", more).await;
            assert_eq!((scene.seen.dials.get(), scene.requests()), (1, 4));
        }
    });
}

#[test]
fn request_behind_a_closed_connection_is_repeated() {
    run(async {
        for announces in [true, false] {
            let scene = Scene::new(REGULAR, 1);
            scene.begin().await;
            scene.behaviour.set(Behaviour {
                closes_after: 2,
                announces,
                ..REGULAR
            });
            let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
            for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
                scene.expect(path, fetched).await;
            }
            // An announced end is no fault of pipelining.
            let depth = scene.depth();
            assert_eq!(depth, if announces { 2 } else { 1 });
        }
    });
}

#[test]
fn only_a_scout_follows_the_last_request() {
    run(async {
        // Many connections reach their ends together.
        for (connections, life) in [(2, 6), (6, 5), (24, 5), (24, 6), (24, 2), (32, 100)] {
            let short = Behaviour {
                closes_after: life,
                ..REGULAR
            };
            let scene = Scene::new(short, connections);
            let paths: Vec<_> = (0..connections * life * 2)
                .map(|number| format!("/{number}"))
                .collect();
            let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
            for (path, fetched) in paths.iter().zip(fetched) {
                scene.expect(path, fetched).await;
            }
            assert_eq!(scene.depth(), 2);
            let lost = scene.seen.lost.get();
            assert!(lost <= 1, "{connections} connections of {life}: {lost}");
        }
    });
}

#[test]
fn connections_follow_a_scout_in_pairs() {
    run(async {
        const CONNECTIONS: usize = 8;
        const REQUESTS: usize = CONNECTIONS * 20;
        let scene = Scene::new(REGULAR, CONNECTIONS);
        scene.begin().await;
        let paths: Vec<_> = (0..REQUESTS).map(|number| format!("/{number}")).collect();
        let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
        for (path, fetched) in paths.iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        // The second request of each connection may be followed by the scout only.
        let followed = scene.seen.followed.get();
        assert!(followed >= REQUESTS / 2 - CONNECTIONS, "{followed}");
    });
}

#[test]
fn pipelining_ends_at_an_origin_that_drops_requests() {
    run(async {
        let dropping = Behaviour {
            drops: true,
            ..REGULAR
        };
        let scene = Scene::new(dropping, 1);
        scene.begin().await;
        let fetched = ["/a", "/b"].map(|path| scene.fetch(path));
        for (path, fetched) in ["/a", "/b"].into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!(scene.depth(), 1);
    });
}

#[test]
fn request_that_the_origin_misread_is_repeated_alone() {
    const ANSWERS: [&str; 5] = [
        "more of the body than its length\r\n\r\n",
        "HTTP/1.1 200 O",
        "HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    ];
    for answer in ANSWERS {
        run(async move {
            let scene = Scene::new(REGULAR, 1);
            scene.begin().await;
            scene.behaviour.set(Behaviour {
                confused: Some(answer),
                ..REGULAR
            });
            let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
            for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
                scene.expect(path, fetched).await;
            }
            assert_eq!(scene.depth(), 1);
        });
    }
}

#[test]
fn origin_of_http_1_0_gets_one_request_at_a_time() {
    run(async {
        let old = Behaviour {
            version: "HTTP/1.0",
            ..REGULAR
        };
        let scene = Scene::new(old, 1);
        scene.begin().await;
        assert_eq!(scene.depth(), 1);
        scene.expect("/a", scene.fetch("/a")).await;
        assert_eq!(scene.seen.dials.get(), 1);
    });
}

#[test]
fn cancelled_response_ends_its_connection_only() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        let [first, second] = ["/a", "/b"].map(|path| scene.fetch(path));
        tokio::time::sleep(THINKS / 2).await;
        first.abort();
        scene.expect("/b", second).await;
        assert_eq!(scene.seen.dials.get(), 2);
        assert_eq!(scene.depth(), 2);
    });
}

#[test]
fn response_to_a_cancelled_request_is_not_reused() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        let [first, second, third] = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
        tokio::time::sleep(THINKS / 2).await;
        second.abort();
        scene.expect("/a", first).await;
        scene.expect("/c", third).await;
        let last = scene.fetch("/d");
        scene.expect("/d", last).await;
    });
}

#[test]
fn request_leaves_a_stalled_or_long_response() {
    run(async {
        let slow = Behaviour {
            thinks: Duration::from_secs(20),
            ..REGULAR
        };
        let long = Behaviour {
            length: 40 << 20,
            ..REGULAR
        };
        for behaviour in [slow, long] {
            let scene = Scene::new(REGULAR, 2);
            scene.begin().await;
            scene.behaviour.set(behaviour);
            let first = scene.fetch("/a");
            tokio::time::sleep(THINKS / 2).await;
            let second = scene.fetch("/b");
            tokio::time::sleep(THINKS / 2).await;
            scene.behaviour.set(REGULAR);
            scene.expect("/b", second).await;
            assert_eq!(scene.seen.dials.get(), 2);
            drop(first);
        }
    });
}

/// Returns numbers that look random.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

#[test]
fn responses_belong_to_their_requests_in_any_scene() {
    for seed in 1..150 {
        run(async move {
            let mut number = numbers(seed * 0x9e37_79b9);
            let scene = Scene::new(REGULAR, 1 + number(4) as usize);
            let mut under_way = Vec::new();
            for count in 0..60 {
                scene.behaviour.set(Behaviour {
                    closes_after: 1 + number(20) as usize,
                    announces: number(2) == 0,
                    drops: number(20) == 0,
                    thinks: THINKS * number(4) as u32,
                    ..REGULAR
                });
                let path = format!("/{count}-{}", number(1 << 40));
                under_way.push((scene.fetch(&path), path));
                if number(4) == 0 {
                    tokio::time::sleep(THINKS * number(5) as u32).await;
                }
                if number(6) == 0 {
                    let at = number(under_way.len() as u64) as usize;
                    under_way.swap_remove(at).0.abort();
                }
            }
            for (fetched, path) in under_way {
                match fetched.await.expect("a task") {
                    Ok(got) => assert!(got == body(&path, REGULAR.length), "{path}"),
                    // Three attempts may all meet a closed connection.
                    Err(error) => assert!(
                        matches!(error.kind, Kind::Reset | Kind::Truncated),
                        "{error:?}"
                    ),
                }
            }
            tokio::time::sleep(Duration::from_secs(120)).await;
            assert_eq!(scene.seen.open.get(), 0, "idle connections are closed");
        });
    }
}
