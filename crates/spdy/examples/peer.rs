//! A SPDY endpoint over plain TCP, for `interop/run.sh`: a small server, and a client that runs one
//! case against a server with the same paths.
//!
//! ```text
//! peer serve 3.1                          prints its address, serves until killed
//! peer client 3.1 127.0.0.1:1234 CASE     exits with 0 when the case holds
//! ```
//!
//! The server knows these paths:
//!
//! * `/bytes/N` responds with N bytes.
//! * `/echo` responds with "ok N" after N bytes of the right pattern.
//! * `/push` pushes `/bytes/10000`.
//! * `/reset` resets the stream.
//! * `/goaway` responds and closes the session.
//! * `/priority` responds with the priority of the request.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use tandem_http::{
    ByteMux as _, Event, Method, Mux as _, MuxConfig, Priority, Reason, RequestHead, ResponseHead,
    Role, Scheme, SendBuf,
};
use tandem_spdy::{Config, Connection, Version};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The time after which a case fails.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", version] => serve(parse_version(version)?),
        ["client", version, address, case] => run_case(parse_version(version)?, address, case),
        _ => Err("usage: peer serve VERSION | peer client VERSION ADDRESS CASE".into()),
    }
}

fn parse_version(text: &str) -> Outcome<Version> {
    match text {
        "3" => Ok(Version::V3),
        "3.1" => Ok(Version::V31),
        _ => Err("the versions are 3 and 3.1".into()),
    }
}

/// The bytes of every body: any part tells where it belongs.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

fn fits_pattern(from: usize, data: &[u8]) -> bool {
    data.iter()
        .enumerate()
        .all(|(at, &byte)| usize::from(byte) == (from + at) % 251)
}

/// A session on a socket: a thread reads, the caller writes.
struct Driver {
    session: Connection,
    socket: TcpStream,
    incoming: Receiver<Vec<u8>>,
    /// The unfinished body of each stream: the bytes sent so far, and the length.
    bodies: BTreeMap<u32, (usize, usize)>,
}

impl Driver {
    fn new(socket: TcpStream, role: Role, version: Version) -> Outcome<Self> {
        let mut mux = MuxConfig::new(role);
        mux.push = true;
        let mut reader = socket.try_clone()?;
        let (sender, incoming) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        socket.set_nodelay(true)?;
        let mut config = Config::new(mux, version);
        // spdy-transport announces every push as https.
        config.same_origin_push = false;
        let session = Connection::new(config);
        Ok(Self {
            session,
            socket,
            incoming,
            bodies: BTreeMap::new(),
        })
    }

    /// Sends the queued output, waits for input and returns the next events; `None` after the peer
    /// has closed the connection.
    fn turn(&mut self) -> Outcome<Option<Vec<Event>>> {
        self.feed();
        self.flush()?;
        let events: Vec<_> = std::iter::from_fn(|| self.session.poll_event()).collect();
        if !events.is_empty() {
            return Ok(Some(events));
        }
        let now = Instant::now();
        let wait = self
            .session
            .poll_timeout()
            .map_or(CASE_TIMEOUT, |at| at.saturating_duration_since(now));
        match self.incoming.recv_timeout(wait) {
            Ok(bytes) => {
                let result = self.session.handle_input(Instant::now(), &bytes);
                self.flush()?;
                result?;
            }
            Err(RecvTimeoutError::Timeout) if wait < CASE_TIMEOUT => {
                self.session.handle_timeout(Instant::now())
            }
            Err(RecvTimeoutError::Timeout) => return Err("nothing came for a minute".into()),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
        Ok(Some(
            std::iter::from_fn(|| self.session.poll_event()).collect(),
        ))
    }

    fn feed(&mut self) {
        let session = &mut self.session;
        self.bodies.retain(|&id, (sent, len)| {
            loop {
                let part = session.send_room(id).min(*len - *sent);
                let end = *sent + part == *len;
                if part == 0 && !end {
                    return true;
                }
                session.send_data(id, pattern(*sent, part).into(), end);
                *sent += part;
                if end {
                    return false;
                }
            }
        });
    }

    fn flush(&mut self) -> Outcome<()> {
        let mut out = SendBuf::new();
        while self.session.wants_output() {
            self.session.poll_output(&mut out, 16 << 10);
            while out.has_remaining() {
                let count = self.socket.write(out.chunk())?;
                out.advance(count);
            }
            self.feed();
        }
        Ok(())
    }
}

fn serve(version: Version) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    for socket in listener.incoming() {
        let driver = Driver::new(socket?, Role::Server, version)?;
        std::thread::spawn(move || {
            if let Err(error) = serve_session(driver) {
                let _ = writeln!(std::io::stderr(), "session: {error}");
            }
        });
    }
    Ok(())
}

fn serve_session(mut driver: Driver) -> Outcome<()> {
    let mut echoes = BTreeMap::new();
    while let Some(events) = driver.turn()? {
        for event in events {
            match event {
                Event::Request {
                    id, head, priority, ..
                } => {
                    if head.path == "/echo" {
                        echoes.insert(id, 0);
                        driver.session.respond(id, &ResponseHead::new(200), false);
                    } else {
                        answer(&mut driver, id, &head, priority);
                    }
                    if head.path == "/goaway" {
                        // spdystream ignores everything after GOAWAY, so earlier responses are
                        // written first.
                        driver.flush()?;
                        driver.session.go_away(Reason::NoError);
                    }
                }
                Event::Data { id, data, end } => {
                    driver.session.release(id, data.len());
                    let Some(got) = echoes.get_mut(&id) else {
                        continue;
                    };
                    let fits = fits_pattern(*got, &data);
                    *got += data.len();
                    let say = if fits {
                        format!("ok {got}")
                    } else {
                        format!("bad near {got}")
                    };
                    if end || !fits {
                        driver.session.send_data(id, say.into(), true);
                        echoes.remove(&id);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn answer(driver: &mut Driver, id: u32, head: &RequestHead, priority: Priority) {
    let mut response = ResponseHead::new(200);
    response
        .fields
        .push("content-type", "application/octet-stream");
    response.fields.push("set-cookie", "a=1");
    response.fields.push("set-cookie", "b=2");
    if let Some(Ok(len)) = head.path.strip_prefix("/bytes/").map(str::parse) {
        driver.session.respond(id, &response, false);
        driver.bodies.insert(id, (0, len));
        return;
    }
    match &*head.path {
        "/reset" => return driver.session.reset(id, Reason::Cancel),
        "/push" => {
            let request = RequestHead::get(head.scheme, head.authority.clone(), "/bytes/10000");
            if let Ok(push) = driver.session.push(id, &request, Priority(5)) {
                driver.session.respond(push, &response, false);
                driver.bodies.insert(push, (0, 10_000));
            }
        }
        "/goaway" => {}
        "/priority" => {
            driver.session.respond(id, &response, false);
            return driver
                .session
                .send_data(id, priority.0.to_string().into(), true);
        }
        _ => response.status = 404,
    }
    driver.session.respond(id, &response, false);
    driver
        .session
        .send_data(id, Bytes::from_static(b"done"), true);
}

/// The outcome of a request.
#[derive(Default, Debug)]
struct Answer {
    status: u16,
    body: Vec<u8>,
    ended: bool,
    reset: Option<Reason>,
}

/// A client and the responses that it has received so far.
struct Client {
    driver: Driver,
    answers: BTreeMap<u32, Answer>,
    /// Streams in the order in which they ended.
    order: Vec<u32>,
    pushes: Vec<(u32, String)>,
    pongs: Vec<u32>,
    left: bool,
}

impl Client {
    fn open(&mut self, path: &str, priority: u8) -> Outcome<u32> {
        let head = RequestHead::get(Scheme::Http, "example.org", path);
        let id = self.driver.session.open(&head, true, Priority(priority))?;
        self.answers.insert(id, Answer::default());
        Ok(id)
    }

    fn post(&mut self, len: usize, priority: u8) -> Outcome<u32> {
        let mut head = RequestHead::get(Scheme::Http, "example.org", "/echo");
        head.method = Method::Post;
        head.fields.push("content-length", len.to_string());
        let id = self.driver.session.open(&head, false, Priority(priority))?;
        self.driver.bodies.insert(id, (0, len));
        self.answers.insert(id, Answer::default());
        Ok(id)
    }

    fn turn(&mut self) -> Outcome<()> {
        for event in self.driver.turn()?.ok_or("the peer closed")? {
            match event {
                Event::Response { id, head, end } => {
                    let answer = self.answers.entry(id).or_default();
                    answer.status = head.status;
                    answer.ended = end;
                }
                Event::Data { id, data, end } => {
                    self.driver.session.release(id, data.len());
                    let answer = self.answers.entry(id).or_default();
                    answer.body.extend_from_slice(&data);
                    answer.ended = end;
                }
                Event::Trailers { id, .. } => self.answers.entry(id).or_default().ended = true,
                Event::Reset { id, reason } => {
                    self.answers.entry(id).or_default().reset = Some(reason)
                }
                Event::Push { id, request, .. } => self.pushes.push((id, request.path)),
                Event::Pong { payload } => self.pongs.push(payload),
                Event::GoAway { .. } => self.left = true,
                _ => {}
            }
        }
        for (id, answer) in &self.answers {
            if (answer.ended || answer.reset.is_some()) && !self.order.contains(id) {
                self.order.push(*id);
            }
        }
        Ok(())
    }

    fn until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Outcome<()> {
        while !done(self) {
            self.turn()?;
        }
        Ok(())
    }

    fn finish(&mut self, id: u32) -> Outcome<&Answer> {
        self.until(|client| client.order.contains(&id))?;
        self.answers.get(&id).ok_or_else(|| "asked".into())
    }

    /// Waits for a body of this length in the pattern.
    fn expect_bytes(&mut self, id: u32, len: usize) -> Outcome<()> {
        let answer = self.finish(id)?;
        check(
            answer.status == 200 && answer.body.len() == len && fits_pattern(0, &answer.body),
            || {
                format!(
                    "{len} bytes wanted; {} {:?} {}",
                    answer.status,
                    answer.reset,
                    answer.body.len()
                )
            },
        )
    }

    fn expect_text(&mut self, id: u32, text: &str) -> Outcome<()> {
        let answer = self.finish(id)?;
        check(
            answer.status == 200 && answer.body == text.as_bytes(),
            || {
                format!(
                    "{text:?} wanted; {} {:?} {:?}",
                    answer.status,
                    answer.reset,
                    Bytes::from(answer.body.clone())
                )
            },
        )
    }

    fn forget(&mut self) {
        self.answers.clear();
        self.order.clear();
    }
}

fn check(holds: bool, say: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(say().into()) }
}

fn run_case(version: Version, address: &str, case: &str) -> Outcome<()> {
    let driver = Driver::new(TcpStream::connect(address)?, Role::Client, version)?;
    let mut client = Client {
        driver,
        answers: BTreeMap::new(),
        order: vec![],
        pushes: vec![],
        pongs: vec![],
        left: false,
    };
    match case {
        "get" => {
            let id = client.open("/bytes/1000", 3)?;
            client.expect_bytes(id, 1000)
        }
        "post" => {
            let id = client.post(1_000_000, 3)?;
            client.expect_text(id, "ok 1000000")
        }
        "bodies" => {
            let (up, down) = (
                client.post(5_000_000, 3)?,
                client.open("/bytes/5000000", 3)?,
            );
            client.expect_text(up, "ok 5000000")?;
            client.expect_bytes(down, 5_000_000)
        }
        "concurrent" => {
            let ids: Vec<_> = (0..200)
                .map(|_| client.open("/bytes/10000", 3))
                .collect::<Result<_, _>>()?;
            ids.into_iter()
                .try_for_each(|id| client.expect_bytes(id, 10_000))
        }
        "push" => push(&mut client),
        "reset" => reset(&mut client),
        "ping" => {
            for payload in 1..=3 {
                client.driver.session.ping(payload);
            }
            client.until(|client| client.pongs.len() == 3)?;
            client.pongs.sort_unstable();
            check(client.pongs == [1, 2, 3], || format!("{:?}", client.pongs))
        }
        "goaway" => {
            let id = client.open("/goaway", 3)?;
            client.expect_text(id, "done")?;
            client.until(|client| client.left)?;
            check(client.open("/bytes/1", 3).is_err(), || {
                "the session is still open".to_owned()
            })
        }
        "priorities" => priorities(&mut client),
        "settings" => {
            // After the first answer its SETTINGS are known; it says how the window that they gave
            // was kept.
            let id = client.open("/priority", 3)?;
            client.expect_text(id, "3")?;
            let id = client.post(100_000, 3)?;
            client.expect_text(id, "ok 100000")
        }
        "many" => many(&mut client),
        _ => Err("no such case".into()),
    }?;
    client.driver.session.go_away(Reason::NoError);
    client.driver.flush()
}

fn push(client: &mut Client) -> Outcome<()> {
    let id = client.open("/push", 3)?;
    client.expect_text(id, "done")?;
    client.until(|client| !client.pushes.is_empty())?;
    let (push, path) = client.pushes.remove(0);
    check(path == "/bytes/10000", || path)?;
    client.expect_bytes(push, 10_000)
}

/// Tests a reset by the server, then a reset by the client within a body. The session survives
/// both.
fn reset(client: &mut Client) -> Outcome<()> {
    let id = client.open("/reset", 3)?;
    let reason = client.finish(id)?.reset;
    check(reason == Some(Reason::Cancel), || format!("{reason:?}"))?;
    let id = client.open("/bytes/5000000", 3)?;
    client.until(|client| {
        client
            .answers
            .get(&id)
            .is_some_and(|answer| !answer.body.is_empty())
    })?;
    client.driver.session.reset(id, Reason::Cancel);
    let id = client.open("/bytes/1000", 3)?;
    client.expect_bytes(id, 1000)
}

/// The number reaches the server, and our own small urgent body overtakes a large one on its way
/// there.
fn priorities(client: &mut Client) -> Outcome<()> {
    for priority in [0, 7] {
        let id = client.open("/priority", priority)?;
        client.expect_text(id, &priority.to_string())?;
    }
    let large = client.post(5_000_000, 7)?;
    let small = client.post(1000, 0)?;
    client.expect_text(small, "ok 1000")?;
    client.expect_text(large, "ok 5000000")?;
    // As the other end got them: it may answer in another order.
    let id = client.open("/order", 3)?;
    client.expect_text(id, &format!("{small} {large}"))
}

fn many(client: &mut Client) -> Outcome<()> {
    for _ in 0..100 {
        let ids: Vec<_> = (0..100)
            .map(|_| client.open("/bytes/100", 3))
            .collect::<Result<_, _>>()?;
        ids.into_iter()
            .try_for_each(|id| client.expect_bytes(id, 100))?;
        client.forget();
    }
    Ok(())
}
