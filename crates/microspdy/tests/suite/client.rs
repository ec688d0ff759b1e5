//! A blocking SPDY client for one connection, over the client role of `tandem-spdy`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use tandem_http::{
    ByteMux as _, Event, Mux as _, MuxConfig, Priority, Reason, RequestHead, Role, Scheme, SendBuf,
    StreamId,
};
use tandem_spdy::frame::Data;
use tandem_spdy::{Config, Connection, Version};

/// The time after which a test fails; no test depends on it otherwise.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// The response on a stream so far.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) ended: bool,
    pub(crate) reset: Option<Reason>,
}

/// A connection, plain or with TLS.
pub(crate) trait Stream: std::io::Read + std::io::Write {}

impl<T: std::io::Read + std::io::Write> Stream for T {}

/// A client.
pub(crate) struct Client {
    pub(crate) socket: Box<dyn Stream>,
    pub(crate) session: Connection,
    pub(crate) answers: BTreeMap<StreamId, Answer>,
    /// Pushed streams with their parents and paths.
    pub(crate) pushes: Vec<(StreamId, StreamId, String)>,
    pub(crate) goaway: Option<Reason>,
    /// The server has closed the connection.
    pub(crate) closed: bool,
}

/// The body with this length: each byte tells its place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Returns a GET request.
pub(crate) fn get(path: &str) -> RequestHead {
    RequestHead::get(Scheme::Http, "site.example", path)
}

/// Returns a POST request.
pub(crate) fn post(path: &str) -> RequestHead {
    let mut head = get(path);
    head.method = tandem_http::Method::Post;
    head
}

fn data_frame(stream: StreamId, len: usize, fin: bool) -> Data {
    Data {
        stream,
        fin,
        len: len as u32,
    }
}

/// Connects to a server on this machine.
pub(crate) fn connect(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    socket.set_nodelay(true).expect("a TCP socket");
    socket
        .set_read_timeout(Some(IO_TIMEOUT))
        .expect("not a zero time");
    socket
}

impl Client {
    pub(crate) fn connect(port: u16, version: Version) -> Self {
        Self::over(Box::new(connect(port)), version)
    }

    /// A client that takes no pushes.
    pub(crate) fn without_push(port: u16, version: Version) -> Self {
        let mut client = Self::connect(port, version);
        client.session = Connection::new(Config::new(MuxConfig::new(Role::Client), version));
        client
    }

    /// A client over a connection.
    pub(crate) fn over(socket: Box<dyn Stream>, version: Version) -> Self {
        let mut mux = MuxConfig::new(Role::Client);
        mux.push = true;
        Self {
            socket,
            session: Connection::new(Config::new(mux, version)),
            answers: BTreeMap::new(),
            pushes: Vec::new(),
            goaway: None,
            closed: false,
        }
    }

    /// Sends a request without a body.
    pub(crate) fn ask(&mut self, head: &RequestHead, priority: u8) -> StreamId {
        let id = self
            .session
            .open(head, true, Priority(priority))
            .expect("the server allows more streams");
        self.answers.insert(id, Answer::default());
        id
    }

    /// Sends a request with a body.
    pub(crate) fn upload(&mut self, head: &RequestHead, body: Vec<u8>) -> StreamId {
        let id = self.upload_in_parts(head);
        self.session.send_data(id, Bytes::from(body), true);
        id
    }

    /// Sends the head of a request before its body.
    pub(crate) fn upload_in_parts(&mut self, head: &RequestHead) -> StreamId {
        let id = self
            .session
            .open(head, false, Priority(3))
            .expect("the server allows more streams");
        self.answers.insert(id, Answer::default());
        id
    }

    /// Resets a stream.
    pub(crate) fn cancel(&mut self, stream: StreamId) {
        self.session.reset(stream, Reason::Cancel);
        self.flush();
    }

    /// Sends a whole body without regard to windows, as some clients do.
    pub(crate) fn send_unasked(&mut self, stream: StreamId, body: &[u8]) {
        let mut wire = BytesMut::new();
        for part in body.chunks(1 << 14) {
            data_frame(stream, part.len(), false).encode(&mut wire);
            wire.extend_from_slice(part);
        }
        data_frame(stream, 0, true).encode(&mut wire);
        self.socket
            .write_all(&wire)
            .expect("the server reads on while its responses wait");
    }

    /// Sends the bytes that may leave now.
    pub(crate) fn flush(&mut self) {
        let mut out = SendBuf::new();
        while self.session.wants_output() {
            self.session.poll_output(&mut out, 1 << 16);
            while out.has_remaining() {
                let written = self.socket.write(out.chunk());
                match written {
                    Ok(count) => out.advance(count),
                    // The next read tells how the connection has ended.
                    Err(_) => return,
                }
            }
        }
    }

    /// Exchanges bytes until `done` holds. Fails if the connection ends before.
    pub(crate) fn until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            assert!(!self.closed, "the connection ended: {:?}", self.answers);
            self.step();
        }
    }

    /// Exchanges bytes until the server closes the connection.
    pub(crate) fn until_closed(&mut self) {
        while !self.closed {
            self.step();
        }
    }

    /// Sends, waits for bytes, and handles them.
    pub(crate) fn step(&mut self) {
        self.flush();
        let mut buffer = [0; 1 << 16];
        let count = match self.socket.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing came: {error}; {:?}", self.answers),
        };
        if count == 0 {
            self.closed = true;
            return;
        }
        self.session
            .handle_input(Instant::now(), &buffer[..count])
            .expect("the server follows the protocol");
        while let Some(event) = self.session.poll_event() {
            self.on_event(event);
        }
        self.flush();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Response { id, head, end } => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let fields = head.fields.iter();
                let answer = self.answers.entry(id).or_default();
                answer.status = head.status;
                answer.fields = fields.map(|f| (text(f.name), text(f.value))).collect();
                answer.ended |= end;
            }
            Event::Data { id, data, end } => {
                self.session.release(id, data.len());
                let answer = self.answers.entry(id).or_default();
                answer.body.extend_from_slice(&data);
                answer.ended |= end;
            }
            Event::Reset { id, reason } => {
                self.answers.entry(id).or_default().reset = Some(reason);
            }
            Event::Push {
                parent,
                id,
                request,
            } => self.pushes.push((id, parent, request.path)),
            Event::GoAway { reason, .. } => self.goaway = Some(reason),
            _ => {}
        }
    }

    /// Sends a request and returns its complete answer.
    pub(crate) fn fetch(&mut self, head: &RequestHead) -> Answer {
        let id = self.ask(head, 3);
        self.finish(id)
    }

    /// Waits for the end of an answer.
    pub(crate) fn finish(&mut self, id: StreamId) -> Answer {
        self.until(|client| {
            let answer = &client.answers[&id];
            answer.ended || answer.reset.is_some()
        });
        self.answers.remove(&id).expect("it was just there")
    }
}
