//! The heads of pushes that wait for their readers, in a client's session.
//!
//! A gateway decides how many pushes a page has, and the reader of the page may be slow. The heads
//! that wait are therefore bounded by their weight ([`tandem_http::pushed`]). A driver also reads
//! only a part of them in one turn, and lets the readers go on before it reads more. Other sessions
//! of the thread get their turns between.

use std::cell::Cell;

use tandem_http::StreamId;
use tandem_http::pushed::{MAX_WAITING, is_pushed, weight_of_fields, weight_of_promise};

use super::stream::Inbound;

/// The weight of the heads that a driver delivers in one turn.
const PER_TURN: usize = 256 << 10;

/// The weight of the heads that wait, for one session.
#[derive(Debug, Default)]
pub(super) struct PushedHeads {
    waiting: Cell<usize>,
    /// The weight that was delivered in this turn of the driver.
    delivered: Cell<usize>,
    /// The weight that waited when the driver last looked.
    seen: Cell<usize>,
}

impl PushedHeads {
    /// Counts a head that will wait. Returns false if it must not, because too many do.
    pub(super) fn admit(&self, weight: usize) -> bool {
        let waiting = self.waiting.get() + weight;
        self.delivered.update(|delivered| delivered + weight);
        if waiting > MAX_WAITING {
            return false;
        }
        self.waiting.set(waiting);
        self.seen.set(waiting);
        true
    }

    /// Notes that a head waits no more.
    pub(super) fn take(&self, weight: usize) {
        self.waiting
            .update(|waiting| waiting.saturating_sub(weight));
    }

    /// Begins a turn of the driver. Returns true if the turn should read nothing: many heads wait,
    /// and their readers have taken some since the last turn. A reader that has stopped does not
    /// stop the session.
    pub(super) fn begin_turn(&self) -> bool {
        self.delivered.set(0);
        let waiting = self.waiting.get();
        let before = self.seen.replace(waiting);
        waiting > PER_TURN && waiting < before
    }

    /// Returns true if the turn has delivered enough heads.
    pub(super) fn ends_turn(&self) -> bool {
        self.delivered.get() >= PER_TURN
    }

    /// Returns the weight of the heads that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.get()
    }
}

impl Inbound {
    /// Returns the weight of input as a pushed head, for a stream of a client.
    pub(super) fn pushed_weight(&self, id: StreamId) -> usize {
        match self {
            Self::Pushed { request, .. } => weight_of_promise(request),
            Self::Response(head) | Self::Informational(head) if is_pushed(id) => {
                weight_of_fields(&head.fields)
            }
            Self::Trailers(fields) if is_pushed(id) => weight_of_fields(fields),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_waits_only_for_readers_that_go_on() {
        let heads = PushedHeads::default();
        assert!(!heads.begin_turn());
        assert!(heads.admit(2 * PER_TURN) && heads.ends_turn());
        assert!(!heads.begin_turn(), "no reader has taken anything");
        assert!(!heads.ends_turn());
        heads.take(10);
        assert!(heads.begin_turn());
        assert!(!heads.begin_turn(), "the reader has stopped");
        heads.take(PER_TURN);
        assert!(!heads.begin_turn(), "few heads wait");
    }

    #[test]
    fn refused_heads_end_the_turn_and_do_not_wait() {
        let heads = PushedHeads::default();
        assert!(heads.admit(MAX_WAITING));
        assert!(!heads.begin_turn());
        assert!(!heads.admit(PER_TURN));
        assert_eq!(heads.waiting(), MAX_WAITING);
        assert!(heads.ends_turn());
    }
}
