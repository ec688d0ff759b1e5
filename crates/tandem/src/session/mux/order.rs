//! The order in which the streams of a carrier write.
//!
//! Bytes that a carrier has taken leave in its own order, so the choice is made as late as
//! possible. The driver asks the carrier for room ([`Streams::poll_room`]) before each choice. It
//! chooses the most urgent of two kinds of streams: those that the core has ready, and those whose
//! output the carrier has blocked. Among equally urgent streams, the blocked ones go first, in the
//! order in which the core has chosen them. None of them therefore waits for new streams. When all
//! data of an urgent stream has been written, its exchange gets a turn to bring more before less
//! urgent streams write.
//!
//! The streams of the session itself need no room, since others depend on them. The driver writes
//! their output at once, and again when the carrier wakes one that it has blocked.
//!
//! Heads leave before all content, except the head of a push, which leaves with its content. If the
//! carrier blocks the stream of a head, the rest of the head gets the place of the content. The
//! rest then waits for more urgent streams.
//!
//! [`Streams::poll_room`]: crate::carrier::Streams::poll_room

use std::collections::BTreeSet;
use std::task::Context;

use super::driver::Owner;
use super::halves::StreamHalves;
use super::over_streams::StreamsDriver;
use crate::error::Error;

/// The place of a stream that holds output; the lowest goes first. It consists of the urgency (plus
/// one, after heads), the number of the core's choice of the stream, and the stream's number.
type Place = (u8, u64, u64);

/// The streams that hold output and may go on writing.
#[derive(Default)]
pub(super) struct HeldStreams {
    places: BTreeSet<Place>,
    /// The number of choices that the core has made so far.
    turns: u64,
}

impl HeldStreams {
    /// Notes that the core has chosen the stream. The carrier may take its output later.
    fn choose(&mut self, stream: &mut StreamHalves) {
        self.turns += 1;
        stream.turn = self.turns;
    }

    fn first(&self) -> Option<Place> {
        self.places.first().copied()
    }

    /// Adds a stream of whose output the carrier may take more.
    pub(super) fn add(&mut self, id: u64, stream: &StreamHalves) {
        self.places.insert(place(id, stream));
    }

    /// Applies a change to a stream, and moves the stream to its new place.
    pub(super) fn update(
        &mut self,
        id: u64,
        stream: &mut StreamHalves,
        change: impl FnOnce(&mut StreamHalves),
    ) {
        let was_held = self.places.remove(&place(id, stream));
        change(stream);
        if was_held && stream.holds_output() {
            self.add(id, stream);
        }
    }
}

fn place(id: u64, stream: &StreamHalves) -> Place {
    (stream.priority.0.min(7) + 1, stream.turn, id)
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
            // After the last writes, the core may want to open the streams of more pushes.
            if self.wants_to_open() {
                self.open(cx)?;
            }
            let has_room = self.carrier.poll_room(cx).is_ready();
            let held = self.held.first();
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
                    self.held.places.remove(&held);
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
        !self.held.places.is_empty() || self.core.borrow().next_place().is_some()
    }

    /// Writes the next output of a stream.
    fn fill(&mut self, id: u64) -> Result<(), Error> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        // A failed stream takes no output. It stays busy in the core, which does not offer it
        // again.
        self.held.choose(stream);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::halves::AwakeStreams;
    use super::*;
    use crate::carrier::CarrierStream;

    fn stream(id: u64, awake: &Arc<AwakeStreams>) -> StreamHalves {
        let (send, receive) = (None, None);
        StreamHalves::new(CarrierStream { id, send, receive }, awake)
    }

    #[test]
    fn held_stream_does_not_wait_for_new_streams() {
        let (mut held, awake) = (HeldStreams::default(), Arc::default());
        let mut old = stream(0, &awake);
        // It has sent much. The carrier blocks it, and then permits more.
        for _ in 0..1000 {
            held.choose(&mut old);
        }
        held.add(0, &old);
        for id in (4..400).step_by(4) {
            let mut new = stream(id, &awake);
            held.choose(&mut new);
            held.add(id, &new);
            let first = held.places.pop_first().expect("held streams");
            let expected = if id == 4 { 0 } else { id - 4 };
            assert_eq!(first.2, expected);
        }
    }

    #[test]
    fn urgent_stream_goes_before_held_ones() {
        let (mut held, awake) = (HeldStreams::default(), Arc::default());
        for (id, urgency) in [(0, 3), (4, 3), (8, 1)] {
            let mut stream = stream(id, &awake);
            stream.priority = tandem_http::Priority(urgency);
            held.choose(&mut stream);
            held.add(id, &stream);
        }
        let order = std::iter::from_fn(|| held.places.pop_first()).map(|(.., id)| id);
        assert_eq!(order.collect::<Vec<_>>(), [8, 0, 4]);
    }
}
