//! The order in which the streams of a carrier write.
//!
//! Bytes that a carrier has taken leave in its own order, so the choice is made as late as
//! possible. The driver asks the carrier for room ([`Streams::poll_room`]) before each choice. It
//! chooses between the streams that the core has ready and those that hold output because their
//! carrier took no more: by urgency, and then the latter first. When the last of the data of an
//! urgent stream was written, its exchange gets a turn to bring more before less urgent streams
//! write.
//!
//! The streams of the session itself need no room, since others depend on them. The driver writes
//! their output at once, and again when the carrier wakes one that it has blocked.
//!
//! A head has its turn before all content, except that of a push. If the carrier blocks its stream,
//! the rest of the head has the place of the content, and waits for more urgent streams.
//!
//! [`Streams::poll_room`]: crate::carrier::Streams::poll_room

use std::collections::BTreeSet;
use std::task::Context;

use super::driver::Owner;
use super::halves::StreamHalves;
use super::over_streams::StreamsDriver;
use crate::error::Error;

/// The place of a stream that holds output: that of the core for its content, then the bytes that
/// it has sent, and its number.
type Place = (u8, u64, u64);

/// The streams that hold output and may go on writing.
#[derive(Default)]
pub(super) struct Held(BTreeSet<Place>);

impl Held {
    /// Adds a stream that the carrier may take more of.
    pub(super) fn add(&mut self, id: u64, stream: &StreamHalves) {
        self.0.insert(place(id, stream));
    }

    /// Finds the place of a stream again, after a change by `change`.
    pub(super) fn update(
        &mut self,
        id: u64,
        stream: &mut StreamHalves,
        change: impl FnOnce(&mut StreamHalves),
    ) {
        let was_held = self.0.remove(&place(id, stream));
        change(stream);
        if was_held && stream.holds_output() {
            self.add(id, stream);
        }
    }
}

fn place(id: u64, stream: &StreamHalves) -> Place {
    (stream.priority.0.min(7) + 1, stream.sent, id)
}

/// The reason for which no more streams write in this turn.
pub(super) enum Pause {
    /// No stream has anything to write.
    Done,
    /// The carrier takes no more, and wakes the task.
    NoRoom,
    /// The exchange of an urgent stream gets its turn.
    GivesWay,
}

impl<O: Owner> StreamsDriver<O> {
    /// Writes the output of the streams that may send, the most urgent one first.
    pub(super) fn write_in_order(&mut self, cx: &mut Context<'_>) -> Result<Pause, Error> {
        let mut last = None;
        loop {
            self.shared.watch.look(&*self.core.borrow());
            let critical = self.core.borrow_mut().poll_critical();
            if let Some(id) = critical {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.is_critical = true;
                }
                self.fill(id)?;
                continue;
            }
            // What was written may have let the core open the streams of more pushes.
            if self.wants_to_open() {
                self.open(cx)?;
            }
            let has_room = self.carrier.poll_room(cx).is_ready();
            let held = self.held.0.first().copied();
            let ready = self.core.borrow().next_place();
            let next = held.map(|(place, ..)| place).into_iter().chain(ready).min();
            let Some(next) = next else {
                return Ok(Pause::Done);
            };
            if !has_room {
                return Ok(Pause::NoRoom);
            }
            if last.is_some_and(|last| last < next) && self.core.borrow().has_events() {
                return Ok(Pause::GivesWay);
            }
            last = Some(next);
            match held.filter(|(place, ..)| *place == next) {
                Some(held) => {
                    self.held.0.remove(&held);
                    self.write(held.2)?;
                }
                None => {
                    let ready = self.core.borrow_mut().poll_ready();
                    if let Some(id) = ready {
                        self.fill(id)?;
                    }
                }
            }
        }
    }

    /// Returns true if a stream has something to write.
    pub(super) fn wants_room(&self) -> bool {
        !self.held.0.is_empty() || self.core.borrow().next_place().is_some()
    }

    /// Writes the next output of a stream.
    fn fill(&mut self, id: u64) -> Result<(), Error> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        // A failed stream takes no output. It stays busy in the core, which does not offer it
        // again.
        if let Some(out) = stream.output() {
            let limit = self.pace.write_limit;
            if self.core.borrow_mut().poll_output(id, out, limit) {
                stream.end_after_output();
            }
            self.write(id)?;
        }
        // Output can change the priority of a stream, and so the next choice.
        self.execute();
        Ok(())
    }
}
