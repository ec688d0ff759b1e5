//! A client of every session protocol, for load: the sans-IO cores over plain TCP, with many
//! streams in flight.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Buf as _, BytesMut};
use tandem_http::h1::{self, Form, Framing, Limits};
use tandem_http::{
    ByteMux, Event, Method, MuxConfig, Priority, RequestHead, Role, SendBuf, StreamId, h2,
};
use tandem_spdy::Version;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::BenchError;

/// Silence after which a session is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A multiplexed session protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// HTTP/2.
    H2,
    /// SPDY/3.
    Spdy3,
    /// SPDY/3.1.
    #[value(name = "spdy3.1")]
    Spdy31,
}

impl Protocol {
    /// Returns the protocol's name in endpoint URLs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::H2 => "h2",
            Self::Spdy3 => "spdy3",
            Self::Spdy31 => "spdy3.1",
        }
    }

    fn core(self) -> Box<dyn ByteMux> {
        let mux = MuxConfig::new(Role::Client);
        let spdy = |version| {
            Box::new(tandem_spdy::Connection::new(tandem_spdy::Config::new(
                mux.clone(),
                version,
            )))
        };
        match self {
            Self::H2 => Box::new(h2::Connection::new(mux)),
            Self::Spdy3 => spdy(Version::V3),
            Self::Spdy31 => spdy(Version::V31),
        }
    }
}

/// Bytes of TCP payload that a session has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CarriedPayload {
    /// Bytes to the server.
    pub up: u64,
    /// The delay back from the server.
    pub down: u64,
}

impl std::ops::AddAssign for CarriedPayload {
    fn add_assign(&mut self, other: Self) {
        self.up += other.up;
        self.down += other.down;
    }
}

/// Exchanges to run on one session.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Taken in turn, again from the beginning when all have been.
    pub requests: &'a [RequestHead],
    /// The number of exchanges.
    pub count: usize,
    /// The number of exchanges in flight.
    pub streams: usize,
    /// Bytes that each answer's body must have.
    pub size: usize,
}

/// A session.
pub struct BenchSession {
    core: Box<dyn ByteMux>,
    stream: TcpStream,
    out: SendBuf,
    input: Vec<u8>,
    carried: CarriedPayload,
}

/// Answers under way, and those that came.
struct AnswerCounts {
    /// Bytes of body that have come on each stream, or `None` before a head with 200.
    open: HashMap<StreamId, Option<usize>>,
    started: usize,
    done: usize,
    size: usize,
}

impl BenchSession {
    /// Connects; nothing is sent before the first request.
    pub async fn connect(protocol: Protocol, address: SocketAddr) -> Result<Self, BenchError> {
        let connected = TcpStream::connect(address)
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let stream = connected.map_err(BenchError::system(format!("connect to {address}")))?;
        let core = protocol.core();
        Ok(Self {
            core,
            stream,
            out: SendBuf::new(),
            input: vec![0; 64 << 10],
            carried: CarriedPayload::default(),
        })
    }

    /// Returns the totals carried so far.
    pub fn carried(&self) -> CarriedPayload {
        self.carried
    }

    /// Runs exchanges; every answer must be whole.
    pub async fn run(&mut self, work: Work<'_>) -> Result<(), BenchError> {
        let mut progress = AnswerCounts {
            open: HashMap::new(),
            started: 0,
            done: 0,
            size: work.size,
        };
        loop {
            while progress.started < work.count && progress.open.len() < work.streams {
                let head = &work.requests[progress.started % work.requests.len()];
                let opened = self.core.open(head, true, Priority::default());
                let id = opened.map_err(|error| BenchError::Session(error.to_string()))?;
                progress.open.insert(id, None);
                progress.started += 1;
            }
            self.write().await?;
            if progress.done == work.count {
                return Ok(());
            }
            self.read().await?;
            while let Some(event) = self.core.poll_event() {
                self.note(event, &mut progress)?;
            }
        }
    }

    async fn write(&mut self) -> Result<(), BenchError> {
        loop {
            self.core.poll_output(&mut self.out, 64 << 10);
            if self.out.is_empty() {
                return Ok(());
            }
            self.carried.up += self.out.remaining() as u64;
            self.stream
                .write_all_buf(&mut self.out)
                .await
                .map_err(BenchError::system("write to the session"))?;
        }
    }

    async fn read(&mut self) -> Result<(), BenchError> {
        let read = tokio::time::timeout(READ_TIMEOUT, self.stream.read(&mut self.input)).await;
        let count = read.map_err(|_| BenchError::Session("no answer".into()))?;
        let count = count.map_err(BenchError::system("read from the session"))?;
        if count == 0 {
            return Err(BenchError::Session("closed by the other end".into()));
        }
        self.carried.down += count as u64;
        let taken = self.core.handle_input(Instant::now(), &self.input[..count]);
        taken.map_err(|error| BenchError::Session(error.to_string()))
    }

    fn note(&mut self, event: Event, progress: &mut AnswerCounts) -> Result<(), BenchError> {
        let (id, end) = match event {
            Event::Response { id, head, end } if head.status == 200 => {
                progress.open.entry(id).and_modify(|body| *body = Some(0));
                (id, end)
            }
            Event::Response { head, .. } => {
                return Err(BenchError::Session(format!("status {}", head.status)));
            }
            Event::Data { id, data, end } => {
                self.core.release(id, data.len());
                if let Some(Some(body)) = progress.open.get_mut(&id) {
                    *body += data.len();
                }
                (id, end)
            }
            Event::Reset { reason, .. } => {
                return Err(BenchError::Session(format!("reset: {reason:?}")));
            }
            Event::GoAway { reason, .. } => {
                return Err(BenchError::Session(format!("going away: {reason:?}")));
            }
            _ => return Ok(()),
        };
        if !end {
            return Ok(());
        }
        progress.done += 1;
        match progress.open.remove(&id) {
            Some(Some(body)) if body == progress.size => Ok(()),
            other => Err(BenchError::Session(format!(
                "{other:?} bytes of body instead of {}",
                progress.size
            ))),
        }
    }
}

/// Runs the same work on several sessions at once, and returns their totals.
pub async fn run_all(
    sessions: &mut [BenchSession],
    work: Work<'_>,
) -> Result<CarriedPayload, BenchError> {
    let sum = |sessions: &[BenchSession]| {
        sessions
            .iter()
            .fold(CarriedPayload::default(), |mut sum, session| {
                sum += session.carried();
                sum
            })
    };
    let before = sum(sessions);
    let mut running: Vec<_> = sessions
        .iter_mut()
        .map(|session| Box::pin(session.run(work)))
        .collect();
    let mut results: Vec<Option<Result<(), BenchError>>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, result) in running
            .iter_mut()
            .zip(&mut results)
            .filter(|(_, result)| result.is_none())
        {
            if let std::task::Poll::Ready(ended) = std::future::Future::poll(future.as_mut(), cx) {
                *result = Some(ended);
            }
        }
        if results.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    drop(running);
    results
        .into_iter()
        .flatten()
        .collect::<Result<Vec<()>, _>>()?;
    let after = sum(sessions);
    Ok(CarriedPayload {
        up: after.up - before.up,
        down: after.down - before.down,
    })
}

/// The same exchanges over HTTP/1.1, one after the other on one connection that is kept open: the
/// bytes that it takes.
pub async fn over_http1(address: SocketAddr, work: Work<'_>) -> Result<CarriedPayload, BenchError> {
    let mut stream = TcpStream::connect(address)
        .await
        .map_err(BenchError::system(format!("connect to {address}")))?;
    let mut carried = CarriedPayload::default();
    let mut input = BytesMut::new();
    for head in work.requests.iter().cycle().take(work.count) {
        let mut out = BytesMut::new();
        let mut head = head.clone();
        head.fields.push("connection", "keep-alive");
        h1::write_request(&mut out, &head, Form::Origin, Framing::None, None);
        carried.up += out.len() as u64;
        stream
            .write_all(&out)
            .await
            .map_err(BenchError::system("write a request"))?;
        carried.down += one_answer(&mut stream, &mut input, work.size).await? as u64;
    }
    Ok(carried)
}

/// Reads one answer; its bytes.
async fn one_answer(
    stream: &mut TcpStream,
    input: &mut BytesMut,
    size: usize,
) -> Result<usize, BenchError> {
    loop {
        let parsed = h1::parse_response(input, &Method::Get, &Limits::default());
        let parsed = parsed.map_err(|error| BenchError::Session(error.to_string()))?;
        if let Some((response, head)) = parsed
            && input.len() >= head + size
        {
            if response.head.status != 200
                || !matches!(response.framing, Framing::Length(length) if length == size as u64)
            {
                return Err(BenchError::Session(format!(
                    "status {}, {:?}",
                    response.head.status, response.framing
                )));
            }
            input.advance(head + size);
            return Ok(head + size);
        }
        let read = tokio::time::timeout(READ_TIMEOUT, stream.read_buf(input)).await;
        let count = read.map_err(|_| BenchError::Session("no answer".into()))?;
        if count.map_err(BenchError::system("read an answer"))? == 0 {
            return Err(BenchError::Session("closed by the other end".into()));
        }
    }
}
