//! The tunnel: streams in, datagrams out, and back.
//!
//! ```text
//!  write, read, reset ─▶ streams ─▶ [`output`]: by urgency, then least sent ─▶ one datagram
//!  events             ◀─ streams ◀─ [`input`]: data, acknowledgements       ◀─ one datagram
//!                          ▲
//!  [`timers`]: loss detection, tail loss probes, timeouts, zero-window probes, keep-alive
//! ```

mod ending;
mod input;
mod offers;
mod output;
mod state;
mod timers;
mod writing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tandem_resume::{SavedSpeed, Trial};
use thiserror::Error;

use self::state::{Acks, Control, Timing};
use crate::congestion::{Algorithm, Controller, INITIAL_PACKETS};
use crate::ecn::Ecn;
use crate::flow::Flow;
use crate::offers::{Allowed, Offers};
use crate::pmtu::{BASE, PathMtu};
use crate::pool::Pool;
use crate::recovery::Recovery;
use crate::recv::{AckState, RecvHalf};
use crate::rtt::Rtt;
use crate::send::SendHalf;
use crate::stream::{Ended, PeerIds, Resetting, Side, Stream, StreamId};
use crate::turns::Turns;
use crate::wire::WireError;

/// The code with which a stream beyond the bound is reset.
pub const REFUSED: u32 = u32::MAX;
/// The code that answers segments of a stream that ended so long ago that nothing else is known.
pub const FORGOTTEN: u32 = u32::MAX - 1;
/// The streams with a delayed acknowledgement after which none waits any longer: as many as there
/// may be segments for one acknowledgement (RFC 9293, section 3.8.6.3).
const ACK_STREAMS: usize = 2;

/// The way in which streams share the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// A single congestion controller for the tunnel. To the network it is one flow.
    #[default]
    Coupled,
    /// A single controller for each stream, as in the thesis. N streams take the share of N flows.
    PerStream,
}

/// The settings of a tunnel.
#[derive(Clone, Debug)]
pub struct Config {
    /// The way in which streams share the path.
    pub coupling: Coupling,
    /// The algorithm of congestion control.
    pub algorithm: Algorithm,
    /// The streams that the peer may have open at once.
    pub max_streams: usize,
    /// The bytes of receive windows and send buffers, beside the first credit of each stream.
    pub memory: u64,
    /// The first receive window of each stream in bytes. Both ends must have the same.
    pub initial_credit: u64,
    /// The receive window in bytes that this end offers with its first segment of a stream, as far
    /// as the memory permits.
    pub first_window: u64,
    /// The same for a stream that this end opens, while few streams use the memory. At least
    /// `first_window`.
    pub own_window: u64,
    /// The streams of the peer to which this end gives the first receive window before they open.
    /// Each takes its window from the memory as soon as it is offered.
    pub offered_streams: u32,
    /// The largest receive window of a stream in bytes; at most 64 MiB.
    pub max_window: u64,
    /// The bytes that one stream buffers before they are acknowledged. A loss keeps the bytes of at
    /// least another round trip. At most 4 MiB of them were never sent.
    pub send_buffer: u64,
    /// The largest datagram to try, in bytes of payload.
    pub max_datagram: usize,
    /// The time without any traffic after which a probe keeps the tunnel alive, if any.
    pub keep_alive: Option<Duration>,
    /// The time without any datagram from the peer after which the tunnel is lost.
    pub idle_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coupling: Coupling::default(),
            algorithm: Algorithm::default(),
            max_streams: 1024,
            memory: 64 << 20,
            initial_credit: 16 << 10,
            first_window: 256 << 10,
            own_window: 0,
            offered_streams: 0,
            max_window: 16 << 20,
            send_buffer: 16 << 20,
            max_datagram: 1452,
            keep_alive: None,
            idle_timeout: Duration::from_secs(120),
        }
    }
}

/// An occurrence that the application should act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has opened a stream.
    Opened(StreamId),
    /// Data can be read on a stream, or its end.
    Readable(StreamId),
    /// A stream whose last write was short takes data again.
    Writable(StreamId),
    /// All data of a finished stream, and its end, have arrived at the peer.
    Finished(StreamId),
    /// The peer has reset a stream.
    Reset(StreamId, u32),
    /// A stream of the peer did not open: its reset came first, or it is beyond the bound.
    Refused(StreamId),
    /// The tunnel has ended; no other event follows.
    Closed(Closed),
}

/// The reason of a tunnel's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Closed {
    /// This end has closed it.
    #[error("the tunnel was closed by this end")]
    Local,
    /// The peer has closed it, with a code of its application.
    #[error("the tunnel was closed by the peer, with code {0}")]
    Peer(u32),
    /// No datagram has arrived for too long.
    #[error("the tunnel was lost: no datagram has arrived for too long")]
    TimedOut,
    /// The peer has broken the protocol.
    #[error("the peer has broken the tunnel's protocol")]
    Violation,
}

/// The error of a call on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The tunnel has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The stream has ended, was reset, or never was.
    #[error("there is no such stream")]
    Unknown,
    /// The stream was finished already.
    #[error("the stream was finished")]
    Finished,
    /// All numbers of streams are used up.
    #[error("the tunnel has no more numbers for streams")]
    Exhausted,
}

/// The error of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// The datagram cannot be read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The datagram breaks the protocol; the tunnel has ended.
    #[error("the peer has broken the tunnel's protocol: {0}")]
    Violation(&'static str),
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes, in order.
    Data(Bytes),
    /// The end: the peer has finished the stream.
    End,
    /// The stream has no data yet; [`Event::Readable`] follows.
    Blocked,
}

/// Figures of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams that were sent.
    pub datagrams_sent: u64,
    /// Datagrams that arrived.
    pub datagrams_received: u64,
    /// Datagrams that arrived with a congestion mark.
    pub marked: u64,
    /// Segments that were declared lost.
    pub lost: u64,
    /// Segments that were declared lost and had arrived (spurious losses).
    pub spurious: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub tail_probes: u64,
}

/// A single end of a tunnel.
///
/// All times are measured from one start of the caller's choice, and must not run backwards. After
/// each call the caller sends the datagrams of [`Self::poll_output`] and waits until
/// [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Tunnel {
    side: Side,
    config: Config,
    streams: BTreeMap<u32, Stream>,
    /// The streams with data that was not read when the tunnel ended.
    unread: BTreeMap<u32, RecvHalf>,
    next_index: u32,
    peer_ids: PeerIds,
    peer_streams: usize,
    ended: Ended,
    pool: Pool,
    offers: Offers,
    allowed: Allowed,
    rtt: Rtt,
    recovery: Recovery,
    /// The flow of all streams, where they are coupled.
    flow: Option<Flow>,
    pmtu: PathMtu,
    ecn: Ecn,
    /// True if the last datagram carried data and the path takes the codepoint.
    permits_marks: bool,
    /// True if the last datagram probes the path's size.
    is_path_probe: bool,
    ready: Turns,
    /// Streams that wait for memory, to read or to write.
    starved: BTreeSet<u32>,
    acks: Acks,
    control: Control,
    timing: Timing,
    events: VecDeque<Event>,
    closed: Option<Closed>,
    stats: Stats,
}

impl Tunnel {
    /// Creates one end.
    pub fn new(side: Side, config: Config, now: Duration) -> Self {
        let pmtu = PathMtu::new(config.max_datagram);
        let mut tunnel = Self {
            side,
            streams: BTreeMap::new(),
            unread: BTreeMap::new(),
            next_index: 0,
            peer_ids: PeerIds::default(),
            peer_streams: 0,
            ended: Ended::default(),
            pool: Pool::new(config.memory),
            offers: Offers::new(&config),
            allowed: Allowed::default(),
            rtt: Rtt::default(),
            recovery: Recovery::default(),
            flow: None,
            pmtu,
            ecn: Ecn::default(),
            permits_marks: false,
            is_path_probe: false,
            ready: Turns::default(),
            starved: BTreeSet::new(),
            acks: Acks::default(),
            control: Control::default(),
            timing: Timing {
                last_received: now,
                last_sent: now,
                restarted: now,
                ..Timing::default()
            },
            events: VecDeque::new(),
            closed: None,
            stats: Stats::default(),
            config,
        };
        let coupled = tunnel.config.coupling == Coupling::Coupled;
        tunnel.flow = coupled.then(|| tunnel.new_flow(now).with_resume());
        tunnel
    }

    /// Notes the round trip that a handshake has shown, before anything was sent. Coupled streams
    /// then begin with a larger window, which leaves over this time.
    pub fn note_handshake(&mut self, round_trip: Duration) {
        self.rtt.note_handshake(round_trip);
        if let Some(flow) = &mut self.flow {
            flow.begin(round_trip);
        }
    }

    /// Offers the speed that an earlier tunnel observed on this path. The tunnel enters it
    /// carefully (RFC 9959), unless each stream has a flow. Returns `None` if it does not.
    pub fn resume(&mut self, now: Duration, saved: SavedSpeed) -> Option<Trial> {
        self.flow.as_mut()?.offer(now, saved)
    }

    /// Returns true if all streams share a BBR controller, which keeps its estimate of the path
    /// while nothing is sent.
    pub fn keeps_estimate(&self) -> bool {
        self.config.coupling == Coupling::Coupled && self.config.algorithm == Algorithm::Bbr
    }

    /// Returns the speed that the path has shown, if it was measured.
    pub fn speed(&self) -> Option<SavedSpeed> {
        self.flow.as_ref()?.speed()
    }

    fn segment_size(&self) -> u64 {
        self.pmtu.current().max(BASE) as u64
    }

    fn new_flow(&self, now: Duration) -> Flow {
        let segment = self.segment_size();
        let controller = Controller::new(self.config.algorithm, INITIAL_PACKETS * segment, segment);
        Flow::new(controller, segment, now)
    }

    fn new_stream(&mut self, now: Duration, id: StreamId) -> Stream {
        let credit = self.config.initial_credit;
        let flow =
            (self.config.coupling == Coupling::PerStream).then(|| Box::new(self.new_flow(now)));
        let mut recv = RecvHalf::new(credit, self.config.max_window, &mut self.pool);
        let mut window = self.config.first_window;
        let limit = if id.opener() == self.side {
            window = window.max(self.config.own_window.min(self.pool.wide_window()));
            credit.max(self.allowed.window(id.index()))
        } else {
            let offered = self.offers.on_opened(id.index());
            self.pool.hand_over(offered);
            recv.open_to(credit + offered);
            credit
        };
        recv.widen(window, &mut self.pool);
        Stream::new(SendHalf::new(limit), recv, flow)
    }

    /// Opens a stream. The peer learns of it with its first data.
    pub fn open(&mut self, now: Duration) -> Result<StreamId, StreamError> {
        self.check_open()?;
        if self.next_index > u32::MAX >> 1 {
            return Err(StreamError::Exhausted);
        }
        let id = StreamId::new(self.side, self.next_index);
        self.next_index += 1;
        let stream = self.new_stream(now, id);
        self.streams.insert(id.0, stream);
        Ok(id)
    }

    fn check_open(&self) -> Result<(), StreamError> {
        self.closed.map_or(Ok(()), |closed| Err(closed.into()))
    }

    fn stream(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        self.check_open()?;
        let stream = self.streams.get_mut(&id.0).ok_or(StreamError::Unknown)?;
        if stream.resetting.is_some() {
            return Err(StreamError::Unknown);
        }
        Ok(stream)
    }

    /// Ends a stream after the data written so far; the peer's direction goes on.
    pub fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        self.stream(id)?.send.finish();
        self.update_ready(id.0);
        Ok(())
    }

    /// Aborts a stream in both directions. Data that was not acknowledged is dropped.
    pub fn reset(&mut self, id: StreamId, code: u32) -> Result<(), StreamError> {
        self.stream(id)?;
        self.abort(id.0);
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.resetting = Some(Resetting { code, number: None });
            self.control.resets.insert(id.0);
        }
        Ok(())
    }

    /// Reads up to `most` bytes of a stream. The data that arrived before the end of the tunnel can
    /// still be read, unless this end has closed it.
    pub fn read(&mut self, now: Duration, id: StreamId, most: usize) -> Result<Read, StreamError> {
        if self.closed.is_some() {
            return self.read_rest(id, most);
        }
        self.stream(id)?;
        let rtt = self.rtt.smoothed();
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Err(StreamError::Unknown);
        };
        if let Some(data) = stream.recv.read(most, &mut self.pool) {
            stream.recv.on_read(now, rtt, &mut self.pool);
            if stream.recv.is_starved() {
                self.starved.insert(id.0);
            }
            self.update_ack(id.0);
            self.share_memory(now);
            return Ok(Read::Data(data));
        }
        if stream.recv.is_complete() {
            stream.told_end = true;
            self.remove_if_over(id.0);
            return Ok(Read::End);
        }
        stream.told_readable = false;
        Ok(Read::Blocked)
    }

    /// Returns the number of written bytes of a stream that the peer has not acknowledged yet.
    pub fn unacknowledged(&self, id: StreamId) -> u64 {
        let stream = self.streams.get(&id.0);
        stream.map_or(0, |stream| stream.send.buffered())
    }

    /// Sets the urgency of a stream, 0 to 7; 0 goes first and 3 is the default (RFC 9218).
    pub fn prioritise(&mut self, id: StreamId, urgency: u8) -> Result<(), StreamError> {
        self.stream(id)?.urgency = urgency.min(7);
        self.update_ready(id.0);
        Ok(())
    }

    /// Closes the tunnel. One datagram tells the peer.
    pub fn close(&mut self, code: u32) {
        if self.closed.is_none() {
            self.control.close = Some(code);
            self.end(Closed::Local);
        }
    }

    fn end(&mut self, reason: Closed) {
        if self.closed.is_none() {
            self.closed = Some(reason);
            self.keep_unread();
            self.ready.clear();
            self.starved.clear();
            self.acks = Acks::default();
            self.recovery = Recovery::default();
            self.offers = Offers::default();
            self.events.clear();
            self.events.push_back(Event::Closed(reason));
        }
    }

    /// Notes that the peer is reached on another path, and forgets all measurements.
    pub fn path_changed(&mut self, now: Duration) {
        self.rtt.clear();
        self.recovery.clear_path();
        self.pmtu.clear();
        self.ecn = Ecn::default();
        self.timing.backoff = 0;
        self.timing.restarted = now;
        // Everything in flight is repeated on the new path, without waiting for a timer.
        self.lose_all_in_flight(now, false);
        if self.flow.is_some() {
            self.flow = Some(self.new_flow(now).with_resume());
        }
        let fresh = self.new_flow(now);
        for stream in self.streams.values_mut() {
            if let Some(flow) = &mut stream.flow {
                **flow = fresh.clone();
            }
        }
    }

    /// Queues a probe, which no window holds back. The peer replies at once.
    pub fn probe(&mut self) {
        self.control.echo_due = true;
    }

    /// Returns the time since which the peer owes an acknowledgement or the reply to a probe.
    pub const fn unanswered_since(&self) -> Option<Duration> {
        self.timing.asked
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the reason of the tunnel's end, if it has ended.
    pub const fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Returns the tunnel's figures.
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the smoothed round trip, if it was measured.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Returns the smoothed round trip, or that of the handshake before it was measured.
    pub fn first_rtt(&self) -> Option<Duration> {
        self.rtt.first()
    }

    /// Returns the size of datagrams that the path takes, in bytes.
    pub const fn datagram_size(&self) -> usize {
        self.pmtu.current()
    }

    /// Returns true if the last datagram should carry the codepoint ECT(0), which permits routers
    /// to mark it. Only datagrams with data do (RFC 3168, section 6.1.4), and none on a path that
    /// seems to drop them.
    pub const fn permits_marks(&self) -> bool {
        self.permits_marks
    }

    /// Returns true if the last datagram probes whether the path takes its size.
    pub const fn is_path_probe(&self) -> bool {
        self.is_path_probe
    }

    /// Returns the number of streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the bytes that buffers and offered windows hold.
    pub const fn memory(&self) -> u64 {
        self.pool.used()
    }

    fn update_ready(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let is_ready = stream.send.has_lost() || stream.send.has_new();
        let place = is_ready.then(|| self.ready.place(&mut stream.sent, stream.urgency));
        if stream.ready != place {
            if let Some(place) = stream.ready {
                self.ready.remove(place, id);
            }
            if let Some(place) = place {
                self.ready.insert(place, id);
            }
            stream.ready = place;
        }
    }

    fn update_ack(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let is_known = StreamId(id).opener() != self.side || stream.send.next_offset() > 0;
        match stream.recv.ack_state() {
            // The segment that opens the stream carries it.
            AckState::Now if !is_known => {}
            AckState::Now => {
                self.acks.now.insert(id);
            }
            AckState::Delayed(until) => {
                self.acks.later.insert((until, id));
                if self.acks.later.len() >= ACK_STREAMS {
                    self.flush_acks(Duration::MAX);
                }
            }
            AckState::None => {}
        }
    }

    fn clear_persist(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.persist.take().is_some()
        {
            self.timing.persisting -= 1;
        }
    }
}
