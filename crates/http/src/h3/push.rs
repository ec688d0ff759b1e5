//! Server push (RFC 9114 section 4.6): the numbers of pushes, promises and cancellations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Command;
use super::code::{Code, Fault};
use super::connection::Connection;
use super::frame;
use super::incoming::Fate;
use super::opening::Opening;
use super::stream::{CONTROL, Head, Incoming, Phase, Source, Stream, Wait};
use crate::expected::ResponseTo;
use crate::head::{HeadReader, can_write_request};
use crate::mux::OpenError;
use crate::{Event, Method, Priority, Reason, RequestHead, StreamId};

/// The largest number of a push. A stream's number is a `u32`.
const MAX_PUSH: u64 = (1 << 31) - 2;
/// The distance between the oldest push that has not ended and the newest.
const MAX_SPREAD: u64 = 4096;
/// The pushes behind the core whose priority can still change.
const MAX_DEPARTED: usize = 256;

/// Returns the stream of a push.
pub(super) const fn stream_of(push: u64) -> StreamId {
    (push as StreamId) * 2 + 2
}

const fn push_of(id: StreamId) -> u64 {
    (id / 2 - 1) as u64
}

/// The numbers of pushes.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// The number that the next push gets; on a client, one more than the highest promised number.
    pub(super) next: u64,
    /// The first number that the client does not permit. It is 0 until pushes are permitted.
    pub(super) limit: u64,
    /// Client: all pushes below this number have ended.
    ended_below: u64,
    /// Client: the pushes that have ended, above `ended_below`.
    ended: BTreeSet<u64>,
    /// Client: the number of pushes that have ended.
    ended_count: u64,
    /// Client: streams of pushes that were not promised yet.
    early: BTreeMap<u64, u64>,
    /// Client: hashes of the promised requests.
    promised: BTreeMap<u64, u64>,
    /// Server: the pushes that have no stream of the carrier, or have not sent there.
    pub(super) opening: Opening,
    /// Server: the latest pushes that the carrier has taken completely, with its streams.
    departed: VecDeque<(u64, u64)>,
}

impl Pushes {
    /// Server: returns the carrier's stream of a push that the carrier has taken completely.
    pub(super) fn departed(&self, push: u64) -> Option<u64> {
        let mut departed = self.departed.iter();
        let (_, stream) = departed.find(|(departed, _)| *departed == push)?;
        Some(*stream)
    }

    fn has_ended(&self, push: u64) -> bool {
        push < self.ended_below || self.ended.contains(&push)
    }

    fn end(&mut self, push: u64) {
        self.promised.remove(&push);
        if push >= self.ended_below && self.ended.insert(push) {
            self.ended_count += 1;
            while self.ended.remove(&self.ended_below) {
                self.ended_below += 1;
            }
        }
    }
}

impl Connection {
    /// Client: permits as many pushes as streams, in larger steps.
    pub(super) fn permit_pushes(&mut self) {
        let streams = u64::from(self.config.max_streams);
        if !self.is_client() || !self.config.push || streams == 0 {
            return;
        }
        let pushes = &mut self.pushes;
        let limit = (pushes.ended_count + streams)
            .min(pushes.ended_below + MAX_SPREAD + streams)
            .min(MAX_PUSH + 1);
        if pushes.limit == 0 || limit - pushes.limit > streams / 2 {
            pushes.limit = limit;
            frame::put_number(
                &mut self.critical[CONTROL].out,
                frame::MAX_PUSH_ID,
                limit - 1,
            );
        }
    }

    /// Server: the client permits more pushes.
    pub(super) fn max_push_id(&mut self, push: u64) -> Result<(), Fault> {
        let limit = push.min(MAX_PUSH) + 1;
        if limit < self.pushes.limit {
            return Err(Fault::new(Code::ID_ERROR, "MAX_PUSH_ID falls"));
        }
        self.pushes.limit = limit;
        Ok(())
    }

    /// Client: a stream has told that it carries a push.
    pub(super) fn push_arrived(
        &mut self,
        carrier: u64,
        incoming: &mut Incoming,
        push: u64,
    ) -> Result<Fate, Fault> {
        let id = stream_of(self.check_push(push)?);
        incoming.source = Source::Push(push);
        if self.pushes.has_ended(push) {
            let code = Code::REQUEST_CANCELLED;
            self.commands.push_back(Command::Stop {
                stream: carrier,
                code,
            });
            return Ok(Fate::Drop);
        }
        let twice = Fault::new(Code::ID_ERROR, "two streams for one push");
        match self.streams.get_mut(&id) {
            Some(stream) if stream.carrier.is_some() => return Err(twice),
            Some(stream) => stream.carrier = Some(carrier),
            None if self.pushes.early.insert(push, carrier).is_some() => return Err(twice),
            None => incoming.wait = Some(Wait::Promise),
        }
        Ok(Fate::Keep)
    }

    /// Charges a promise or the head of a pushed response. Returns false if too many wait for their
    /// reader.
    pub(super) fn admits_pushed_head(&mut self, reader: &HeadReader) -> bool {
        let size = self.config.max_header_list - reader.room();
        self.events.admits_head(size, &mut self.flood)
    }

    fn check_push(&self, push: u64) -> Result<u64, Fault> {
        if push < self.pushes.limit {
            Ok(push)
        } else {
            Err(Fault::new(Code::ID_ERROR, "a push that was not permitted"))
        }
    }

    /// Client: RFC 9114 section 7.2.5.
    pub(super) fn promise(
        &mut self,
        parent: StreamId,
        push: u64,
        reader: HeadReader,
    ) -> Result<(), Fault> {
        let id = stream_of(self.check_push(push)?);
        self.pushes.next = self.pushes.next.max(push + 1);
        if self.pushes.has_ended(push) {
            self.flood.charge_idle();
            return Ok(());
        }
        let has_room = self.admits_pushed_head(&reader);
        let request = match reader.into_request(&mut self.hint) {
            Ok(request) if is_pushable(&request.head) => request,
            _ => {
                self.flood.charge_reset();
                self.refuse_push(push);
                return Ok(());
            }
        };
        let hash = hash(&request.head);
        if let Some(known) = self.pushes.promised.get(&push) {
            self.flood.charge_idle();
            return if *known == hash {
                Ok(())
            } else {
                let detail = "two promises of one push differ";
                Err(Fault::new(Code::GENERAL_PROTOCOL_ERROR, detail))
            };
        }
        let is_full = !has_room || self.peer_active >= self.config.max_streams;
        if is_full || self.our_goodbye.is_some() {
            self.flood.charge_reset();
            self.refuse_push(push);
            return Ok(());
        }
        self.pushes.promised.insert(push, hash);
        let early = self.pushes.early.remove(&push);
        let stream = Stream {
            carrier: early,
            sending: false,
            request: ResponseTo::of(&request.head.method),
            ..Stream::new(request.priority)
        };
        self.streams.insert(id, stream);
        self.peer_active += 1;
        let request = request.head;
        self.events.push_back(Event::Push {
            parent,
            id,
            request,
        });
        match early {
            Some(carrier) => self.resume(carrier),
            None => Ok(()),
        }
    }

    /// Client: gives up a push that has no stream in use.
    fn refuse_push(&mut self, push: u64) {
        match self.pushes.early.remove(&push) {
            Some(stream) => self.drop_push_stream(stream),
            None => self.put_cancel_push(push),
        }
        self.pushes.end(push);
        self.permit_pushes();
    }

    fn drop_push_stream(&mut self, stream: u64) {
        self.incoming.remove(&stream);
        self.decoder.cancel(stream);
        let code = Code::REQUEST_CANCELLED;
        self.commands.push_back(Command::Stop { stream, code });
    }

    fn put_cancel_push(&mut self, push: u64) {
        frame::put_number(&mut self.critical[CONTROL].out, frame::CANCEL_PUSH, push);
    }

    /// RFC 9114 section 7.2.3.
    pub(super) fn cancel_push(&mut self, push: u64) -> Result<(), Fault> {
        if !self.is_client() {
            if push >= self.pushes.next {
                return Err(Fault::new(
                    Code::ID_ERROR,
                    "cancels a push that was not promised",
                ));
            }
            self.flood.charge_reset();
            let id = stream_of(push);
            self.end_stream(id, Code::REQUEST_CANCELLED, false);
            self.abandon(id, Some(Reason::Cancel));
            return Ok(());
        }
        self.check_push(push)?;
        if let Some(stream) = self.pushes.early.remove(&push) {
            self.drop_push_stream(stream);
        }
        let id = stream_of(push);
        if self.streams.contains_key(&id) {
            self.end_stream(id, Code::REQUEST_CANCELLED, true);
            self.abandon(id, Some(Reason::Cancel));
        } else {
            self.pushes.end(push);
            self.permit_pushes();
        }
        Ok(())
    }

    /// Client: the stream of a push was reset.
    pub(super) fn push_ended_early(&mut self, push: u64, code: Code) {
        self.pushes.early.remove(&push);
        let id = stream_of(push);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.carrier = None;
            self.abandon(id, Some(code.reason()));
        } else {
            self.pushes.end(push);
            self.permit_pushes();
        }
    }

    /// Notes that a push has no stream any more.
    pub(super) fn push_closed(&mut self, id: StreamId) {
        if self.is_client() {
            self.pushes.end(push_of(id));
            self.permit_pushes();
        }
    }

    /// Tells the peer that a push without a stream of the carrier is given up.
    pub(super) fn cancel_unsent_push(&mut self, id: StreamId) {
        self.put_cancel_push(push_of(id));
    }

    /// Server: RFC 9114 section 4.6.
    pub(super) fn send_promise(
        &mut self,
        parent: StreamId,
        request: &RequestHead,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if !crate::Mux::is_open(self) {
            return Err(OpenError::Closing);
        }
        let open = self
            .streams
            .get(&parent)
            .is_some_and(Stream::takes_promises);
        if self.is_client() || self.pushes.limit == 0 || !open {
            return Err(OpenError::NoPush);
        }
        let push = self.pushes.next;
        if push >= self.pushes.limit {
            return Err(OpenError::Busy);
        }
        if !is_pushable(request) || !can_write_request(request, self.peer.max_header_list) {
            return Err(OpenError::BadHead);
        }
        self.pushes.next += 1;
        let id = stream_of(push);
        let stream = Stream {
            phase: Phase::Ended,
            request: ResponseTo::of(&request.method),
            ..Stream::new(priority)
        };
        self.streams.insert(id, stream);
        if let Some(parent) = self.streams.get_mut(&parent) {
            parent.heads.push_back(Head::Promise(push, request.clone()));
        }
        self.reschedule(parent);
        Ok(id)
    }

    /// Server: notes that the carrier takes the rest of a push. A request can still raise it there.
    pub(super) fn push_departs(&mut self, id: StreamId, carrier: u64) {
        let departed = &mut self.pushes.departed;
        if departed.len() == MAX_DEPARTED {
            departed.pop_front();
        }
        departed.push_back((push_of(id), carrier));
    }

    /// Returns the bytes before the first frame of a push stream.
    pub(super) fn push_lead(id: StreamId) -> Vec<u8> {
        let mut lead = Vec::with_capacity(9);
        super::varint::put(&mut lead, super::stream::PUSH_TYPE);
        super::varint::put(&mut lead, push_of(id));
        lead
    }

    /// Returns the number of a push, as PRIORITY_UPDATE names it.
    pub(super) const fn push_number(id: StreamId) -> u64 {
        push_of(id)
    }
}

fn is_pushable(request: &RequestHead) -> bool {
    matches!(request.method, Method::Get | Method::Head)
}

fn hash(head: &RequestHead) -> u64 {
    let mut hasher = DefaultHasher::new();
    (
        &head.method,
        head.scheme.as_str(),
        &head.authority,
        &head.path,
    )
        .hash(&mut hasher);
    for field in head.fields.iter() {
        (field.name, field.value).hash(&mut hasher);
    }
    hasher.finish()
}
