//! A flow of an association: the tunnel to one destination.
//!
//! A flow ends as a regular exchange: its body ends, and its reply is read to the end. The flood
//! budget of the gateway's session pays for streams that are reset, so that a program with many
//! destinations could otherwise end the session.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_http::ResponseHead;
use tandem_http::connect_udp::{CapsuleReader, MalformedCapsule, put_datagram};
use tandem_http::socks::Datagram;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::limits::{FlowPlace, KeyLimits, Waiting};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Chunks, Part, Reply, UPGRADE_DECLINED};
use crate::failure::refusal;
use crate::log_limit::LogLimit;

/// The time without a datagram after which a flow ends. A gateway keeps its socket for at least two
/// minutes (RFC 9298 section 3.1).
pub(super) const IDLE: Duration = Duration::from_secs(150);

/// The time for which datagrams to a destination are dropped after its tunnel has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The time that the gateway has to end a tunnel whose body has ended. Its stream is reset then.
const ENDING: Duration = Duration::from_secs(30);

/// The datagrams that wait for the session on the way up.
const QUEUE: usize = 64;

/// The bytes of datagrams that leave in one piece of a body.
const BATCH: usize = 16 << 10;

static REFUSALS: LogLimit = LogLimit::new();

/// The tunnel to one destination. Dropping it ends the tunnel in the background.
pub(super) struct Flow {
    state: Rc<FlowState>,
    limits: Rc<KeyLimits>,
}

struct FlowState {
    /// The queue of the body, until the flow ends.
    queue: RefCell<Option<mpsc::Sender<Waiting>>>,
    /// Tells the task of the reply that the body ends.
    closed: Notify,
    /// The time of the last datagram in either direction.
    used: Cell<Instant>,
    /// The time at which the tunnel failed.
    failed: Cell<Option<Instant>>,
}

impl Flow {
    /// Opens a tunnel. `call` sends the exchange with this body. Answers go to the program by
    /// `socket`, from the destination with this `address`.
    pub(super) fn open(
        address: &[u8],
        socket: &Rc<UdpSocket>,
        place: FlowPlace,
        now: Instant,
        call: impl FnOnce(Body) -> Reply,
    ) -> Self {
        let (queue, datagrams) = mpsc::channel(QUEUE);
        let state = Rc::new(FlowState {
            queue: RefCell::new(Some(queue)),
            closed: Notify::new(),
            used: Cell::new(now),
            failed: Cell::default(),
        });
        let down = Downward {
            socket: Rc::downgrade(socket),
            address: address.into(),
            state: Rc::clone(&state),
        };
        let limits = place.limits();
        let reply = call(Body::new(FlowUpward { datagrams }, None));
        tokio::task::spawn_local(async move {
            let _place = place;
            down.run(reply).await;
        });
        Self { state, limits }
    }

    /// Returns false if a new tunnel may take the place of this one.
    pub(super) fn is_in_use(&self, now: Instant) -> bool {
        let state = &self.state;
        match state.failed.get() {
            Some(failed) => now - failed < AFTER_FAILURE,
            None => {
                let queue = state.queue.borrow();
                let is_open = queue.as_ref().is_some_and(|queue| !queue.is_closed());
                is_open && now - state.used.get() < IDLE
            }
        }
    }

    /// Returns the time of the last datagram in either direction.
    pub(super) fn last_used(&self) -> Instant {
        self.state.used.get()
    }

    /// Sends a datagram. Drops it if its queue is full, or if too many bytes wait for the session.
    pub(super) fn send(&self, payload: &[u8], now: Instant) {
        self.state.used.set(now);
        if let Some(queue) = &*self.state.queue.borrow()
            && let Some(datagram) = self.limits.wait(payload)
        {
            let _ = queue.try_send(datagram);
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl FlowState {
    /// Ends the body behind the datagrams that wait.
    fn close(&self) {
        self.queue.take();
        self.closed.notify_one();
    }

    fn fail(&self, error: &Error) {
        self.failed.set(Some(Instant::now()));
        if let Some(held_back) = REFUSALS.admit() {
            tracing::warn!("a UDP tunnel failed: {error} ({held_back} more since the last line)");
        }
    }
}

/// The datagrams of a flow towards the gateway, as capsules.
struct FlowUpward {
    datagrams: mpsc::Receiver<Waiting>,
}

impl Chunks for FlowUpward {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let Some(first) = ready!(self.datagrams.poll_recv(cx)) else {
            return Poll::Ready(None);
        };
        let mut out = Vec::with_capacity(first.payload.len() + 16);
        put_datagram(&mut out, &first.payload);
        while out.len() < BATCH
            && let Ok(next) = self.datagrams.try_recv()
        {
            put_datagram(&mut out, &next.payload);
        }
        Poll::Ready(Some(Ok(Chunk::Data(out.into()))))
    }
}

/// The datagrams of a flow towards the program.
struct Downward {
    /// The socket of the association, until that has ended.
    socket: Weak<UdpSocket>,
    /// The destination as the program wrote it. The answers come from there.
    address: Box<[u8]>,
    state: Rc<FlowState>,
}

impl Downward {
    /// Delivers the reply to its end, or until the gateway has not ended it in time.
    async fn run(self, reply: Reply) {
        let out_of_time = async {
            self.state.closed.notified().await;
            tokio::time::sleep(ENDING).await;
        };
        tokio::select! {
            biased;
            delivered = self.deliver(reply) => {
                if let Err(error) = delivered {
                    self.state.fail(&error);
                }
            }
            () = out_of_time => {}
        }
        self.state.close();
    }

    /// Passes datagrams on until the gateway ends the tunnel. Drops the page of a refusal.
    /// An end inside a capsule is an error (RFC 9297 section 3.3).
    async fn deliver(&self, mut reply: Reply) -> Result<(), Error> {
        let mut reader = CapsuleReader::default();
        let mut is_refused = false;
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(head) if !is_agreed(&head) => {
                    is_refused = true;
                    self.state.fail(&refusal(&head));
                    self.state.close();
                }
                Part::Data(data) if !is_refused => {
                    reader.push(&data);
                    self.pass(&mut reader).await?;
                }
                Part::Closed => {
                    reader.finish().map_err(malformed)?;
                    self.state.close();
                }
                _ => {}
            }
        }
        reader.finish().map_err(malformed)
    }

    async fn pass(&self, reader: &mut CapsuleReader) -> Result<(), Error> {
        let mut out = Vec::new();
        while let Some(payload) = reader.datagram().map_err(malformed)? {
            self.state.used.set(Instant::now());
            out.clear();
            Datagram::put_answer(&mut out, &self.address, &payload);
            if let Some(socket) = self.socket.upgrade() {
                // A datagram that the system does not take is lost, as on any path.
                let _ = socket.send(&out).await;
            }
        }
        Ok(())
    }
}

fn malformed(bad: MalformedCapsule) -> Error {
    Error::new(Kind::Protocol, Side::Peer, bad.to_string())
}

/// Returns whether a response agrees to a tunnel.
fn is_agreed(head: &ResponseHead) -> bool {
    (200..300).contains(&head.status) && !head.fields.contains(UPGRADE_DECLINED)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;
    use tokio::sync::oneshot;
    use tokio::task::LocalSet;

    use super::super::limits::{MOST_WAITING, UdpLimits};
    use super::*;
    use crate::exchange::Isolation;

    /// Opens a flow whose reply has these parts and ends after the body. The receiver learns of
    /// the end, or that the reply was dropped before.
    async fn flow(parts: Vec<Part>) -> (Flow, oneshot::Receiver<usize>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let now = Instant::now();
        let limits = UdpLimits::default().of(&Isolation::none(), now);
        let place = limits.and_then(|it| it.place(now).ok()).expect("room");
        let (told, ended) = oneshot::channel();
        let flow = Flow::open(b"", &Rc::new(socket), place, now, |mut body| {
            Reply::generate(|mut sink| async move {
                for part in parts {
                    sink.send(part).await;
                }
                let mut bytes = 0;
                while let Some(chunk) = poll_fn(|cx| body.poll_chunk(cx)).await {
                    if let Chunk::Data(data) = chunk? {
                        bytes += data.len();
                    }
                }
                let _ = told.send(bytes);
                Ok(())
            })
        });
        (flow, ended)
    }

    fn head(status: u16) -> Part {
        Part::Head(ResponseHead::new(status))
    }

    #[tokio::test]
    async fn dropped_flow_ends_as_a_regular_exchange() {
        let run = async {
            let (flow, ended) = flow(vec![head(200)]).await;
            flow.send(b"hello", Instant::now());
            drop(flow);
            assert_eq!(ended.await, Ok(8), "the body's end, after the datagram");
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test]
    async fn flow_that_the_gateway_ends_is_a_regular_exchange() {
        let page = Part::Data(Bytes::from_static(b"no"));
        for parts in [vec![head(200), Part::Closed], vec![head(403), page]] {
            let run = async {
                let (flow, ended) = flow(parts).await;
                assert_eq!(ended.await, Ok(0));
                let is_refused = flow.state.failed.get().is_some();
                assert_eq!(flow.is_in_use(Instant::now()), is_refused);
            };
            LocalSet::new().run_until(run).await;
        }
    }

    #[tokio::test]
    async fn flow_fails_if_the_reply_ends_inside_a_capsule() {
        let data = |bytes: &'static [u8]| Part::Data(Bytes::from_static(bytes));
        for (last, ends) in [(data(b"\0\x03\0hi"), true), (data(b"\0\x04\0hi"), false)] {
            let run = async {
                let (flow, ended) = flow(vec![head(200), last, Part::Closed]).await;
                assert_eq!(ended.await.is_ok(), ends, "a reset, or a regular end");
                tokio::task::yield_now().await;
                assert_eq!(flow.state.failed.get().is_none(), ends);
            };
            LocalSet::new().run_until(run).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn flow_without_an_end_is_dropped_in_time() {
        let (told, dropped) = oneshot::channel::<()>();
        let run = async move {
            let socket = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
            let now = Instant::now();
            let limits = UdpLimits::default().of(&Isolation::none(), now);
            let place = limits.and_then(|it| it.place(now).ok()).expect("room");
            let endless = |_: Body| {
                Reply::generate(|_| async move {
                    let _told = told;
                    std::future::pending().await
                })
            };
            drop(Flow::open(b"", &socket, place, now, endless));
            assert!(dropped.await.is_err());
            assert_eq!(now.elapsed().as_secs(), ENDING.as_secs());
        };
        LocalSet::new().run_until(run).await;
    }

    /// A session that takes nothing, such as one on a stalled path.
    #[tokio::test]
    async fn flows_of_a_stalled_session_hold_bounded_bytes() {
        let run = async {
            let socket = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
            let now = Instant::now();
            let limits = UdpLimits::default().of(&Isolation::none(), now);
            let limits = limits.expect("room");
            let held = Rc::new(RefCell::new(Vec::new()));
            let flows: Vec<_> = (0..64)
                .map(|_| {
                    let place = limits.place(now).expect("room");
                    let bodies = Rc::clone(&held);
                    Flow::open(b"", &socket, place, now, move |body| {
                        bodies.borrow_mut().push(body);
                        Reply::generate(|_| std::future::pending())
                    })
                })
                .collect();
            for flow in flows.iter().cycle().take(6400) {
                flow.send(&[7; 60_000], now);
            }
            drop(flows);
            let mut bytes = 0;
            for mut body in held.take() {
                while let Some(Ok(chunk)) = poll_fn(|cx| body.poll_chunk(cx)).await {
                    if let Chunk::Data(data) = chunk {
                        bytes += data.len();
                    }
                }
            }
            assert!((60_000..=MOST_WAITING).contains(&bytes), "{bytes}");
        };
        LocalSet::new().run_until(run).await;
    }
}
