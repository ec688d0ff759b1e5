//! An origin that a script controls, in virtual time, for the tests of connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tandem_http::{RequestHead, Scheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{ConnectionLimits, Limits, Mode, ToOrigin};
use crate::back::doubles::body_of;
pub(super) use crate::back::doubles::run;
use crate::back::tests_over_paths;
use crate::error::Error;
use crate::exchange::{Exchange, Part, Peer, Reply};
use crate::path::Path;
use crate::stage::Stage as _;
use crate::transport::doubles::{FakeDial, served};

/// The time of the origin for one response.
pub(super) const THINKS: Duration = Duration::from_millis(100);

/// The behaviour of an origin. The body of each response is the path of its request, repeated.
#[derive(Clone, Copy)]
pub(super) struct Behaviour {
    /// The number of responses after which it closes a connection.
    pub(super) closes_after: usize,
    /// True if it says so in the last response.
    pub(super) announces: bool,
    /// True if it drops requests that arrive before the response to an earlier one.
    pub(super) drops: bool,
    /// The length of its responses in bytes.
    pub(super) length: usize,
    /// The time before each response.
    pub(super) thinks: Duration,
    /// True if it answers requests in pairs: the first when the second has arrived.
    pub(super) pairs: bool,
    /// The bytes with which it answers a request that arrives before the response to an earlier
    /// one. It closes the connection after them.
    pub(super) confused: Option<&'static str>,
    /// The version of its responses.
    pub(super) version: &'static str,
    /// True if only the end of the connection marks the ends of its responses to paths that begin
    /// with `/open`. If a request lies unread behind such a response, half of the body is lost.
    pub(super) closes_open: bool,
    /// True if it sends hints before each response.
    pub(super) hints: bool,
    /// The media type of its responses, if it sends one byte of them each second.
    pub(super) drips: Option<&'static str>,
}

pub(super) const REGULAR: Behaviour = Behaviour {
    closes_after: usize::MAX,
    announces: true,
    drops: false,
    length: 20,
    thinks: THINKS,
    pairs: false,
    confused: None,
    version: "HTTP/1.1",
    closes_open: false,
    hints: false,
    drips: None,
};

/// The observations of an origin.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) dials: Cell<usize>,
    pub(super) open: Cell<usize>,
    pub(super) greatest: Cell<usize>,
    pub(super) requests: RefCell<Vec<String>>,
    /// The number of requests that had another one behind them.
    pub(super) followed: Cell<usize>,
    /// The connections with pipelined requests that the origin closed.
    pub(super) lingering: Cell<usize>,
    /// The requests that arrived before the end of their connection, and were not answered.
    pub(super) lost: Cell<usize>,
}

impl Seen {
    fn dialled(&self) {
        self.dials.set(self.dials.get() + 1);
        self.open.set(self.open.get() + 1);
        self.greatest.set(self.greatest.get().max(self.open.get()));
    }
}

pub(super) fn body(path: &str, length: usize) -> Vec<u8> {
    path.bytes().cycle().take(length).collect()
}

/// The bytes of requests that an origin has read.
#[derive(Default)]
struct OriginInput {
    bytes: Vec<u8>,
    /// The time at which each complete head has arrived.
    arrived: VecDeque<Instant>,
}

impl OriginInput {
    /// Returns the ends of the complete heads.
    fn ends(&self) -> Vec<usize> {
        let windows = self.bytes.windows(4).enumerate();
        let ends = windows.filter(|it| it.1 == b"\r\n\r\n");
        ends.map(|it| it.0 + 4).collect()
    }

    /// Reads more bytes. Returns false at the end.
    async fn read(&mut self, path: &mut Path) -> io::Result<bool> {
        let is_open = path.read_buf(&mut self.bytes).await? > 0;
        let heads = self.ends().len();
        self.arrived.resize(heads, Instant::now());
        Ok(is_open)
    }

    /// Reads until this time.
    async fn read_until(&mut self, path: &mut Path, at: Instant) {
        let read = async { while let Ok(true) = self.read(path).await {} };
        // The client may have closed its end.
        let _ = tokio::time::timeout_at(at, read).await;
        tokio::time::sleep_until(at).await;
    }

    fn take_head(&mut self, end: usize) -> (String, Instant) {
        let head = self.bytes.drain(..end).collect();
        let arrived = self.arrived.pop_front().expect("a time");
        (String::from_utf8(head).expect("a head"), arrived)
    }
}

/// Serves a connection. The time for a response counts from the arrival of its request.
async fn serve(mut path: Path, behaviour: &Cell<Behaviour>, seen: &Seen) -> io::Result<()> {
    let mut input = OriginInput::default();
    let mut is_pipelined = false;
    for answered in 1.. {
        let end = loop {
            let ends = input.ends();
            let waits = behaviour.get().pairs && answered % 2 == 0;
            match ends.get(usize::from(waits)) {
                Some(_) => break ends[0],
                None if !input.read(&mut path).await? => return Ok(()),
                None => {}
            }
        };
        let (head, arrived) = input.take_head(end);
        let target = head.split(' ').nth(1).expect("a target").to_owned();
        seen.requests.borrow_mut().push(target.clone());
        let now = behaviour.get();
        input.read_until(&mut path, arrived + now.thinks).await;
        if now.drops {
            input = OriginInput::default();
        }
        let input_is_empty = input.bytes.is_empty();
        let followed = seen.followed.get() + usize::from(!input_is_empty);
        seen.followed.set(followed);
        is_pipelined |= !input_is_empty;
        let is_open = now.closes_open && target.starts_with("/open");
        let is_last = answered >= now.closes_after || is_open;
        let close = if is_last && now.announces {
            "Connection: close\r\n"
        } else {
            "Connection: keep-alive\r\n"
        };
        if now.hints {
            let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";
            path.write_all(hints).await?;
        }
        let version = now.version;
        let sized = match is_open {
            true => String::new(),
            false => format!("Content-Length: {}\r\n", now.length),
        };
        let kind = now.drips.map(|kind| format!("Content-Type: {kind}\r\n"));
        let kind = kind.unwrap_or_default();
        let head = format!("{version} 200 OK\r\n{close}{sized}{kind}\r\n");
        path.write_all(head.as_bytes()).await?;
        let length = match is_open && !input_is_empty {
            true => now.length / 2,
            false => now.length,
        };
        let piece = if now.drips.is_some() { 1 } else { 64 << 10 };
        for piece in body(&target, length).chunks(piece) {
            path.write_all(piece).await?;
            if now.drips.is_some() {
                path.flush().await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            if length > 1 << 20 {
                tokio::time::sleep(THINKS / 5).await;
            }
        }
        let confused = now.confused.filter(|_| !input_is_empty);
        path.write_all(confused.unwrap_or_default().as_bytes())
            .await?;
        path.flush().await?;
        if is_last {
            input.read_until(&mut path, Instant::now()).await;
            let is_lost = !input.bytes.is_empty();
            seen.lost.set(seen.lost.get() + usize::from(is_lost));
            let lingering = seen.lingering.get() + usize::from(is_pipelined);
            seen.lingering.set(lingering);
        }
        if is_last || confused.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// An origin behind a stage that uses at most `connections` connections.
pub(super) struct Scene {
    pub(super) stage: ToOrigin,
    pub(super) behaviour: Rc<Cell<Behaviour>>,
    pub(super) seen: Rc<Seen>,
}

fn exchange(path: &str, fields: &[(&str, &str)]) -> Exchange {
    let mut request = RequestHead::get(Scheme::Http, "site.example", path);
    for (name, value) in fields {
        request.fields.push(*name, *value);
    }
    Exchange {
        peer: Peer {
            session: 1,
            push: true,
            ..Peer::none()
        },
        ..Exchange::internal(request)
    }
}

/// Returns the statuses of the heads in a reply.
async fn statuses(mut reply: Reply) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Some(part) = reply.part().await {
        if let Part::Hints(head) | Part::Head(head) = part.expect("a whole reply") {
            statuses.push(head.status);
        }
    }
    statuses
}

pub(super) type Fetched = JoinHandle<Result<Vec<u8>, Error>>;

impl Scene {
    pub(super) fn new(behaviour: Behaviour, connections: usize) -> Self {
        Self::ahead(behaviour, connections, 0)
    }

    /// Creates an origin whose pages open connections in advance.
    pub(super) fn ahead(behaviour: Behaviour, connections: usize, ahead: usize) -> Self {
        let limits = ConnectionLimits {
            most: connections,
            dials_are_free: false,
            ahead,
        };
        Self::limited(behaviour, Rc::new(Cell::new(limits)))
    }

    /// Creates an origin whose limits may change.
    pub(super) fn limited(behaviour: Behaviour, limits: Rc<Cell<ConnectionLimits>>) -> Self {
        let (behaviour, seen) = (Rc::new(Cell::new(behaviour)), Rc::<Seen>::default());
        let parts = (Rc::clone(&behaviour), Rc::clone(&seen));
        let transport = FakeDial::new(move |_| {
            let (behaviour, seen) = parts.clone();
            seen.dialled();
            ready(Ok(served(|far| async move {
                let end = serve(far, &behaviour, &seen).await;
                seen.open.set(seen.open.get() - 1);
                end
            })))
        });
        let stage = tests_over_paths::to_origin(Mode::Forward, transport, Limits::default());
        stage.0.pipeline(Box::new(move |_, _| limits.get()));
        Self {
            stage,
            behaviour,
            seen,
        }
    }

    pub(super) fn fetch_with(&self, path: &str, fields: &[(&str, &str)]) -> Fetched {
        tokio::task::spawn_local(body_of(self.stage.call(exchange(path, fields))))
    }

    pub(super) fn fetch(&self, path: &str) -> Fetched {
        self.fetch_with(path, &[])
    }

    /// Returns the statuses of the heads in the response to a request.
    pub(super) fn statuses(&self, path: &str, fields: &[(&str, &str)]) -> JoinHandle<Vec<u16>> {
        tokio::task::spawn_local(statuses(self.stage.call(exchange(path, fields))))
    }

    /// Shows the stage that the origin keeps connections open.
    pub(super) async fn begin(&self) {
        let first = self.fetch("/first").await.expect("a task");
        assert_eq!(first, Ok(body("/first", self.behaviour.get().length)));
    }

    pub(super) async fn expect(&self, path: &str, fetched: Fetched) {
        let got = fetched.await.expect("a task");
        let got = got.unwrap_or_else(|error| panic!("{path}: {error:?}"));
        assert!(got == body(path, self.behaviour.get().length), "{path}");
    }

    pub(super) fn depth(&self) -> usize {
        self.stage.0.depth(&exchange("/", &[]))
    }

    pub(super) fn requests(&self) -> usize {
        self.seen.requests.borrow().len()
    }
}
