//! A stream: its state, its windows and its unsent data. Draft section 2.3.
//!
//! ```text
//!                    SYN_STREAM sent or received
//!                               │
//!          FIN on it, sent      ▼       FIN on it, received, or
//!        ┌────────────────── (none) ──────────────────────┐  a push of ours
//!        │                      ▼                         │
//!        │      FIN sent   ┌────────┐   FIN received      │
//!        ├◀────────────────│  Open  │────────────────────▶┤
//!        ▼                 └────────┘                     ▼
//! ┌──────────────────┐         │               ┌───────────────────┐
//! │ HalfClosedLocal  │         │               │ HalfClosedRemote  │
//! └──────────────────┘         │               └───────────────────┘
//!        │ FIN received        │ RST_STREAM              │ FIN sent
//!        │ or RST_STREAM       │ either way              │ or RST_STREAM
//!        │                     ▼                         │
//!        │                 ┌────────┐                    │
//!        └────────────────▶│ Closed │◀───────────────────┘
//!                          └────────┘
//! ```
//!
//! A closed stream stays for as long as its user holds data of it, so that the session's memory is
//! counted right.

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_http::expected::{Expected, ResponseTo};
use tandem_http::sched::{Key, Sched, Sent};
use tandem_http::{Fields, Priority, Reason, Scheme, StreamId};

use crate::flow::{ReceiveWindow, SendWindow};
use crate::frame::Data;
use crate::header_block::Block;

/// The sides of a stream that may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Both sides may send.
    Open,
    /// The peer may send.
    HalfClosedLocal,
    /// Our side may send.
    HalfClosedRemote,
    /// Neither side may send.
    Closed,
}

impl State {
    pub(crate) const fn may_send(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedRemote)
    }

    pub(crate) const fn may_receive(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedLocal)
    }

    pub(crate) const fn after_fin_sent(self) -> Self {
        match self {
            Self::Open | Self::HalfClosedLocal => Self::HalfClosedLocal,
            Self::HalfClosedRemote | Self::Closed => Self::Closed,
        }
    }

    pub(crate) const fn after_fin_received(self) -> Self {
        match self {
            Self::Open | Self::HalfClosedRemote => Self::HalfClosedRemote,
            Self::HalfClosedLocal | Self::Closed => Self::Closed,
        }
    }
}

/// The way our side of a stream ends, after the queued data.
#[derive(Debug)]
pub(crate) enum Finish {
    /// FIN.
    Fin,
    /// These fields, then FIN.
    Trailers(Block),
    /// RST_STREAM, after an incomplete response.
    Reset(Reason),
}

/// The purpose of a stream.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A request of ours. Sessions that take pushes keep the parts of it that pushes inherit.
    OwnRequest(Option<Box<Asked>>),
    /// A request of the peer.
    PeerRequest,
    /// A push of ours, for the peer's request on `parent`.
    OwnPush {
        /// The stream of that request.
        parent: StreamId,
    },
    /// The peer pushes. The head is gathered until the first data.
    PeerPush(Option<Box<PushHead>>),
}

/// The parts of a request that its pushes inherit.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) scheme: Scheme,
    pub(crate) authority: String,
    pub(crate) fields: Fields,
}

/// The head of a pushed response, of which parts may come in several frames.
#[derive(Debug, Default)]
pub(crate) struct PushHead {
    pub(crate) status: Option<u16>,
    pub(crate) version: bool,
    pub(crate) fields: Fields,
}

/// A stream of a session.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) kind: Kind,
    pub(crate) state: State,
    /// Own request: SYN_REPLY has come. Peer's request or own push: the response head is given.
    pub(crate) replied: bool,

    /// 0 (first) to 7.
    pub(crate) urgency: u8,
    /// Bytes of DATA sent.
    pub(crate) attained: Sent,
    /// The position in the sending order, while the stream is in it.
    pub(crate) key: Option<Key>,
    pub(crate) send: SendWindow,
    pub(crate) queue: VecDeque<Bytes>,
    pub(crate) queued: usize,
    /// The queue reached its limit and its user waits for [`tandem_http::Event::Writable`].
    pub(crate) full: bool,
    pub(crate) finish: Option<Finish>,

    pub(crate) receive: ReceiveWindow,
    /// Bytes given to the user and not released.
    pub(crate) held: usize,
    /// True if further data is useless: the session counts, credits and drops it.
    pub(crate) discard: bool,
    /// The request of ours that the peer answers.
    pub(crate) request: ResponseTo,
    /// The weight of the head or the trailers of a push that are still gathered.
    pub(crate) gathered: usize,
    /// The content that is still to come.
    pub(crate) expected: Expected,
    /// Fields of HEADERS after the head.
    pub(crate) trailers: Fields,
}

impl Stream {
    pub(crate) fn new(
        kind: Kind,
        state: State,
        urgency: u8,
        send: SendWindow,
        receive: ReceiveWindow,
    ) -> Self {
        Self {
            kind,
            state,
            replied: false,
            urgency,
            attained: Sent::default(),
            key: None,
            send,
            queue: VecDeque::new(),
            queued: 0,
            full: false,
            finish: None,
            receive,
            held: 0,
            discard: false,
            request: ResponseTo::default(),
            gathered: 0,
            expected: Expected::default(),
            trailers: Fields::new(),
        }
    }

    /// Notes the content of a DATA frame. Returns false if the length is wrong.
    pub(crate) fn takes(&mut self, data: Data) -> bool {
        let fits = self.expected.take(data.len as usize).is_ok();
        fits && (!data.fin || self.expected.end().is_ok())
    }

    /// Returns true if our side opened the stream.
    pub(crate) const fn is_own(&self) -> bool {
        matches!(self.kind, Kind::OwnRequest(_) | Kind::OwnPush { .. })
    }

    /// Returns true if the user may still queue data.
    pub(crate) const fn takes_data(&self) -> bool {
        self.state.may_send() && self.finish.is_none()
    }

    /// Returns true if a body may follow: the head is queued or sent.
    pub(crate) const fn head_given(&self) -> bool {
        self.replied || matches!(self.kind, Kind::OwnRequest(_))
    }

    /// Returns true if only the end of our side is left to send.
    pub(crate) const fn only_end_left(&self) -> bool {
        self.queued == 0 && self.finish.is_some() && self.state.may_send() && self.head_given()
    }

    /// Returns the position in the sending order, if the stream has data that its window permits.
    pub(crate) fn wanted_key(&mut self, id: StreamId, order: &Sched) -> Option<Key> {
        let ready =
            self.queued > 0 && self.send.room() > 0 && self.state.may_send() && self.head_given();
        let urgency = Priority(self.urgency).after(self.attained.total()).0;
        ready.then(|| order.key(&mut self.attained, urgency, id))
    }

    /// Forgets everything that is only of use while the stream lives.
    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
        self.queue = VecDeque::new();
        self.queued = 0;
        self.finish = None;
        self.trailers = Fields::new();
        self.kind = match std::mem::replace(&mut self.kind, Kind::PeerRequest) {
            Kind::OwnRequest(_) => Kind::OwnRequest(None),
            Kind::PeerPush(_) => Kind::PeerPush(None),
            kind @ (Kind::PeerRequest | Kind::OwnPush { .. }) => kind,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_fins_close() {
        use State::{Closed, HalfClosedLocal, HalfClosedRemote, Open};
        assert_eq!(Open.after_fin_sent(), HalfClosedLocal);
        assert_eq!(Open.after_fin_received(), HalfClosedRemote);
        assert_eq!(HalfClosedLocal.after_fin_received(), Closed);
        assert_eq!(HalfClosedRemote.after_fin_sent(), Closed);
        assert!(HalfClosedLocal.may_receive() && !HalfClosedLocal.may_send());
        assert!(HalfClosedRemote.may_send() && !HalfClosedRemote.may_receive());
    }
}
