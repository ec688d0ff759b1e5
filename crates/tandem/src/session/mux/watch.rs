//! What a session notes for its observation points ([`crate::probe`]), while anybody watches: how
//! long bodies wait in the core and behind which flow-control window, how long exchanges wait for
//! the other end, and arrivals for readers.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tandem_http::mux::{Unsent, Window};
use tandem_http::{Mux, StreamId};

use crate::probe::points::{
    FLOW_SESSION, FLOW_STREAM, QUEUE_CORE, QUEUE_READER, SESSION_ANSWER, SESSION_DIAL, SESSION_WAIT,
};
use crate::probe::{Point, Stamp};

/// A session's notes.
#[derive(Default)]
pub(super) struct Watch {
    begun: Cell<Stamp>,
    /// Exchanges that came before the other end had shown itself.
    early: RefCell<Vec<(StreamId, Stamp)>>,
    bodies: RefCell<HashMap<StreamId, Body>>,
    /// Whether there is anything in `bodies`.
    watching: Cell<bool>,
}

impl Watch {
    /// The session begins: with dialling, where it asks.
    pub(super) fn begin(&self) -> Stamp {
        self.begun.set(SESSION_ANSWER.start());
        SESSION_DIAL.start()
    }

    /// An exchange has its stream.
    pub(super) fn exchange(&self, id: StreamId, established: bool) {
        if established {
            return SESSION_WAIT.note(0, id);
        }
        let since = SESSION_WAIT.start();
        if !since.is_none() {
            self.early.borrow_mut().push((id, since));
        }
    }

    /// The other end has shown itself.
    pub(super) fn established(&self) {
        for (id, since) in self.early.take() {
            SESSION_WAIT.stop(since, id);
        }
        SESSION_ANSWER.stop(self.begun.take(), 0);
    }

    /// A stream was given something to send.
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

    /// The core has been asked for output, or has taken input in.
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

    /// A stream was reset: what waited in it is not sent.
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
struct Body {
    /// Bytes that were given, and how many of them have left.
    given: u64,
    gone: u64,
    /// Parts by the place of their last byte, and when they were given.
    parts: VecDeque<(u64, Instant)>,
    shut: Option<(Window, Instant)>,
}

impl Body {
    /// Compares with what was known, and tells how long what has ended took.
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

/// When what waits for a stream's reader arrived.
#[derive(Default)]
pub(super) struct Arrivals {
    put: u32,
    taken: u32,
    /// Of those that came while somebody watched: number and time.
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

    /// What is told at each step, in milliseconds: bytes unsent, the window that is shut, the
    /// moment.
    fn told(steps: &[(usize, Option<Window>, u64)]) -> Vec<(String, u128)> {
        let (mut body, begin, told) = (Body::default(), Instant::now(), RefCell::new(Vec::new()));
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
    fn a_part_waits_until_its_last_byte_has_left() {
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
    fn a_shut_window_is_told_when_it_opens_or_another_takes_its_place() {
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
