//! A request or a push, and the receiving half of a stream of the carrier.

use std::collections::VecDeque;

use super::arriving::HeadProgress;
use super::code::Code;
use super::control::is_request;
use super::frame::FrameReader;
use super::varint::Partial;
use crate::expected::{Expected, ResponseTo};
use crate::outgoing::{SendQueue, Tail};
use crate::sched::{Key, Sched, Sent};
use crate::{Priority, RequestHead, ResponseHead, StreamId};

/// The part of the peer's message that may come next (RFC 9114 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The head, or an interim response.
    Head,
    /// Content, or trailers.
    Content,
    /// Only the end.
    Trailers,
    /// Only the end, of a message that has broken off with this code.
    Broken(Code),
    /// The end, which has come.
    Ended,
}

/// A head that waits to be encoded. It is encoded as it leaves, when the carrier's stream is open
/// and the peer has acknowledged as many insertions as possible.
#[derive(Debug)]
pub(super) enum Head {
    /// The type and the number of a push, which begin its stream.
    Push,
    Request(RequestHead),
    Response(ResponseHead),
    Promise(u64, RequestHead),
}

/// A request or a push that has not ended.
#[derive(Debug)]
pub(super) struct Stream {
    /// The stream of the carrier, once it is open.
    pub(super) carrier: Option<u64>,
    pub(super) phase: Phase,
    /// True until our message has been sent.
    pub(super) sending: bool,
    /// True if the final head that we send was given.
    pub(super) head_given: bool,
    /// True if a final response has begun to arrive.
    pub(super) answered: bool,
    pub(super) request: ResponseTo,
    /// True for a request that may be sent before the handshake of the carrier is over.
    pub(super) early: bool,
    /// True if the peer may send only content: the stream is a tunnel of CONNECT.
    pub(super) tunnel: bool,
    /// A request that may turn out to have no content.
    pub(super) undecided: Option<(RequestHead, Priority)>,
    pub(super) expected: Expected,
    /// The bytes that the user has not released.
    pub(super) held: usize,
    /// True while the user holds so much that the carrier's stream is not read.
    pub(super) paused: bool,
    pub(super) heads: VecDeque<Head>,
    pub(super) queue: SendQueue,
    pub(super) tail: Tail,
    /// True if `send_room` was 0 and the user was not told since that there is room.
    pub(super) full: bool,
    pub(super) priority: Priority,
    pub(super) attained: Sent,
    /// The position among the ready streams, if the stream is one of them.
    pub(super) ready: Option<Key>,
    /// True while the caller writes output of the stream.
    pub(super) busy: bool,
    /// True if the request has semantics of datagrams.
    pub(super) takes_datagrams: bool,
    /// The datagrams of the stream, if it is a tunnel for them.
    pub(super) datagrams: Option<Box<super::datagram::Tunnel>>,
}

impl Stream {
    pub(super) fn new(priority: Priority) -> Self {
        Self {
            carrier: None,
            phase: Phase::Head,
            sending: true,
            head_given: false,
            answered: false,
            request: ResponseTo::default(),
            early: false,
            tunnel: false,
            undecided: None,
            expected: Expected::default(),
            held: 0,
            paused: false,
            heads: VecDeque::new(),
            queue: SendQueue::default(),
            tail: Tail::More,
            full: false,
            priority,
            attained: Sent::default(),
            ready: None,
            busy: false,
            takes_datagrams: false,
            datagrams: None,
        }
    }

    /// Returns the priority of the content that is left.
    pub(super) fn order(&self) -> Priority {
        self.priority.after(self.attained.total())
    }

    /// Returns the position among the ready streams. Heads of responses and promises go before all
    /// content, and urgent heads before others. The head of a push goes with its content.
    pub(super) fn key(&mut self, id: StreamId, order: &Sched) -> Key {
        if self.heads.is_empty() || !is_request(id) {
            let urgency = self.order().0.min(7) + 1;
            order.key(&mut self.attained, urgency, id)
        } else {
            Key {
                urgency: 0,
                attained: self.priority.0.into(),
                id,
            }
        }
    }

    /// Returns true if the stream has something to send.
    pub(super) fn has_output(&self) -> bool {
        let content = self.queue.len() > 0
            || matches!(self.tail, Tail::End | Tail::Trailers(_) | Tail::Reset(_));
        self.sending && (!self.heads.is_empty() || (self.head_given && content))
    }

    /// Returns true if both messages have ended.
    pub(super) fn is_done(&self) -> bool {
        !self.sending && self.phase == Phase::Ended
    }
}

/// The use of a stream on which the peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A unidirectional stream whose type has not arrived.
    Untyped,
    Control,
    Encoder,
    Decoder,
    /// A stream of a client whose request has not arrived.
    NewRequest,
    /// A request, or the response to one of ours.
    Message(StreamId),
    /// A push stream whose number has not arrived.
    UnnamedPush,
    /// The response of a push.
    Push(u64),
}

/// The purpose of a field section.
#[derive(Clone, Copy, Debug)]
pub(super) enum SectionUse {
    Headers,
    /// The promise of a push.
    Promise(u64),
}

/// The reason for which the input of a stream waits.
#[derive(Debug)]
pub(super) enum Wait {
    /// A push stream came before its promise (RFC 9114 section 4.6).
    Promise,
    /// A field section needs insertions that are on their way.
    Insertions(SectionUse, Vec<u8>),
}

/// The receiving half of a stream of the carrier.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) source: Source,
    pub(super) number: Partial,
    pub(super) reader: FrameReader,
    pub(super) wait: Option<Wait>,
    /// The input behind the part that waits. The caller passes no more than one read.
    pub(super) pending: Vec<u8>,
    /// True if the peer has ended the stream.
    pub(super) ended: bool,
    /// The progress of a request that does not come, since the first look.
    pub(super) seen: Option<HeadProgress>,
}

impl Incoming {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            number: Partial::default(),
            reader: FrameReader::default(),
            wait: None,
            pending: Vec::new(),
            ended: false,
            seen: None,
        }
    }

    /// Returns the number of the exchange or push, if the stream belongs to one.
    pub(super) fn message(&self) -> Option<StreamId> {
        match self.source {
            Source::Message(id) => Some(id),
            Source::Push(push) => Some(super::push::stream_of(push)),
            _ => None,
        }
    }

    /// Returns true until the type of a unidirectional stream has arrived, and that of a push with
    /// its number.
    pub(super) const fn is_untyped(&self) -> bool {
        matches!(self.source, Source::Untyped | Source::UnnamedPush)
    }

    /// Returns true if the session cannot exist without the stream.
    pub(super) const fn is_critical(&self) -> bool {
        matches!(
            self.source,
            Source::Control | Source::Encoder | Source::Decoder
        )
    }
}

/// The use of a stream on which we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendingStream {
    Critical(usize),
    Stream(StreamId),
}

/// A stream that ends only with the session: control, QPACK encoder or QPACK decoder.
#[derive(Debug, Default)]
pub(super) struct Critical {
    /// The bytes that wait, beginning with the type of the stream.
    pub(super) out: Vec<u8>,
    /// The stream of the carrier, once it is open.
    pub(super) carrier: Option<u64>,
    /// True if the caller was asked to open the stream.
    pub(super) asked: bool,
    /// True while the caller writes output of the stream.
    pub(super) busy: bool,
}

/// The indexes of our critical streams, in the order in which they are opened.
pub(super) const CONTROL: usize = 0;
pub(super) const ENCODER: usize = 1;
pub(super) const DECODER: usize = 2;

/// The types of unidirectional streams (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub(super) const CRITICAL_TYPES: [u8; 3] = [0x00, 0x02, 0x03];
pub(super) const PUSH_TYPE: u64 = 0x01;

/// The error of a stream that ends before the session (RFC 9114 section 6.2.1).
pub(super) const CLOSED_CRITICAL: super::code::Fault = super::code::Fault::new(
    Code::CLOSED_CRITICAL_STREAM,
    "a critical stream was closed, as by an end without HTTP/3",
);
