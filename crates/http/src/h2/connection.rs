//! An endpoint of an HTTP/2 session: its state, and the life of its streams. Input is in
//! [`super::recv`], output in [`super::send`].

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::blocks::Block;
use super::flow::{DEFAULT_WINDOW, MAX_WINDOW, SendWindow, SessionCredit, StreamWindows};
use super::frame;
use super::input::Input;
use super::settings::{self, PeerSettings};
use super::stream::{State, Stream};
use crate::flood::FloodBudget;
use crate::head::Hint;
use crate::hpack::{Decoder, Encoder};
use crate::mux::{OpenError, Unsent};
use crate::outgoing::ById;
use crate::pushed::{EventQueue, is_pushed};
use crate::sched::Sched;
use crate::threshold::DynamicWindow;
use crate::{
    ByteMux, Event, Fields, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role,
    SendBuf, SessionError, StreamId,
};

/// The number of own resets that are remembered: frames that were on their way are late, not wrong.
const MAX_OWN_RESETS: usize = 1024;
/// Buffers of an idle session above this are given back.
pub(super) const KEEP: usize = 1024;
/// The number of events for which a session with open streams keeps memory.
const KEEP_EVENTS: usize = 64;
/// The capacity of a table of streams that is freed with its last stream. A larger table is freed
/// at the next timeout.
const FEW_STREAMS: usize = 8;
/// Streams are numbered up to 2^31-1 (RFC 9113 section 5.1.1).
pub(super) const MAX_STREAM_ID: StreamId = 0x7fff_ffff;

/// An endpoint of an HTTP/2 session: an implementation of [`ByteMux`].
///
/// An idle session holds a few kB: tables and buffers are allocated on use and freed when large.
///
/// The connection differs from the trait's minimum in three points:
/// * `poll_output` may produce [`Event::Writable`], so the caller polls events after it too.
/// * A client that changes a priority tells the server (RFC 9218 section 7.1).
/// * Data of a finished stream must still be released, or dropped by `reset`.
#[derive(Debug)]
pub struct Connection {
    pub(super) config: MuxConfig,
    pub(super) input: Input,
    /// A header block that is not complete yet.
    pub(super) block: Option<Block>,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) peer: PeerSettings,
    /// True if the peer has acknowledged our first SETTINGS.
    pub(super) acknowledged: bool,
    /// The number of our SETTINGS that the peer has not acknowledged.
    pub(super) unacknowledged: u32,
    /// The window that streams are given.
    pub(super) receive_window: DynamicWindow,
    pub(super) streams: ById<Stream>,
    /// Data handed out of streams that are closed by now, still to be released.
    pub(super) unreleased: ById<usize>,
    pub(super) own_active: u32,
    pub(super) peer_active: u32,
    /// Number of the next stream of ours.
    pub(super) next_id: StreamId,
    /// Highest number that the peer has used.
    pub(super) peer_highest: StreamId,
    pub(super) own_resets: VecDeque<StreamId>,
    /// The highest peer stream that we reset and no longer remember.
    pub(super) forgotten_reset: StreamId,
    pub(super) credit: SessionCredit,
    pub(super) window: SendWindow,
    pub(super) flood: FloodBudget,
    pub(super) hint: Hint,
    pub(super) events: EventQueue,
    /// Our preface and SETTINGS are out.
    pub(super) started: bool,
    /// Whole frames to be sent in this order, before any DATA: header blocks must leave as they
    /// were encoded, and acknowledgements in step with them.
    pub(super) queue: Vec<u8>,
    /// Streams with an end to send and no data before it.
    pub(super) ending: VecDeque<StreamId>,
    /// Streams with data that their window lets out.
    pub(super) ready: Sched,
    /// Streams with credit that goes out along with other frames.
    pub(super) riders: Vec<StreamId>,
    /// The last stream of the peer that our GOAWAY promised to handle.
    pub(super) our_goodbye: Option<StreamId>,
    /// The last stream of ours that the peer's GOAWAY promised to handle.
    pub(super) their_goodbye: Option<StreamId>,
    pub(super) failed: Option<SessionError>,
}

impl Connection {
    /// Creates an endpoint of a new session. It sends nothing before [`ByteMux::poll_output`].
    pub fn new(config: MuxConfig) -> Self {
        let client = config.role == Role::Client;
        Self {
            input: Input::new(config.role),
            block: None,
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            peer: PeerSettings::new(),
            acknowledged: false,
            unacknowledged: 1,
            receive_window: DynamicWindow::new(&config),
            streams: ById::default(),
            unreleased: ById::default(),
            own_active: 0,
            peer_active: 0,
            next_id: if client { 1 } else { 2 },
            peer_highest: 0,
            own_resets: VecDeque::new(),
            forgotten_reset: 0,
            credit: SessionCredit::new(config.session_window, config.receive_budget),
            window: SendWindow::new(DEFAULT_WINDOW),
            flood: FloodBudget::new(),
            hint: Hint::default(),
            events: EventQueue::default(),
            started: false,
            queue: Vec::new(),
            ending: VecDeque::new(),
            ready: Sched::new(),
            riders: Vec::new(),
            our_goodbye: None,
            their_goodbye: None,
            failed: None,
            config,
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.config.role == Role::Client
    }

    /// Returns true if a stream of this number would be opened by us.
    pub(super) fn is_own(&self, id: StreamId) -> bool {
        (id % 2 == 1) == self.is_client()
    }

    /// Returns true if a stream of this number has not begun yet (RFC 9113 section 5.1.1).
    pub(super) fn is_idle(&self, id: StreamId) -> bool {
        if self.is_own(id) {
            id >= self.next_id
        } else {
            id > self.peer_highest
        }
    }

    /// Returns the receive windows of all streams.
    pub(super) fn stream_windows(&self) -> StreamWindows {
        let first = settings::initial_window(&self.config);
        let wanted = self.receive_window.current().min(MAX_WINDOW as u32);
        StreamWindows {
            announced: if self.config.widens_streams {
                first
            } else {
                wanted
            },
            permitted: if self.acknowledged {
                first
            } else {
                first.max(DEFAULT_WINDOW)
            },
            wanted,
        }
    }

    /// Returns true if nothing is sent before the peer's SETTINGS.
    pub(super) const fn waits_for_peer(&self) -> bool {
        self.config.widens_streams && !self.peer.known && self.failed.is_none()
    }

    pub(super) fn insert(&mut self, id: StreamId, state: State, priority: Priority) -> &mut Stream {
        *self.active_mut(id) += 1;
        let stream = Stream::new(state, priority, self.peer.initial_window);
        self.streams.entry(id).insert_entry(stream).into_mut()
    }

    fn active_mut(&mut self, id: StreamId) -> &mut u32 {
        if self.is_own(id) {
            &mut self.own_active
        } else {
            &mut self.peer_active
        }
    }

    /// Removes a stream. Bytes that the user still holds keep counting if the stream ended well.
    fn remove(&mut self, id: StreamId, ended_well: bool) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        *self.active_mut(id) -= 1;
        if let Some(key) = stream.ready {
            self.ready.remove(key);
        }
        let held = stream.credit.held();
        if ended_well && held > 0 {
            self.unreleased.insert(id, held);
        } else {
            self.credit.release(held);
        }
        Some(stream)
    }

    /// Forgets the stream if both ends have ended.
    pub(super) fn close_if_done(&mut self, id: StreamId) {
        if self
            .streams
            .get(&id)
            .is_some_and(|s| s.state == State::Closed)
        {
            self.remove(id, true);
            if is_request(id) {
                self.flood.credit_exchange();
            }
        }
    }

    /// Forgets the stream after a reset from either side, and tells the user if `event` and it
    /// knows of it.
    pub(super) fn abandon(&mut self, id: StreamId, event: Option<Reason>) {
        let Some(stream) = self.remove(id, false) else {
            return;
        };
        if let (Some(reason), true) = (event, stream.announced) {
            self.events.push_back(Event::Reset { id, reason });
        }
    }

    /// Client: charges the end of the peer's side of a push.
    pub(super) fn charge_end(&mut self, id: StreamId) {
        if self.is_client() && is_pushed(id) {
            self.flood.charge_push();
        }
    }

    /// Queues RST_STREAM and remembers it.
    pub(super) fn put_reset(&mut self, id: StreamId, reason: Reason) {
        frame::put_reset(&mut self.queue, id, reason);
        if self.own_resets.len() == MAX_OWN_RESETS
            && let Some(oldest) = self.own_resets.pop_front()
            && !self.is_own(oldest)
        {
            self.forgotten_reset = self.forgotten_reset.max(oldest);
        }
        self.own_resets.push_back(id);
    }

    /// Queues RST_STREAM for a stream on which the peer broke a rule or exceeded a limit. The flood
    /// budget charges such resets like those that the peer sends.
    pub(super) fn reset_for_fault(&mut self, id: StreamId, reason: Reason) {
        self.put_reset(id, reason);
        self.flood.count_answer();
        self.flood.charge_reset();
    }

    /// Ends a stream on which the peer broke a rule (RFC 9113 section 5.4.2).
    pub(super) fn fail_stream(&mut self, id: StreamId, reason: Reason) {
        self.reset_for_fault(id, reason);
        self.abandon(id, Some(reason));
    }

    /// Gives back the memory that only open streams or a burst of events need.
    fn free_unused(&mut self) {
        if self.events.capacity() > KEEP_EVENTS {
            self.events = EventQueue::default();
        }
        // A session with many streams at once will soon have as many again. Its table would grow
        // step by step each time.
        if self.streams.is_empty() && self.streams.capacity() <= FEW_STREAMS {
            self.free_all();
        }
    }

    /// Frees the memory of streams after the last one has ended.
    fn free_all(&mut self) {
        self.events = EventQueue::default();
        self.streams = ById::default();
        if self.ready.is_empty() {
            self.ready = Sched::new();
        }
        if self.queue.is_empty() {
            self.queue = Vec::new();
        }
    }

    /// The session cannot go on: say so, once, and send nothing after it (RFC 9113 section 5.4.1).
    fn fail(&mut self, error: SessionError) -> SessionError {
        let last = self.our_goodbye.unwrap_or(self.peer_highest);
        frame::put_go_away(&mut self.queue, last, error.reason, error.detail);
        self.failed = Some(error.clone());
        // Without streams no command queues anything more.
        self.streams = ById::default();
        self.unreleased = ById::default();
        self.ready = Sched::new();
        self.ending.clear();
        error
    }
}

/// Returns true if a stream was opened by a request: only clients open odd streams.
const fn is_request(id: StreamId) -> bool {
    id % 2 == 1
}

impl ByteMux for Connection {
    fn handle_input(&mut self, now: Instant, bytes: &[u8]) -> Result<(), SessionError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.flood.advance(now);
        self.receive(bytes).map_err(|error| self.fail(error))
    }

    fn poll_output(&mut self, out: &mut SendBuf, limit: usize) {
        self.send(out, limit);
    }
}

impl Mux for Connection {
    fn handle_timeout(&mut self, now: Instant) {
        self.flood.advance(now);
        if self.streams.is_empty() && self.events.is_empty() {
            self.free_all();
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() {
            self.free_unused();
        }
        event
    }

    fn wants_output(&self) -> bool {
        let server_preface = !self.started && !self.is_client() && !self.waits_for_peer();
        server_preface || !self.queue.is_empty() || self.has_turn()
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
        let stream = self.streams.get(&id).filter(|s| s.state.may_send());
        stream.map_or(0, |s| self.config.send_buffer.saturating_sub(s.queue.len()))
    }

    fn unsent(&self, id: StreamId) -> Unsent {
        let stream = self.streams.get(&id).filter(|s| s.state.may_send());
        stream.map_or_else(Unsent::default, |s| {
            Unsent::new(s.queue.len(), s.window.open(), self.window.open())
        })
    }

    fn backlog(&self) -> usize {
        self.queue.len()
    }

    fn set_priority(&mut self, id: StreamId, priority: Priority) {
        self.change_priority(id, priority);
        if self.is_client() && self.streams.contains_key(&id) {
            frame::put_priority_update(&mut self.queue, id, priority.0.min(7));
        }
    }

    fn reset(&mut self, id: StreamId, reason: Reason) {
        if let Some(held) = self.unreleased.remove(&id) {
            self.credit.release(held);
        } else if self.streams.contains_key(&id) {
            self.put_reset(id, reason);
            self.abandon(id, None);
        }
        self.return_session_credit();
    }

    fn reset_after_data(&mut self, id: StreamId, reason: Reason) {
        if !self.queue_reset(id, reason) {
            self.reset(id, reason);
        }
    }

    fn release(&mut self, id: StreamId, count: usize) {
        self.release_data(id, count);
    }

    fn ping(&mut self, payload: u32) -> bool {
        self.put_ping(payload);
        true
    }

    fn go_away(&mut self, reason: Reason) {
        if self.our_goodbye.is_none() && self.failed.is_none() {
            self.our_goodbye = Some(self.peer_highest);
            frame::put_go_away(&mut self.queue, self.peer_highest, reason, "");
        }
    }

    fn active(&self) -> usize {
        self.streams.len()
    }

    fn is_open(&self) -> bool {
        self.failed.is_none()
            && self.our_goodbye.is_none()
            && self.their_goodbye.is_none()
            && self.next_id <= MAX_STREAM_ID
    }

    fn hold(&mut self, _: StreamId) {}

    fn has_room(&self) -> bool {
        self.own_active < self.peer.max_streams
    }

    fn peer_takes_pushes(&self) -> bool {
        !self.is_client() && self.peer.enable_push
    }

    fn peer_extended_connect(&self) -> Option<bool> {
        self.peer.known.then_some(self.peer.extended_connect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheme;
    use bytes::Buf;

    fn carry(from: &mut Connection, to: &mut Connection) {
        let mut out = SendBuf::new();
        from.poll_output(&mut out, usize::MAX);
        let bytes = out.copy_to_bytes(out.remaining());
        to.handle_input(Instant::now(), &bytes)
            .expect("both follow the rules");
    }

    #[test]
    fn connection_without_streams_frees_their_memory() {
        assert_eq!(held_after_exchanges(3).0, [0; 3], "at once");
        let (held, later) = held_after_exchanges(9);
        assert!(held[0] >= 9, "many streams are expected again");
        assert_eq!(later, [0; 3], "at the next timeout");
    }

    /// Returns the capacities that a server holds after `count` exchanges at once, and those after
    /// a timeout.
    fn held_after_exchanges(count: usize) -> ([usize; 3], [usize; 3]) {
        let mut client = Connection::new(MuxConfig::new(Role::Client));
        let mut server = Connection::new(MuxConfig::new(Role::Server));
        let request = RequestHead::get(Scheme::Http, "h", "/");
        for _ in 0..count {
            client
                .open(&request, true, Priority::default())
                .expect("streams are allowed");
        }
        carry(&mut client, &mut server);
        let mut ids = Vec::new();
        while let Some(event) = server.poll_event() {
            if let Event::Request { id, .. } = event {
                ids.push(id);
            }
        }
        assert_eq!((ids.len(), server.active()), (count, count));
        assert!(server.streams.capacity() >= count && server.events.capacity() >= count);
        for id in ids {
            server.respond(id, &ResponseHead::new(200), false);
            server.send_data(id, Bytes::from_static(b"body"), true);
        }
        carry(&mut server, &mut client);
        assert!(server.poll_event().is_none());
        let held = |server: &Connection| {
            [
                server.streams.capacity(),
                server.events.capacity(),
                server.queue.capacity(),
            ]
        };
        let at_once = held(&server);
        server.handle_timeout(Instant::now());
        (at_once, held(&server))
    }
}
