//! An endpoint of an HTTP/3 session: its state, the life of its streams, and the calls of its user.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;

use super::code::{Code, Fault};
use super::control::is_request;
use super::datagram::Datagrams;
use super::push::Pushes;
use super::send::MAX_ACKNOWLEDGEMENTS;
use super::settings::{self, BLOCKED_STREAMS, PeerSettings};
use super::stream::{CONTROL, Critical, DECODER, Incoming, Phase, SendingStream, Stream};
use super::{Command, Direction, frame};
use crate::flood::FloodBudget;
use crate::head::Hint;
use crate::mux::{OpenError, Unsent};
use crate::outgoing::{ById, Tail};
use crate::pushed::EventQueue;
use crate::qpack::{Decoder, Encoder, TABLE_SIZE};
use crate::sched::Sched;
use crate::threshold::DynamicWindow;
use crate::{
    Event, Fields, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role, SendBuf,
    SessionError, StreamId,
};

/// The largest number of a request. The carrier's numbers are larger.
pub(super) const MAX_ID: StreamId = 0x7fff_ffff;

/// An endpoint of an HTTP/3 session.
///
/// Requests and pushes have numbers of this end, as in [`Mux`]: odd for requests and even for
/// pushes. The carrier's streams have the carrier's numbers.
///
/// The windows of [`MuxConfig`] limit the bytes that the user holds. A stream is not read while its
/// user holds `stream_window` bytes, or fewer while the session holds much ([`DynamicWindow`]).
/// None is read while the session holds `receive_budget`.
#[derive(Debug)]
pub struct Connection {
    pub(super) config: MuxConfig,
    pub(super) peer: PeerSettings,
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) hint: Hint,
    pub(super) flood: FloodBudget,
    pub(super) streams: ById<Stream>,
    /// The carrier's streams on which the peer sends.
    pub(super) incoming: BTreeMap<u64, Incoming>,
    /// The carrier's streams on which we send.
    pub(super) senders: BTreeMap<u64, SendingStream>,
    pub(super) critical: [Critical; 3],
    /// The types of critical streams that the peer has opened.
    pub(super) seen_critical: [bool; 3],
    /// The peer's unidirectional streams without a type, or without the number of their push.
    pub(super) untyped: usize,
    /// The streams beside pushes that wait for one of the carrier, by direction.
    pub(super) opening: [VecDeque<SendingStream>; 2],
    /// True while the carrier opens no bidirectional stream.
    pub(super) blocked: bool,
    /// Client: true until the handshake of the carrier is over.
    pub(super) early: bool,
    pub(super) ready: Sched,
    pub(super) commands: VecDeque<Command>,
    pub(super) events: EventQueue,
    /// The streams of the carrier that may be read again.
    pub(super) resumed: VecDeque<u64>,
    /// Number of the next request.
    pub(super) next_id: StreamId,
    /// Server: the carrier's highest stream with a request.
    pub(super) highest_request: Option<u64>,
    /// Server: the streams without a request so far.
    pub(super) arriving: u32,
    /// The requests of a client, or the pushes of a server, that have not ended.
    pub(super) peer_active: u32,
    pub(super) pushes: Pushes,
    pub(super) datagrams: Datagrams,
    /// Bytes that the user holds.
    pub(super) held: usize,
    /// The bytes of one stream that the user may hold.
    pub(super) receive_window: DynamicWindow,
    /// True while no stream is read.
    pub(super) paused: bool,
    /// Bytes of streams that have ended, still to be released.
    unreleased: ById<usize>,
    pub(super) our_goodbye: Option<u64>,
    pub(super) their_goodbye: Option<u64>,
    pub(super) failed: Option<Fault>,
}

/// The unsent bytes of the control stream above which no probe is added.
const MAX_PROBES: usize = 1024;

impl Connection {
    /// Creates an endpoint of a new session.
    pub fn new(config: MuxConfig) -> Self {
        let mut connection = Self {
            peer: PeerSettings::new(),
            encoder: Encoder::new(),
            decoder: Decoder::new(TABLE_SIZE, BLOCKED_STREAMS),
            hint: Hint::default(),
            flood: FloodBudget::new(),
            streams: ById::default(),
            incoming: BTreeMap::new(),
            senders: BTreeMap::new(),
            critical: Default::default(),
            seen_critical: [false; 3],
            untyped: 0,
            opening: Default::default(),
            blocked: false,
            early: false,
            ready: Sched::new(),
            commands: VecDeque::new(),
            events: EventQueue::default(),
            resumed: VecDeque::new(),
            next_id: 1,
            highest_request: None,
            arriving: 0,
            peer_active: 0,
            pushes: Pushes::default(),
            datagrams: Datagrams::default(),
            held: 0,
            receive_window: DynamicWindow::new(&config),
            paused: false,
            unreleased: ById::default(),
            our_goodbye: None,
            their_goodbye: None,
            failed: None,
            config,
        };
        settings::put_own(
            &mut connection.critical[CONTROL].out,
            &connection.config,
            false,
        );
        connection.permit_pushes();
        connection
    }

    /// Notes if the carrier permits no more bidirectional streams now.
    pub fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Removes the requests that wait for a stream of the carrier. The peer has seen none of them.
    pub fn take_unopened(&mut self) -> Vec<StreamId> {
        let waiting = std::mem::take(&mut self.opening[Direction::Bidirectional as usize]);
        let unopened = waiting.into_iter().filter_map(|sender| match sender {
            SendingStream::Stream(id) => Some(id),
            SendingStream::Critical(_) => None,
        });
        unopened
            .filter(|id| self.remove(*id, false).is_some())
            .collect()
    }

    /// Takes a stream that the peer has opened.
    ///
    /// # Errors
    ///
    /// The session must end, as after an error of [`Connection::handle_input`].
    pub fn handle_accepted(
        &mut self,
        stream: u64,
        direction: Direction,
    ) -> Result<(), SessionError> {
        self.guard(|this| this.accepted(stream, direction))
    }

    /// Takes bytes of a stream, cut anywhere. `end` means that the peer has ended the stream.
    ///
    /// # Errors
    ///
    /// The peer broke a rule of the session or exceeded a limit. The core takes nothing more, and
    /// the caller closes the carrier with the code of [`Connection::failure`].
    pub fn handle_input(
        &mut self,
        now: Instant,
        stream: u64,
        bytes: &[u8],
        end: bool,
    ) -> Result<(), SessionError> {
        self.flood.advance(now);
        self.guard(|this| this.received(stream, bytes, end))
    }

    /// Notes that the peer has reset its sending on a stream.
    ///
    /// # Errors
    ///
    /// As for [`Connection::handle_input`].
    pub fn handle_reset(
        &mut self,
        now: Instant,
        stream: u64,
        code: Code,
    ) -> Result<(), SessionError> {
        self.flood.advance(now);
        self.guard(|this| this.was_reset(stream, code))
    }

    /// Notes that the peer has stopped our sending on a stream.
    ///
    /// # Errors
    ///
    /// As for [`Connection::handle_input`].
    pub fn handle_stopped(
        &mut self,
        now: Instant,
        stream: u64,
        code: Code,
    ) -> Result<(), SessionError> {
        self.flood.advance(now);
        self.guard(|this| this.was_stopped(stream, code))
    }

    /// Returns true if the stream may be read now.
    pub fn wants_input(&self, stream: u64) -> bool {
        let Some(incoming) = self.incoming.get(&stream) else {
            return false;
        };
        let message = incoming.message();
        incoming.wait.is_none() && message.is_none_or(|id| !self.is_paused(id))
    }

    fn is_paused(&self, id: StreamId) -> bool {
        // A server keeps nothing for a client that has not sent its settings.
        let unknown = !self.is_client() && !self.peer.known;
        unknown || self.paused || self.streams.get(&id).is_some_and(|stream| stream.paused)
    }

    /// Returns the streams that are not read because the user holds too much, each with the
    /// number of its exchange.
    pub fn unread(&self) -> Vec<(u64, StreamId)> {
        let messages = self.incoming.iter().filter(|(_, it)| it.wait.is_none());
        messages
            .filter_map(|(stream, it)| Some((*stream, it.message()?)))
            .filter(|(_, id)| self.is_paused(*id))
            .collect()
    }

    /// Returns true if the caller can do more at once: execute commands, read streams that are
    /// resumed, or write on streams of the session itself.
    pub fn wants_round(&self) -> bool {
        let writes = |it: &Critical| it.carrier.is_some() && !it.out.is_empty() && !it.busy;
        !self.commands.is_empty()
            || !self.resumed.is_empty()
            || self.decoder.has_output()
            || self.critical.iter().any(writes)
    }

    /// Returns the next stream that may be read again.
    pub fn poll_resumed(&mut self) -> Option<u64> {
        self.resumed.pop_front()
    }

    /// Returns the next change of a stream of the carrier.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Returns the stream that sends next. The caller writes its output, and then calls
    /// [`Connection::handle_written`].
    pub fn poll_ready(&mut self) -> Option<u64> {
        if self.failed.is_some() {
            return None;
        }
        self.next_ready()
    }

    /// Appends output of a stream to `out`: heads, and content up to about `limit` bytes. Returns
    /// true if the stream ends after it.
    pub fn poll_output(&mut self, stream: u64, out: &mut SendBuf, limit: usize) -> bool {
        self.stream_output(stream, out, limit)
    }

    /// Notes that the carrier has taken all output of a stream so far.
    pub fn handle_written(&mut self, stream: u64) {
        self.written(stream);
    }

    /// Returns the code and the reason with which the caller closes the carrier, after an error.
    pub fn failure(&self) -> Option<(Code, &'static str)> {
        self.failed.map(|fault| (fault.code, fault.detail))
    }

    pub(super) fn guard(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), SessionError> {
        if let Some(fault) = self.failed {
            return Err(fault.into());
        }
        let result = call(self)
            .and_then(|()| self.flood.check().map_err(Fault::from))
            .and_then(|()| self.check_acknowledgements());
        result.map_err(|fault| {
            self.failed = Some(fault);
            self.streams = ById::default();
            self.incoming.clear();
            self.senders.clear();
            self.ready = Sched::new();
            self.commands.clear();
            fault.into()
        })
    }

    /// Flow control of the carrier does not limit the acknowledgements that a peer leaves unread.
    fn check_acknowledgements(&mut self) -> Result<(), Fault> {
        self.gather_acknowledgements();
        if self.critical[DECODER].out.len() > MAX_ACKNOWLEDGEMENTS {
            let detail = "answers to the peer's frames are not read";
            return Err(Fault::new(Code::EXCESSIVE_LOAD, detail));
        }
        Ok(())
    }

    /// Removes a stream. Bytes that the user still holds keep counting if the stream ended well.
    fn remove(&mut self, id: StreamId, ended_well: bool) -> Option<Stream> {
        let mut stream = self.streams.remove(&id)?;
        self.end_tunnel(stream.datagrams.take());
        if let Some(key) = stream.ready {
            self.ready.remove(key);
        }
        if let Some(carrier) = stream.carrier {
            self.senders.remove(&carrier);
            let unread = self.incoming.remove(&carrier).is_some();
            if unread || stream.phase != Phase::Ended {
                self.decoder.cancel(carrier);
            }
        }
        if is_request(id) != self.is_client() {
            self.peer_active -= 1;
        }
        if !is_request(id) {
            self.pushes.opening.forget(stream.priority, id);
            self.push_closed(id);
        }
        if ended_well && stream.held > 0 {
            self.unreleased.insert(id, stream.held);
        } else {
            self.free(stream.held);
        }
        Some(stream)
    }

    /// Forgets the stream if both messages have ended.
    pub(super) fn close_if_done(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(Stream::is_done) {
            self.remove(id, true);
            if is_request(id) {
                self.flood.credit_exchange();
            }
        }
    }

    /// Ends both directions of the carrier's stream, as far as they are open. Without `stop` the
    /// peer has ended its direction.
    pub(super) fn end_stream(&mut self, id: StreamId, code: Code, stop: bool) {
        let Some(state) = self.streams.get(&id) else {
            return;
        };
        let Some(stream) = state.carrier else { return };
        if state.sending {
            self.commands.push_back(Command::Reset { stream, code });
        }
        if stop && state.phase != Phase::Ended {
            self.commands.push_back(Command::Stop { stream, code });
        }
    }

    /// Forgets the stream after a reset from either side, and tells the user if `event` and it
    /// knows of it.
    pub(super) fn abandon(&mut self, id: StreamId, event: Option<Reason>) {
        let Some(stream) = self.remove(id, false) else {
            return;
        };
        if let (Some(reason), None) = (event, stream.undecided) {
            self.events.push_back(Event::Reset { id, reason });
        }
    }

    /// Notes that the user holds less. Reads streams again if it held too much.
    fn free(&mut self, count: usize) {
        self.held = self.held.saturating_sub(count);
        self.receive_window.adapt(self.held, true);
        if self.paused && self.held <= self.config.receive_budget / 2 {
            self.paused = false;
            self.resumed.extend(self.incoming.keys());
        }
    }
}

impl Mux for Connection {
    fn handle_timeout(&mut self, now: Instant) {
        self.flood.advance(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.streams.is_empty() {
            // An idle session keeps no memory for bursts.
            self.events = EventQueue::default();
            self.streams = ById::default();
        }
        event
    }

    fn wants_output(&self) -> bool {
        let writes = |critical: &Critical| !critical.out.is_empty() && !critical.busy;
        !self.commands.is_empty()
            || !self.resumed.is_empty()
            || !self.ready.is_empty()
            || self.decoder.has_output()
            || self.opening.iter().any(|queue| !queue.is_empty())
            || self.pushes.opening.wait()
            || self.critical.iter().any(writes)
    }

    fn open(
        &mut self,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        self.send_request(head, end, priority)
    }

    fn inform(&mut self, id: StreamId, head: &ResponseHead) {
        self.send_interim(id, head);
    }

    fn respond(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        self.send_response(id, head, end);
    }

    fn push(
        &mut self,
        parent: StreamId,
        request: &RequestHead,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        self.send_promise(parent, request, priority)
    }

    fn send_data(&mut self, id: StreamId, data: Bytes, end: bool) {
        self.queue_data(id, data, end);
    }

    fn send_trailers(&mut self, id: StreamId, fields: &Fields) {
        self.queue_trailers(id, fields);
    }

    fn send_room(&self, id: StreamId) -> usize {
        let open = |s: &&Stream| s.sending && matches!(s.tail, Tail::More);
        let open = |s: &&Stream| open(s) && !s.has_many_datagrams();
        let stream = self.streams.get(&id).filter(open);
        stream.map_or(0, |s| self.config.send_buffer.saturating_sub(s.queue.len()))
    }

    fn unsent(&self, id: StreamId) -> Unsent {
        let stream = self.streams.get(&id).filter(|s| s.sending);
        stream.map_or_else(Unsent::default, |s| {
            let window = if s.busy { 0 } else { usize::MAX };
            Unsent::new(s.queue.len(), window, usize::MAX)
        })
    }

    fn backlog(&self) -> usize {
        self.critical
            .iter()
            .map(|critical| critical.out.len())
            .sum()
    }

    fn set_priority(&mut self, id: StreamId, priority: Priority) {
        self.change_priority(id, priority);
        if self.is_client() {
            self.put_priority(id, priority);
        }
    }

    fn reset(&mut self, id: StreamId, reason: Reason) {
        if let Some(held) = self.unreleased.remove(&id) {
            self.free(held);
        }
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if !is_request(id) && stream.carrier.is_none() {
            self.cancel_unsent_push(id);
        }
        self.end_stream(id, Code::of_stream(reason), true);
        self.abandon(id, None);
    }

    fn reset_after_data(&mut self, id: StreamId, reason: Reason) {
        if !self.queue_reset(id, reason) {
            self.reset(id, reason);
        }
    }

    fn release(&mut self, id: StreamId, count: usize) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let count = count.min(stream.held);
            stream.held -= count;
            let window = self.receive_window.current() as usize;
            if stream.paused && stream.held <= window / 2 {
                stream.paused = false;
                self.resumed.extend(stream.carrier);
            }
            self.free(count);
        } else if let Some(held) = self.unreleased.get_mut(&id) {
            let count = count.min(*held);
            *held -= count;
            if *held == 0 {
                self.unreleased.remove(&id);
            }
            self.free(count);
        }
    }

    /// Sends a frame of a reserved type, which the peer ignores (RFC 9114 section 7.2.8). The
    /// carrier's acknowledgement shows that the path works.
    fn ping(&mut self, _: u32) -> bool {
        let out = &mut self.critical[CONTROL].out;
        if self.failed.is_none() && out.len() < MAX_PROBES {
            frame::put_head(out, frame::RESERVED, 0);
        }
        false
    }

    fn go_away(&mut self, _: Reason) {
        if self.our_goodbye.is_some() || self.failed.is_some() {
            return;
        }
        let limit = match self.config.role {
            Role::Client => self.pushes.next,
            Role::Server => self.highest_request.map_or(0, |highest| highest + 4),
        };
        self.our_goodbye = Some(limit);
        frame::put_number(&mut self.critical[CONTROL].out, frame::GOAWAY, limit);
    }

    fn active(&self) -> usize {
        self.streams.len() + self.arriving as usize
    }

    fn is_open(&self) -> bool {
        self.failed.is_none()
            && self.our_goodbye.is_none()
            && self.their_goodbye.is_none()
            && self.next_id <= MAX_ID
    }

    fn hold(&mut self, id: StreamId) {
        self.hold_request(id);
    }

    fn has_room(&self) -> bool {
        self.has_place_to_wait()
    }

    fn peer_takes_pushes(&self) -> bool {
        !self.is_client() && self.pushes.limit > 0
    }

    fn peer_extended_connect(&self) -> Option<bool> {
        self.peer.known.then_some(self.peer.extended_connect)
    }
}
