//! The streams of the carrier that the session opens, and the order of pushes among them.
//!
//! A stream that is open exists for the client as soon as the server sends on a later one, even
//! without a byte of its own. The server therefore opens few streams ahead of their bytes, and the
//! most urgent ones first. A push that waits for its stream costs the client nothing.

use std::collections::BTreeSet;

use super::connection::Connection;
use super::control::is_request;
use super::stream::{Incoming, SendingStream, Source};
use super::{Command, Direction};
use crate::{Priority, StreamId};

/// The most streams that are open and have sent nothing, among those at least as urgent as a new
/// one.
const MAX_FRESH: usize = 16;
/// The places beyond these that each urgency has and less urgent pushes do not. The most urgent
/// pushes thus find places, and at most 58 streams have sent nothing. Clients that limit streams
/// without a type permit 64 or more, and three of them are those of the session.
const RESERVED: usize = 6;

/// Urgency, and number of the push.
type Place = (u8, StreamId);

/// The pushes whose responses have not begun to leave.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// The pushes that wait for a stream of the carrier.
    waiting: BTreeSet<Place>,
    /// The pushes with a stream that has been given nothing to send.
    fresh: BTreeSet<Place>,
}

impl Opening {
    /// Adds a push that has a response.
    pub(super) fn add(&mut self, priority: Priority, id: StreamId) {
        self.waiting.insert((priority.0, id));
    }

    /// Returns true if a push waits for a stream of the carrier.
    pub(super) fn wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns true if the most urgent push that waits may have a stream now. Less urgent pushes
    /// alone never prevent it.
    pub(super) fn may_open(&self) -> bool {
        let first = self.waiting.first();
        first.is_some_and(|(urgency, _)| {
            let before = self.fresh.range(..=(*urgency, StreamId::MAX));
            let above_last = usize::from(7_u8.saturating_sub(*urgency));
            before.count() < MAX_FRESH && self.fresh.len() < MAX_FRESH + above_last * RESERVED
        })
    }

    /// Takes the most urgent push that waits, which has a stream now.
    pub(super) fn open_next(&mut self) -> Option<StreamId> {
        let place = self.waiting.pop_first()?;
        self.fresh.insert(place);
        Some(place.1)
    }

    /// Notes that a push has sent on its stream, or has ended.
    pub(super) fn forget(&mut self, priority: Priority, id: StreamId) {
        let place = (priority.0, id);
        if !self.fresh.remove(&place) {
            self.waiting.remove(&place);
        }
    }

    /// Notes a new priority of a push, if it is one of these.
    pub(super) fn move_to(&mut self, priority: Priority, before: Priority, id: StreamId) {
        for pushes in [&mut self.waiting, &mut self.fresh] {
            if pushes.remove(&(before.0, id)) {
                pushes.insert((priority.0, id));
            }
        }
    }
}

impl Connection {
    /// Returns true if the caller should open a stream of the carrier in this direction. The
    /// session's first bytes need one.
    pub fn wants_stream(&mut self, direction: Direction) -> bool {
        if self.failed.is_some() {
            return false;
        }
        self.open_critical();
        let is_uni = direction == Direction::Unidirectional;
        self.next_to_open(direction).is_some() || (is_uni && self.pushes.opening.may_open())
    }

    /// Takes the stream that [`Connection::wants_stream`] asked for.
    pub fn handle_opened(&mut self, direction: Direction, stream: u64) {
        let next = self.next_to_open(direction);
        let queue = &mut self.opening[direction as usize];
        match next.and_then(|at| queue.remove(at)) {
            None if direction == Direction::Unidirectional => {
                if let Some(id) = self.pushes.opening.open_next() {
                    self.attach(id, stream);
                }
            }
            None => {}
            Some(SendingStream::Critical(index)) => {
                self.critical[index].carrier = Some(stream);
                self.senders.insert(stream, SendingStream::Critical(index));
                let priority = Priority(0);
                self.commands
                    .push_back(Command::Prioritise { stream, priority });
            }
            Some(SendingStream::Stream(id)) => {
                if is_request(id) {
                    let incoming = Incoming::new(Source::Message(id));
                    self.incoming.insert(stream, incoming);
                }
                self.attach(id, stream);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_without_bytes_are_bounded_in_total() {
        let mut opening = Opening::default();
        let mut id = 0;
        for urgency in (0..8).rev() {
            for _ in 0..100 {
                id += 2;
                opening.add(Priority(urgency), id);
            }
            let before = opening.fresh.len();
            while opening.may_open() {
                opening.open_next().expect("a push that waits");
            }
            let opened = opening.fresh.len() - before;
            assert!(opened >= RESERVED, "{opened} of urgency {urgency}");
        }
        let most = opening.fresh.len();
        assert!(most + 3 <= 64, "{most} with three streams of the session");
    }
}
