//! Measures a session for its observation points ([`crate::probe`]) while they are watched.
//!
//! It measures how long bodies wait in the core, and how long they wait for each flow-control
//! window. It also measures how long exchanges wait for the other end, and how long input waits for
//! its reader.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tandem_http::mux::{Unsent, Window};
use tandem_http::{Mux, StreamId};

use crate::probe::points::{
    FLOW_SESSION, FLOW_STREAM, QUEUE_CORE, QUEUE_READER, SESSION_ANSWER, SESSION_DIAL, SESSION_WAIT,
};
use crate::probe::{Point, Stamp};

/// The measurements of one session that are under way.
#[derive(Default)]
pub(super) struct Watch {
    begun: Cell<Stamp>,
    /// The exchanges that began before the first input of the other end.
    early: Cell<Vec<(StreamId, Stamp)>>,
    bodies: RefCell<HashMap<StreamId, WatchedBody>>,
    /// True while `bodies` is not empty.
    watching: Cell<bool>,
}

impl Watch {
    /// Notes the beginning of the session. Returns the stamp of its dial.
    pub(super) fn begin(&self) -> Stamp {
        self.begun.set(SESSION_ANSWER.start());
        SESSION_DIAL.start()
    }

    /// Notes that an exchange has its stream.
    pub(super) fn exchange(&self, id: StreamId, established: bool) {
        if established {
            return SESSION_WAIT.note(0, id);
        }
        let since = SESSION_WAIT.start();
        if !since.is_none() {
            let mut early = self.early.take();
            early.push((id, since));
            self.early.set(early);
        }
    }

    /// Notes the first input of the other end.
    pub(super) fn established(&self) {
        for (id, since) in self.early.take() {
            SESSION_WAIT.stop(since, id);
        }
        SESSION_ANSWER.stop(self.begun.take(), 0);
    }

    /// Notes that a stream was given data to send.
    pub(super) fn given(&self, core: &dyn Mux, id: StreamId) {
        if is_watched() {
            let mut bodies = self.bodies.borrow_mut();
            bodies
                .entry(id)
                .or_default()
                .note(core.unsent(id), Instant::now(), |point, time| {
                    point.note_time(time, id)
                });
            self.watching.set(true);
        }
    }

    /// Updates the bodies after the core has produced output or taken input.
    pub(super) fn look(&self, core: &dyn Mux) {
        if !self.watching.get() {
            return;
        }
        let mut bodies = self.bodies.borrow_mut();
        if is_watched() {
            let now = Instant::now();
            bodies.retain(|id, body| {
                let unsent = core.unsent(*id);
                body.note(unsent, now, |point, time| point.note_time(time, *id));
                unsent.bytes > 0
            });
        } else {
            bodies.clear();
        }
        self.watching.set(!bodies.is_empty());
    }

    /// Drops the measurements of a stream that was reset.
    pub(super) fn forget(&self, id: StreamId) {
        if self.watching.get() {
            self.bodies.borrow_mut().remove(&id);
        }
    }
}

fn is_watched() -> bool {
    QUEUE_CORE.is_watched() || FLOW_STREAM.is_watched() || FLOW_SESSION.is_watched()
}

/// A stream's body on its way through the core.
#[derive(Default)]
struct WatchedBody {
    /// The number of bytes given to the stream, and the number that have left.
    given: u64,
    gone: u64,
    /// The position of each part's last byte, and the time at which the part was given.
    parts: VecDeque<(u64, Instant)>,
    /// The flow-control window that is shut, and the time at which it was found shut.
    shut: Option<(Window, Instant)>,
}

impl WatchedBody {
    /// Compares the stream with its last state. Calls `tell` with the duration of each wait that
    /// has ended.
    fn note(&mut self, unsent: Unsent, now: Instant, tell: impl Fn(&'static Point, Duration)) {
        let (known, bytes) = (self.given - self.gone, unsent.bytes as u64);
        if bytes > known {
            self.given += bytes - known;
            self.parts.push_back((self.given, now));
        } else {
            self.gone += known - bytes;
            while let Some((_, since)) = self.parts.pop_front_if(|(end, _)| *end <= self.gone) {
                tell(&QUEUE_CORE, now - since);
            }
        }
        if unsent.shut == self.shut.map(|(window, _)| window) {
            return;
        }
        match self.shut {
            Some((Window::Stream, since)) => tell(&FLOW_STREAM, now - since),
            Some((Window::Session, since)) => tell(&FLOW_SESSION, now - since),
            None => {}
        }
        self.shut = unsent.shut.map(|window| (window, now));
    }
}

/// The arrival times of the input that waits for a stream's reader.
#[derive(Default)]
pub(super) struct Arrivals {
    put: u32,
    taken: u32,
    /// The number and arrival time of each input that came while the point was watched.
    watched: VecDeque<(u32, Stamp)>,
}

impl Arrivals {
    pub(super) fn put(&mut self) {
        let stamp = QUEUE_READER.start();
        if !stamp.is_none() {
            self.watched.push_back((self.put, stamp));
        }
        self.put = self.put.wrapping_add(1);
    }

    /// Returns the number of inputs that the reader has taken.
    pub(super) const fn taken(&self) -> u32 {
        self.taken
    }

    pub(super) fn take(&mut self, id: StreamId) {
        if let Some((_, stamp)) = self
            .watched
            .pop_front_if(|(number, _)| *number == self.taken)
        {
            QUEUE_READER.stop(stamp, id);
        }
        self.taken = self.taken.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Returns the waits, in milliseconds, that a series of steps reports. A step is the number of
    /// unsent bytes, the shut window and the moment.
    fn told(steps: &[(usize, Option<Window>, u64)]) -> Vec<(String, u128)> {
        let (mut body, begin, told) = (
            WatchedBody::default(),
            Instant::now(),
            RefCell::new(Vec::new()),
        );
        for (bytes, shut, at) in steps {
            let unsent = Unsent {
                bytes: *bytes,
                shut: *shut,
            };
            body.note(unsent, begin + Duration::from_millis(*at), |point, time| {
                told.borrow_mut()
                    .push((point.full_name(), time.as_millis()));
            });
        }
        told.into_inner()
    }

    fn core(time: u128) -> (String, u128) {
        ("queue.core".into(), time)
    }

    #[test]
    fn part_waits_until_its_last_byte_has_left() {
        let steps = [
            (100, None, 0),
            (150, None, 5),
            (90, None, 7),
            (60, None, 10),
            (50, None, 20),
            (0, None, 30),
        ];
        assert_eq!(told(&steps), [core(20), core(25)]);
        assert_eq!(
            told(&[(10, None, 0), (4, None, 1), (9, None, 2), (0, None, 9)]),
            [core(9), core(7)]
        );
    }

    #[test]
    fn shut_window_is_noted_when_it_changes() {
        let (stream, session) = (Some(Window::Stream), Some(Window::Session));
        let steps = [
            (9, stream, 0),
            (9, stream, 4),
            (9, session, 6),
            (9, None, 7),
            (9, session, 8),
            (0, None, 20),
        ];
        let flow = |window: &str, time| (format!("flow.{window}"), time);
        let expected = [
            flow("stream", 6),
            flow("session", 1),
            core(20),
            flow("session", 12),
        ];
        assert_eq!(told(&steps), expected);
    }
}
