//! A session: streams over frames, for either end. Draft sections 2.1 to 2.4 and 3.
//!
//! ```text
//!   handle_input ─▶ receive.rs ─▶ streams, windows ─▶ events ─▶ poll_event
//!   open, respond, push, send_data, … ─▶ command.rs ─▶ streams, control queue
//!   poll_output ◀─ output.rs ◀─ pings · control queue · ends of bodies · data by priority · credit
//! ```
//!
//! Header blocks are compressed when their frame enters the control queue, which keeps its order,
//! so the compression context follows the wire. Data is cut into frames only as it leaves.

mod command;
mod control;
mod credit;
mod heads;
mod output;
mod probe;
mod receive;
mod recent;
mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use tandem_http::flood::FloodBudget;
use tandem_http::mux::{OpenError, Unsent};
use tandem_http::pushed::EventQueue;
use tandem_http::sched::Sched;
use tandem_http::threshold::DynamicWindow;
use tandem_http::{
    ByteMux, Event, Fields, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role,
    SendBuf, SessionError, StreamId,
};

use crate::Version;
use crate::flow::{INITIAL_WINDOW, ReceiveWindow, SendWindow};
use crate::frame::{FrameReader, GoAway, MAX_31, RstStream, Setting, SettingId, Settings};
use crate::header_block::{Decoder, Encoder, HeaderCompression};
use crate::status;
use crate::stream::{Kind, State, Stream};

use output::ControlQueue;
use probe::FlowProbe;
use receive::Receiving;
use recent::RecentlyClosed;

/// The role, version, limits and options of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits, the same for every multiplexed protocol.
    pub mux: MuxConfig,
    /// Which draft.
    pub version: Version,
    /// The parts of outgoing header blocks that are compressed. Default
    /// [`HeaderCompression::Safe`].
    pub header_compression: HeaderCompression,
    /// Client: `:path` carries the whole URL, for gateways that want it so. Default false.
    pub full_url_path: bool,
    /// Client: refuse pushes for another origin than that of the request they belong to, as the
    /// draft demands of browsers. Default true; false where the peer is a trusted gateway to all
    /// origins.
    pub same_origin_push: bool,
    /// Find out whether a peer that is silent about windows ignores them (see
    /// [`crate::Connection`]). Default true.
    pub probe_flow_control: bool,
    /// Server: report requests as written. `path` is then the text of `:path`, even a whole URL,
    /// `authority` that of `:host`, and a field `:version` comes first. Default false.
    pub literal_requests: bool,
    /// The limit in bytes of header lists to write, if it differs from that of lists to read
    /// (`mux.max_header_list`). SPDY does not tell the limit of the peer. Default none.
    pub max_written_list: Option<usize>,
    /// Keep what [`Connection::release_contexts`] needs to free the inflater. Default false.
    pub keeps_released_text: bool,
}

impl Config {
    /// Returns the limit of header lists to write.
    fn written_list(&self) -> usize {
        let limit = self.max_written_list.unwrap_or(self.mux.max_header_list);
        limit.min(MAX_LIST)
    }

    /// The defaults.
    pub const fn new(mux: MuxConfig, version: Version) -> Self {
        Self {
            mux,
            version,
            header_compression: HeaderCompression::Safe,
            full_url_path: false,
            same_origin_push: true,
            probe_flow_control: true,
            literal_requests: false,
            max_written_list: None,
            keeps_released_text: false,
        }
    }
}

/// The minimum limit for control frames, in bytes. The draft demands 8192; a list within the limit
/// fits even when it is stored.
const MIN_CONTROL_LIMIT: usize = 8192;

/// The upper bound of the limits of header lists, so that a frame holds each of them.
const MAX_LIST: usize = 1 << 23;

/// The number of unanswered pings that are remembered.
const MAX_PINGS: usize = 64;

/// An endpoint of a SPDY session. See [`Mux`] for its use.
///
/// The drafts leave some choices open:
/// * Some peers do not implement flow control (moby/spdystream). The session sends a PING to a peer
///   that leaves a window empty and has sent neither SETTINGS nor WINDOW_UPDATE. If the peer
///   answers and still grants no credit, the session treats its windows as unlimited.
///   [`Config::probe_flow_control`] turns this off.
/// * SPDY/3 has no session window. The session resets a stream that would exceed
///   [`MuxConfig::receive_budget`] and hold more than a least window ([`DynamicWindow`]).
/// * GOAWAY carries the last *accepted* stream in both versions. With draft 3's "last replied to",
///   a client would send a request again that is being processed.
/// * A push need not be marked unidirectional: neither spdystream nor spdy-transport does it.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    reader: FrameReader,
    decoder: Decoder,
    encoder: Encoder,
    /// The data frame that is arriving.
    receiving: Option<Receiving>,
    events: EventQueue,
    /// The weight of the heads and trailers of pushes that are still gathered.
    gathered: usize,
    /// The time of the last input or timeout.
    clock: Option<Instant>,
    flood: FloodBudget,
    failed: bool,

    streams: BTreeMap<StreamId, Stream>,
    recent: RecentlyClosed,
    own_streams: usize,
    peer_streams: usize,
    next_own: StreamId,
    /// Highest stream that the peer opened, and highest that we took.
    last_received: StreamId,
    last_accepted: StreamId,
    goaway_sent: bool,
    goaway_received: bool,

    /// From the peer's SETTINGS, or the drafts' defaults.
    peer_max_streams: u32,
    peer_initial_window: u32,
    peer_sent_settings: bool,
    session_send: SendWindow,
    probe: FlowProbe,

    session_receive: ReceiveWindow,
    /// The window of new streams.
    receive_window: DynamicWindow,
    /// Bytes given to the user and not released, and session credit that waits for it.
    held: usize,
    withheld: u32,
    /// Streams with credit worth telling, and whether it should leave at once.
    credit: BTreeSet<StreamId>,
    credit_urgent: bool,

    sched: Sched,
    /// Streams of which only the end is left to send.
    finishing: VecDeque<StreamId>,
    control: ControlQueue,
    /// PINGs to send, theirs and ours: ahead of everything.
    ping_queue: VecDeque<u32>,
    next_ping: u32,
    pings: VecDeque<(u32, u32)>,
    scratch: Vec<u8>,
}

impl Connection {
    /// A session that has said nothing yet.
    pub fn new(mut config: Config) -> Self {
        config.mux.max_header_list = config.mux.max_header_list.min(MAX_LIST);
        let limit = config.mux.max_header_list;
        let first = if config.mux.role == Role::Client {
            1
        } else {
            2
        };
        let session_window = config.mux.session_window.clamp(INITIAL_WINDOW, MAX_31);
        let mut this = Self {
            reader: FrameReader::new(limit.max(MIN_CONTROL_LIMIT) + 1024),
            decoder: Decoder::new(limit),
            encoder: Encoder::new(config.header_compression),
            receiving: None,
            events: EventQueue::default(),
            gathered: 0,
            clock: None,
            flood: FloodBudget::new(),
            failed: false,
            streams: BTreeMap::new(),
            recent: RecentlyClosed::default(),
            own_streams: 0,
            peer_streams: 0,
            next_own: first,
            last_received: 0,
            last_accepted: 0,
            goaway_sent: false,
            goaway_received: false,
            peer_max_streams: u32::MAX,
            peer_initial_window: INITIAL_WINDOW,
            peer_sent_settings: false,
            session_send: SendWindow::new(INITIAL_WINDOW),
            probe: FlowProbe::new(config.probe_flow_control),
            session_receive: ReceiveWindow::new(session_window),
            receive_window: DynamicWindow::new(&config.mux),
            held: 0,
            withheld: 0,
            credit: BTreeSet::new(),
            credit_urgent: false,
            sched: Sched::new(),
            finishing: VecDeque::new(),
            control: ControlQueue::default(),
            ping_queue: VecDeque::new(),
            next_ping: first,
            pings: VecDeque::new(),
            scratch: Vec::new(),
            config,
        };
        if this.config.keeps_released_text {
            this.decoder.permit_release();
        }
        this.greet(session_window);
        this
    }

    /// Our SETTINGS and session window. A client that takes no pushes allows no streams.
    fn greet(&mut self, session_window: u32) {
        let mux = &self.config.mux;
        let streams = if mux.role == Role::Client && !mux.push {
            0
        } else {
            mux.max_streams
        };
        let window = mux.stream_window.min(MAX_31);
        self.announce(&[
            (SettingId::MaxConcurrentStreams, streams),
            (SettingId::InitialWindowSize, window),
        ]);
        let more = session_window - INITIAL_WINDOW;
        if self.is_v31() && more > 0 {
            self.control.push(|dst| {
                crate::frame::WindowUpdate {
                    stream: 0,
                    delta: more,
                }
                .encode(dst)
            });
        }
    }

    /// Queues SETTINGS without flags.
    fn announce(&mut self, settings: &[(SettingId, u32)]) {
        let entry = |&(id, value): &(SettingId, u32)| Setting {
            flags: 0,
            id: id as u32,
            value,
        };
        let settings = Settings {
            clear: false,
            entries: settings.iter().map(entry).collect(),
        };
        self.control.push(|dst| settings.encode(dst));
    }

    fn is_v31(&self) -> bool {
        self.config.version == Version::V31
    }

    fn is_client(&self) -> bool {
        self.config.mux.role == Role::Client
    }

    /// Clients open odd streams, servers even ones.
    fn is_own_id(&self, id: StreamId) -> bool {
        (id % 2 == 1) == self.is_client()
    }

    /// A stream that is not closed.
    fn live(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams
            .get_mut(&id)
            .filter(|stream| stream.state != State::Closed)
    }

    fn insert(&mut self, id: StreamId, kind: Kind, state: State, urgency: u8) -> &mut Stream {
        let send = if self.probe.ignores() {
            SendWindow::UNLIMITED
        } else {
            SendWindow::new(self.peer_initial_window)
        };
        let receive = ReceiveWindow::new(self.widest_window());
        let stream = Stream::new(kind, state, urgency, send, receive);
        if stream.is_own() {
            self.own_streams += 1;
        } else {
            self.peer_streams += 1;
        }
        self.streams.entry(id).or_insert(stream)
    }

    /// Moves a stream to its next state; a closed one leaves, once its user holds no data of it.
    fn set_state(&mut self, id: StreamId, state: State) {
        let Some(stream) = self.live(id) else { return };
        stream.state = state;
        if state == State::Closed {
            // Clients open odd streams, and only they ask.
            let exchange = id % 2 == 1 && !stream.discard;
            self.close(id, true);
            if exchange {
                self.flood.credit_exchange();
            }
        }
    }

    /// Removes a live stream from all queues. `strays_answered` permits RST_STREAM in response to a
    /// later frame of it; it must be false after a reset by either end.
    fn close(&mut self, id: StreamId, strays_answered: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if let Some(key) = stream.key.take() {
            self.sched.remove(key);
        }
        self.gathered -= std::mem::take(&mut stream.gathered);
        stream.close();
        let (own, held) = (stream.is_own(), stream.held);
        if own {
            self.own_streams -= 1;
        } else {
            self.peer_streams -= 1;
        }
        if held == 0 {
            self.streams.remove(&id);
        }
        self.credit.remove(&id);
        self.recent.remember(id, strays_answered);
    }

    /// Closes a stream that was reset; bytes that its user still holds no longer count. Returns
    /// true if the user has to be told.
    fn abort(&mut self, id: StreamId) -> bool {
        let Some(known) = self.live(id).map(|stream| !stream.discard) else {
            return false;
        };
        self.close(id, false);
        if let Some(stream) = self.streams.remove(&id) {
            self.forget_held(stream.held);
        }
        known
    }

    /// Resets a stream on which the peer broke a rule, and tells the user (draft section 2.4.2). A
    /// peer that makes us reset streams costs as much as one that resets them.
    fn stream_error(&mut self, id: StreamId, status: u32) {
        self.flood.charge_reset();
        self.reset_once(id, status);
    }

    /// Sends RST_STREAM, at most once for each stream, and tells the user if the stream was live.
    fn reset_once(&mut self, id: StreamId, status: u32) {
        if self.live(id).is_some() {
            if self.abort(id) {
                self.events.push_back(Event::Reset {
                    id,
                    reason: status::rst_reason(status),
                });
            }
        } else if !self.recent.may_answer(id) {
            return;
        }
        self.recent.remember(id, false);
        self.flood.count_answer();
        self.control
            .push(|dst| RstStream { stream: id, status }.encode(dst));
    }

    /// A rule of the whole session was broken: GOAWAY, and nothing more. Draft section 2.4.1.
    fn fail(&mut self, reason: Reason, detail: &'static str) -> SessionError {
        self.failed = true;
        self.streams.clear();
        self.gathered = 0;
        self.sched = Sched::new();
        self.finishing.clear();
        self.ping_queue.clear();
        self.credit.clear();
        self.own_streams = 0;
        self.peer_streams = 0;
        let goaway = GoAway {
            last: self.last_received,
            status: status::goaway_status(reason, self.config.version),
        };
        self.control.push(|dst| goaway.encode(dst));
        SessionError { reason, detail }
    }

    /// Puts a stream where it belongs in the sending order, or out of it, after anything about it
    /// has changed.
    fn reschedule(&mut self, id: StreamId) {
        let session_room = self.session_room();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.queued > 0 && stream.send.room().min(session_room) == 0 {
            self.probe.blocked(self.clock);
        }
        let wanted = stream.wanted_key(id, &self.sched);
        if stream.key == wanted {
            return;
        }
        if let Some(key) = stream.key.take() {
            self.sched.remove(key);
        }
        if let Some(key) = wanted {
            stream.key = Some(key);
            self.sched.insert(key);
        }
    }
}

impl ByteMux for Connection {
    fn handle_input(&mut self, now: Instant, bytes: &[u8]) -> Result<(), SessionError> {
        self.receive_bytes(now, bytes)
    }

    fn poll_output(&mut self, out: &mut SendBuf, limit: usize) {
        self.write_output(out, limit);
    }
}

impl Mux for Connection {
    fn handle_timeout(&mut self, now: Instant) {
        self.probe_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.probe.deadline()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn wants_output(&self) -> bool {
        self.has_output()
    }

    fn open(
        &mut self,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        self.open_request(head, end, priority)
    }

    fn inform(&mut self, _id: StreamId, _head: &ResponseHead) {}

    fn has_interim(&self) -> bool {
        false
    }

    fn respond(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        self.write_response(id, head, end);
    }

    fn push(
        &mut self,
        parent: StreamId,
        request: &RequestHead,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        self.open_push(parent, request, priority)
    }

    fn send_data(&mut self, id: StreamId, data: Bytes, end: bool) {
        self.queue_data(id, data, end);
    }

    fn send_trailers(&mut self, id: StreamId, fields: &Fields) {
        self.queue_trailers(id, fields);
    }

    fn send_room(&self, id: StreamId) -> usize {
        self.streams
            .get(&id)
            .filter(|stream| stream.takes_data())
            .map_or(0, |stream| {
                self.config.mux.send_buffer.saturating_sub(stream.queued)
            })
    }

    fn unsent(&self, id: StreamId) -> Unsent {
        let stream = self
            .streams
            .get(&id)
            .filter(|stream| stream.state.may_send());
        stream.map_or_else(Unsent::default, |s| {
            Unsent::new(s.queued, s.send.room(), self.session_room())
        })
    }

    fn backlog(&self) -> usize {
        self.control.len()
    }

    /// The peer learns a priority in SYN_STREAM only; this changes our own order.
    fn set_priority(&mut self, id: StreamId, priority: Priority) {
        if let Some(stream) = self.live(id) {
            stream.urgency = priority.0.min(7);
            self.reschedule(id);
        }
    }

    fn reset(&mut self, id: StreamId, reason: Reason) {
        self.reset_stream(id, reason);
    }

    fn reset_after_data(&mut self, id: StreamId, reason: Reason) {
        if !self.queue_reset(id, reason) {
            self.reset_stream(id, reason);
        }
    }

    fn release(&mut self, id: StreamId, count: usize) {
        self.release_data(id, count);
    }

    fn ping(&mut self, payload: u32) -> bool {
        self.send_ping(payload);
        true
    }

    fn go_away(&mut self, reason: Reason) {
        self.send_goaway(reason);
    }

    fn active(&self) -> usize {
        self.own_streams + self.peer_streams
    }

    fn is_open(&self) -> bool {
        self.is_open_for_streams()
    }

    /// SPDY has no extended CONNECT: tunnels are plain CONNECT.
    fn hold(&mut self, _: StreamId) {}

    fn has_room(&self) -> bool {
        self.own_streams < self.peer_max_streams as usize
    }

    fn peer_takes_pushes(&self) -> bool {
        !self.is_client() && self.peer_max_streams > 0
    }

    fn peer_extended_connect(&self) -> Option<bool> {
        Some(false)
    }
}
