//! A stream: its state (RFC 9113 section 5.1), its unsent data and its windows.

use super::flow::{SendWindow, StreamCredit};
use crate::expected::{Expected, ResponseTo};
use crate::outgoing::{SendQueue, Tail};
use crate::sched::{Key, Sched, Sent};
use crate::{Priority, StreamId};

/// States of RFC 9113 section 5.1. Idle and closed streams are not kept.
///
/// ```text
///                    push sent                 push received
///            ┌──────── idle ─────────────────────────┐
///            ▼           │ HEADERS                   ▼
///      ReservedLocal     ▼                    ReservedRemote
///            │          Open                         │
///    HEADERS │     ours │ │ theirs                   │ HEADERS
///            │      end │ │ end                      │
///            ▼          ▼ ▼                          ▼
///      HalfClosedRemote     HalfClosedLocal ◀────────┘
///            │ our end          │ their end
///            └────▶ closed ◀────┘      (RST_STREAM leads there from anywhere)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ReservedLocal,
    ReservedRemote,
    Open,
    HalfClosedLocal,
    HalfClosedRemote,
    Closed,
}

impl State {
    /// Returns true if we may still send.
    pub(super) const fn may_send(self) -> bool {
        matches!(
            self,
            Self::Open | Self::HalfClosedRemote | Self::ReservedLocal
        )
    }

    /// Returns true if the peer may still send.
    pub(super) const fn may_receive(self) -> bool {
        matches!(
            self,
            Self::Open | Self::HalfClosedLocal | Self::ReservedRemote
        )
    }

    const fn sent_end(self) -> Self {
        if matches!(self, Self::Open) {
            Self::HalfClosedLocal
        } else {
            Self::Closed
        }
    }

    const fn received_end(self) -> Self {
        if matches!(self, Self::Open) {
            Self::HalfClosedRemote
        } else {
            Self::Closed
        }
    }
}

/// A stream that is neither idle nor closed.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) state: State,
    /// True if our final head was sent; `head_received` is the same for the peer.
    pub(super) head_sent: bool,
    pub(super) head_received: bool,
    pub(super) request: ResponseTo,
    /// True if an event told the user of this stream.
    pub(super) announced: bool,
    pub(super) expected: Expected,
    pub(super) credit: StreamCredit,
    /// True if the stream's credit may go along with other frames.
    pub(super) riding: bool,
    pub(super) window: SendWindow,
    pub(super) queue: SendQueue,
    pub(super) tail: Tail,
    /// True if `send_room` was 0 and the user was not told since that there is room.
    pub(super) full: bool,
    pub(super) priority: Priority,
    attained: Sent,
    /// The position among the ready streams, if the stream is one of them.
    pub(super) ready: Option<Key>,
    /// It waits to send an end without data.
    pub(super) ending: bool,
}

impl Stream {
    pub(super) fn new(state: State, priority: Priority, window: u32) -> Self {
        Self {
            state,
            head_sent: false,
            head_received: false,
            request: ResponseTo::default(),
            announced: false,
            expected: Expected::default(),
            credit: StreamCredit::default(),
            riding: false,
            window: SendWindow::new(window),
            queue: SendQueue::default(),
            tail: Tail::More,
            full: false,
            priority,
            attained: Sent::default(),
            ready: None,
            ending: false,
        }
    }

    /// Returns the position among the ready streams.
    pub(super) fn key(&mut self, id: StreamId, order: &Sched) -> Key {
        let urgency = self.priority.after(self.attained.total()).0.min(7);
        order.key(&mut self.attained, urgency, id)
    }

    /// Returns true if the stream has data and the window for some of it.
    pub(super) fn has_sendable_data(&self) -> bool {
        self.queue.len() > 0 && self.window.open() > 0
    }

    pub(super) fn sent(&mut self, count: usize) {
        self.window.spend(count);
        self.attained.add(count);
    }

    pub(super) fn sent_end(&mut self) {
        self.tail = Tail::Sent;
        self.state = self.state.sent_end();
    }

    pub(super) fn received_end(&mut self) {
        self.state = self.state.received_end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_of_a_stream() {
        use State::{
            Closed, HalfClosedLocal, HalfClosedRemote, Open, ReservedLocal, ReservedRemote,
        };
        let table = [
            (Open, HalfClosedLocal, HalfClosedRemote),
            (HalfClosedLocal, Closed, Closed),
            (HalfClosedRemote, Closed, Closed),
            (ReservedLocal, Closed, Closed),
            (ReservedRemote, Closed, Closed),
        ];
        for (state, sent, received) in table {
            assert_eq!(
                (state.sent_end(), state.received_end()),
                (sent, received),
                "{state:?}"
            );
        }
        assert!(!Closed.may_send() && !Closed.may_receive());
    }
}
