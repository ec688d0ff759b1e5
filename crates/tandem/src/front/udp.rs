//! The UDP associations of the SOCKS5 listener (RFC 1928 section 7). Each destination is a
//! CONNECT-UDP tunnel through the gateway (RFC 9298).
//!
//! ```text
//!  program ══ UDP on loopback ══▶ association ─┬─ flow ─▶ exchange ─▶ middle ─▶ gateway
//!     └──── TCP, open as long as the association └─ flow ─▶ …
//! ```
//!
//! The association answers the program that sent the first datagram, and no other. A datagram that
//! finds its queue full is dropped, as a router would do.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tandem_http::connect_udp::{self, CapsuleReader, put_datagram};
use tandem_http::socks::{Datagram, Reply as SocksReply, Server};
use tokio::io::AsyncReadExt as _;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::socks::{answer, write_reply};
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{
    Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply, UPGRADE_DECLINED,
};
use crate::failure::refusal;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::priority::SharedPriority;
use crate::session::Task;
use crate::stage::Stage;

/// The number of destinations that an association keeps open. The least recently used one gives
/// way to a new one.
const MAX_FLOWS: usize = 64;

/// The time without a datagram after which a flow ends. A gateway keeps its socket for at least two
/// minutes (RFC 9298 section 3.1).
const IDLE: Duration = Duration::from_secs(150);

/// The time for which datagrams to a destination are dropped after its tunnel has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The datagrams that wait for the session on the way up.
const QUEUE: usize = 64;

/// The bytes of datagrams that leave in one piece of a body.
const BATCH: usize = 16 << 10;

/// The bytes that a datagram of a program may have: the limit of UDP's field for its length.
const MAX_DATAGRAM: usize = 65_535;

static REFUSALS: LogLimit = LogLimit::new();

/// The parts of an association that its flows share.
pub(super) struct Association {
    /// The address for the socket that takes the program's datagrams.
    pub(super) bind: IpAddr,
    /// The connection that asked for the association.
    pub(super) peer: Peer,
    /// The stage that receives the exchanges.
    pub(super) stage: Rc<dyn Stage>,
}

impl Association {
    /// Relays datagrams until the program closes the connection.
    pub(super) async fn run(self, mut path: Path, mut server: Server) -> Result<(), Error> {
        let bound = UdpSocket::bind((self.bind, 0)).await;
        let (socket, address) = match bound.and_then(|it| it.local_addr().map(|at| (it, at))) {
            Ok(bound) => bound,
            Err(error) => {
                tracing::warn!(%error, "no socket for a UDP association");
                return answer(&mut path, &mut server, SocksReply::GeneralFailure).await;
            }
        };
        server.reply_bound(address);
        write_reply(&mut path, &mut server).await?;
        let mut flows = Flows {
            association: self,
            socket: Rc::new(socket),
            program: None,
            flows: HashMap::new(),
        };
        tokio::select! {
            biased;
            ended = until_closed(&mut path) => ended,
            failed = flows.run() => failed,
        }
    }
}

/// Waits for the end of the connection, and drops the bytes before it.
async fn until_closed(path: &mut Path) -> Result<(), Error> {
    let mut buffer = [0; 512];
    loop {
        match path.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Error::io(&error, Side::Client)),
        }
    }
}

/// The flows of an association, by the address of the destination as the program wrote it.
struct Flows {
    association: Association,
    socket: Rc<UdpSocket>,
    /// The program's address, known from its first datagram.
    program: Option<SocketAddr>,
    flows: HashMap<Box<[u8]>, Flow>,
}

/// The tunnel to one destination.
struct Flow {
    queue: mpsc::Sender<Bytes>,
    state: Rc<FlowState>,
    _task: Task,
}

struct FlowState {
    /// The time of the last datagram in either direction.
    used: Cell<Instant>,
    /// The time at which the tunnel failed.
    failed: Cell<Option<Instant>>,
}

impl Flow {
    /// Returns false if a new tunnel may take the place of this one.
    fn is_in_use(&self, now: Instant) -> bool {
        match self.state.failed.get() {
            Some(failed) => now - failed < AFTER_FAILURE,
            None => !self.queue.is_closed() && now - self.state.used.get() < IDLE,
        }
    }
}

impl Flows {
    /// Forwards the program's datagrams. Returns only if the socket fails.
    async fn run(&mut self) -> Result<(), Error> {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let mut sweep = tokio::time::interval(IDLE / 2);
        loop {
            let received = tokio::select! {
                received = self.socket.recv_from(&mut buffer) => received,
                now = sweep.tick() => {
                    self.flows.retain(|_, flow| flow.is_in_use(now));
                    continue;
                }
            };
            match received {
                Ok((count, from)) if self.is_program(from).await => self.forward(&buffer[..count]),
                Ok(_) => {}
                // The program has closed its socket, and may open it again.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(Error::io(&error, Side::Client)),
            }
        }
    }

    /// Returns whether a datagram comes from the program. The first one decides on its port.
    async fn is_program(&mut self, from: SocketAddr) -> bool {
        if let Some(program) = self.program {
            return program == from;
        }
        let address = self.association.peer.address;
        let is_same = address.is_some_and(|it| it.to_canonical() == from.ip().to_canonical());
        if !is_same || self.socket.connect(from).await.is_err() {
            return false;
        }
        self.program = Some(from);
        true
    }

    fn forward(&mut self, bytes: &[u8]) {
        let Some(datagram) = Datagram::parse(bytes) else {
            tracing::debug!("a datagram of a UDP association is malformed or a fragment");
            return;
        };
        let now = Instant::now();
        let open = self.flows.get(datagram.address);
        if !open.is_some_and(|flow| flow.is_in_use(now)) {
            self.flows.remove(datagram.address);
            let Some(flow) = self.open(&datagram, now) else {
                return;
            };
            self.make_room();
            self.flows.insert(datagram.address.into(), flow);
        }
        if let Some(flow) = self.flows.get(datagram.address) {
            flow.state.used.set(now);
            let _ = flow
                .queue
                .try_send(Bytes::copy_from_slice(datagram.payload));
        }
    }

    /// Closes the least recently used flow of a full association.
    fn make_room(&mut self) {
        if self.flows.len() < MAX_FLOWS {
            return;
        }
        let oldest = self.flows.iter().min_by_key(|(_, it)| it.state.used.get());
        if let Some(address) = oldest.map(|(address, _)| address.clone()) {
            self.flows.remove(&address);
        }
    }

    fn open(&self, datagram: &Datagram<'_>, now: Instant) -> Option<Flow> {
        let (host, port) = split_authority(&datagram.target, None).ok()?;
        if port == 0 {
            return None;
        }
        let (queue, datagrams) = mpsc::channel(QUEUE);
        let exchange = Exchange {
            request: Arc::new(connect_udp::request(&host, port)),
            body: Body::new(Upward { datagrams }, None),
            isolation: Isolation::none(),
            peer: self.association.peer,
            priority: SharedPriority::default(),
        };
        METRICS.udp_flows.add(1);
        let reply = self.association.stage.call(exchange);
        let state = Rc::new(FlowState {
            used: Cell::new(now),
            failed: Cell::default(),
        });
        let down = Downward {
            socket: Rc::clone(&self.socket),
            address: datagram.address.into(),
            state: Rc::clone(&state),
        };
        Some(Flow {
            queue,
            state,
            _task: Task::spawn(down.run(reply)),
        })
    }
}

/// The datagrams of a flow towards the gateway, as capsules.
struct Upward {
    datagrams: mpsc::Receiver<Bytes>,
}

impl Chunks for Upward {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let Some(first) = ready!(self.datagrams.poll_recv(cx)) else {
            return Poll::Ready(None);
        };
        let mut out = Vec::with_capacity(first.len() + 16);
        put_datagram(&mut out, &first);
        while out.len() < BATCH
            && let Ok(next) = self.datagrams.try_recv()
        {
            put_datagram(&mut out, &next);
        }
        Poll::Ready(Some(Ok(Chunk::Data(out.into()))))
    }
}

/// The datagrams of a flow towards the program.
struct Downward {
    socket: Rc<UdpSocket>,
    /// The destination as the program wrote it. The answers come from there.
    address: Box<[u8]>,
    state: Rc<FlowState>,
}

impl Downward {
    async fn run(self, reply: Reply) {
        let Err(error) = self.deliver(reply).await else {
            return;
        };
        self.state.failed.set(Some(Instant::now()));
        if let Some(held_back) = REFUSALS.admit() {
            tracing::warn!("a UDP tunnel failed: {error} ({held_back} more since the last line)");
        }
    }

    /// Passes datagrams on until the gateway ends the tunnel.
    async fn deliver(&self, mut reply: Reply) -> Result<(), Error> {
        let mut reader = CapsuleReader::default();
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(head) => {
                    let is_agreed = (200..300).contains(&head.status)
                        && !head.fields.contains(UPGRADE_DECLINED);
                    if !is_agreed {
                        return Err(refusal(&head));
                    }
                }
                Part::Data(data) => {
                    reader.push(&data);
                    self.pass(&mut reader).await?;
                }
                Part::Closed => return Ok(()),
                Part::Hints(_) | Part::Pushed(_) | Part::Trailers(_) => {}
            }
        }
        Ok(())
    }

    async fn pass(&self, reader: &mut CapsuleReader) -> Result<(), Error> {
        let malformed = |bad: connect_udp::MalformedCapsule| {
            Error::new(Kind::Protocol, Side::Peer, bad.to_string())
        };
        let mut out = Vec::new();
        while let Some(payload) = reader.datagram().map_err(malformed)? {
            self.state.used.set(Instant::now());
            out.clear();
            Datagram::put_answer(&mut out, &self.address, &payload);
            // A datagram that the system does not take is lost, as on any path.
            let _ = self.socket.send(&out).await;
        }
        Ok(())
    }
}
