//! The limits on connections to origins that a session uses at once, per origin and in total, and
//! the order of waiting exchanges.
//!
//! ```text
//!   room? ──yes──▶ Place ──dropped──▶ the first in the queue that has room
//!     └──no──▶ queue: requests by urgency, then pushes by urgency, equals by age
//! ```
//!
//! The limit per origin is fixed, or another part measures it (`growth`).
//!
//! Pushes never hold more than half of the places of a fixed limit. The data of a push waits behind
//! all requested data, so a push may hold its place for long. It must not take that place from the
//! requests that delay it. Of a measured limit, a push never takes one of the last two places: most
//! requests of the browser join pushes, and a new page and an upload find a place.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tandem_predict::ids::IdMap;
use tokio::sync::oneshot;

use crate::priority::Precedence;

/// The largest numbers of connections that are in use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit to one origin.
    pub per_origin: usize,
    /// The limit to all origins together.
    pub per_session: usize,
    /// The limit on lasting exchanges of all sessions with the origin of a reverse gateway.
    pub lasting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_origin: 64,
            per_session: 256,
            lasting: 8192,
        }
    }
}

/// The identity of an origin.
pub(super) trait Id: Clone + Eq {}
impl<T: Clone + Eq> Id for T {}

/// Returns the present limit of a session's connections to one origin.
type Measured<O> = Box<dyn Fn(u64, &O) -> usize>;

/// The places of all sessions.
pub(super) struct Places<O: Id> {
    limits: Limits,
    /// The limit per origin, unless it is fixed.
    measured: Option<Measured<O>>,
    /// The sessions that use a place or wait for one.
    sessions: RefCell<IdMap<u64, SessionPlaces<O>>>,
}

struct SessionPlaces<O: Id> {
    all: Taken,
    /// The origins of places that are taken. A session uses few at once, so a scan costs less than
    /// a hash of a name.
    origins: Vec<(O, Taken)>,
    /// The waiting exchanges by precedence, then by age. No entry has room: an exchange with room
    /// leaves the queue.
    queue: BTreeMap<QueueNumber, WaitingRequest<O>>,
    issued: u64,
}

/// A place in the queue.
type QueueNumber = (Precedence, u64);

#[derive(Clone, Copy, Default)]
struct Taken {
    places: usize,
    /// The number of these places that pushes use.
    pushes: usize,
}

struct WaitingRequest<O: Id> {
    origin: O,
    ready: oneshot::Sender<ConnectionPlace<O>>,
}

/// The right to use one connection. Dropping it passes the right on.
pub(super) struct ConnectionPlace<O: Id> {
    places: Rc<Places<O>>,
    session: u64,
    origin: O,
    push: bool,
}

/// A turn in the queue. Dropping it leaves the queue.
struct PlaceTurn<'a, O: Id> {
    places: &'a Places<O>,
    session: u64,
    number: QueueNumber,
}

impl<O: Id> Places<O> {
    pub(super) fn new(limits: Limits) -> Rc<Self> {
        Self::with(limits, None)
    }

    /// Creates places whose limit per origin changes. After it has risen, [`Self::serve`] hands out
    /// the new places.
    pub(super) fn measured(limits: Limits, measured: Measured<O>) -> Rc<Self> {
        Self::with(limits, Some(measured))
    }

    fn with(limits: Limits, measured: Option<Measured<O>>) -> Rc<Self> {
        Rc::new(Self {
            limits,
            measured,
            sessions: RefCell::default(),
        })
    }

    /// Returns whether an exchange would get a place at once.
    fn has_room(&self, state: &SessionPlaces<O>, session: u64, origin: &O, push: bool) -> bool {
        match &self.measured {
            None => state.has_room(&self.limits, origin, push, |most| most / 2),
            Some(measured) => {
                let most = |limit: usize| if push { limit.max(3) - 2 } else { limit };
                let limits = Limits {
                    per_origin: most(measured(session, origin)),
                    per_session: most(self.limits.per_session),
                    ..self.limits
                };
                state.has_room(&limits, origin, push, |most| most)
            }
        }
    }

    /// Returns the number of places at one origin that a session uses.
    pub(super) fn taken_at(&self, session: u64, origin: &O) -> usize {
        let sessions = self.sessions.borrow();
        let state = sessions.get(&session);
        state.map_or(0, |state| {
            let here = state.position(origin).map(|at| state.origins[at].1);
            here.unwrap_or_default().places
        })
    }

    /// Returns whether an exchange of a session waits for a place at one origin.
    pub(super) fn is_awaited(&self, session: u64, origin: &O) -> bool {
        let sessions = self.sessions.borrow();
        let state = sessions.get(&session);
        state.is_some_and(|state| state.queue.values().any(|it| it.origin == *origin))
    }

    /// Returns the number of places that a session uses.
    pub(super) fn taken(&self, session: u64) -> usize {
        self.sessions
            .borrow()
            .get(&session)
            .map_or(0, |session| session.all.places)
    }

    /// Takes a place if there is room. Waiting exchanges have none, so this one overtakes none that
    /// could have run.
    pub(super) fn try_take(
        self: &Rc<Self>,
        session: u64,
        origin: &O,
        push: bool,
    ) -> Option<ConnectionPlace<O>> {
        let mut sessions = self.sessions.borrow_mut();
        let state = sessions.entry(session).or_default();
        if self.has_room(state, session, origin, push) {
            state.take(origin, push);
            return Some(self.place(session, origin, push));
        }
        drop(sessions);
        self.forget(session);
        None
    }

    /// Waits for a place. Dropping the future leaves the queue.
    pub(super) async fn take(
        self: &Rc<Self>,
        session: u64,
        origin: &O,
        precedence: Precedence,
    ) -> ConnectionPlace<O> {
        if let Some(place) = self.try_take(session, origin, precedence.push) {
            return place;
        }
        let (turn, arrived) = {
            let mut sessions = self.sessions.borrow_mut();
            let state = sessions.entry(session).or_default();
            state.issued += 1;
            let (ready, arrived) = oneshot::channel();
            let number = (precedence, state.issued);
            state.queue.insert(
                number,
                WaitingRequest {
                    origin: origin.clone(),
                    ready,
                },
            );
            (
                PlaceTurn {
                    places: self,
                    session,
                    number,
                },
                arrived,
            )
        };
        let place = arrived.await;
        drop(turn);
        place.expect("a turn stays in the queue until it is given a place or dropped")
    }

    fn place(self: &Rc<Self>, session: u64, origin: &O, push: bool) -> ConnectionPlace<O> {
        ConnectionPlace {
            places: Rc::clone(self),
            session,
            origin: origin.clone(),
            push,
        }
    }

    /// Returns a place, and hands the available places to waiting exchanges.
    fn give_back(self: &Rc<Self>, session: u64, origin: &O, push: bool) {
        if let Some(state) = self.sessions.borrow_mut().get_mut(&session) {
            state.give_back(origin, push);
        }
        self.serve(session);
    }

    /// Hands the available places to waiting exchanges of a session.
    pub(super) fn serve(self: &Rc<Self>, session: u64) {
        // The loop hands out one place at a time, without the borrow: a place that the receiver
        // drops returns through `give_back`.
        while let Some((waiting, push)) = self.next(session) {
            let place = self.place(session, &waiting.origin, push);
            drop(waiting.ready.send(place));
        }
        self.forget(session);
    }

    /// Returns the first exchange of the queue that has room, and takes the room.
    fn next(&self, session: u64) -> Option<(WaitingRequest<O>, bool)> {
        let mut sessions = self.sessions.borrow_mut();
        let state = sessions.get_mut(&session)?;
        let has_room = |(number, waiting): (&QueueNumber, &WaitingRequest<O>)| {
            self.has_room(state, session, &waiting.origin, number.0.push)
                .then_some(*number)
        };
        let number = state.queue.iter().find_map(has_room)?;
        let waiting = state.queue.remove(&number)?;
        let push = number.0.push;
        state.take(&waiting.origin, push);
        Some((waiting, push))
    }

    fn forget(&self, session: u64) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions
            .get(&session)
            .is_some_and(|state| state.all.places == 0 && state.queue.is_empty())
        {
            sessions.remove(&session);
        }
    }
}

impl<O: Id> Default for SessionPlaces<O> {
    fn default() -> Self {
        Self {
            all: Taken::default(),
            origins: Vec::new(),
            queue: BTreeMap::new(),
            issued: 0,
        }
    }
}

impl<O: Id> SessionPlaces<O> {
    fn position(&self, origin: &O) -> Option<usize> {
        self.origins.iter().position(|(known, _)| known == origin)
    }

    fn has_room(
        &self,
        limits: &Limits,
        origin: &O,
        push: bool,
        for_pushes: fn(usize) -> usize,
    ) -> bool {
        let here = self.position(origin).map(|at| self.origins[at].1);
        let fits = |taken: Taken, most: usize| {
            taken.places < most && (!push || taken.pushes < for_pushes(most))
        };
        fits(here.unwrap_or_default(), limits.per_origin) && fits(self.all, limits.per_session)
    }

    fn take(&mut self, origin: &O, push: bool) {
        let at = self.position(origin).unwrap_or_else(|| {
            self.origins.push((origin.clone(), Taken::default()));
            self.origins.len() - 1
        });
        for taken in [&mut self.origins[at].1, &mut self.all] {
            taken.places += 1;
            taken.pushes += usize::from(push);
        }
    }

    fn give_back(&mut self, origin: &O, push: bool) {
        let at = self
            .position(origin)
            .expect("the origin of a taken place is listed");
        for taken in [&mut self.origins[at].1, &mut self.all] {
            taken.places -= 1;
            taken.pushes -= usize::from(push);
        }
        if self.origins[at].1.places == 0 {
            self.origins.swap_remove(at);
        }
    }
}

impl<O: Id> Drop for ConnectionPlace<O> {
    fn drop(&mut self) {
        self.places.give_back(self.session, &self.origin, self.push);
    }
}

impl<O: Id> Drop for PlaceTurn<'_, O> {
    fn drop(&mut self) {
        if let Some(state) = self.places.sessions.borrow_mut().get_mut(&self.session) {
            state.queue.remove(&self.number);
        }
        self.places.forget(self.session);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;

    type Future1 = Pin<Box<dyn Future<Output = ConnectionPlace<u8>>>>;

    fn ask(places: &Rc<Places<u8>>, session: u64, origin: u8, push: bool) -> Future1 {
        let places = Rc::clone(places);
        let precedence = Precedence {
            push,
            ..Precedence::default()
        };
        Box::pin(async move { places.take(session, &origin, precedence).await })
    }

    fn poll(future: &mut Future1) -> Option<ConnectionPlace<u8>> {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    fn places(per_origin: usize, per_session: usize) -> Rc<Places<u8>> {
        Places::new(Limits {
            per_origin,
            per_session,
            ..Limits::default()
        })
    }

    #[test]
    fn first_asked_is_first_and_pushes_come_last() {
        let places = places(1, 9);
        let first = poll(&mut ask(&places, 1, 0, false)).expect("room");
        let mut push = ask(&places, 1, 0, true);
        let mut second = ask(&places, 1, 0, false);
        let mut third = ask(&places, 1, 0, false);
        assert!(
            poll(&mut push).is_none() && poll(&mut second).is_none() && poll(&mut third).is_none()
        );
        assert!(
            poll(&mut ask(&places, 1, 1, false)).is_some(),
            "another origin has room"
        );
        assert!(
            poll(&mut ask(&places, 2, 0, false)).is_some(),
            "another session has room"
        );
        drop(first);
        assert!(poll(&mut third).is_none() && poll(&mut push).is_none());
        drop(poll(&mut second).expect("its turn"));
        assert!(poll(&mut third).is_some());
    }

    #[test]
    fn given_up_turn_leaves_the_queue_and_frees_its_place() {
        let places = places(1, 9);
        let first = poll(&mut ask(&places, 1, 0, false)).expect("room");
        let (mut second, mut third, mut fourth) = (
            ask(&places, 1, 0, false),
            ask(&places, 1, 0, false),
            ask(&places, 1, 0, false),
        );
        assert!(
            [&mut second, &mut third, &mut fourth]
                .into_iter()
                .all(|future| poll(future).is_none())
        );
        drop(second);
        drop(first);
        // The third future got a place and is dropped before it is polled.
        drop(third);
        drop(poll(&mut fourth).expect("its turn"));
        assert!(
            places.sessions.borrow().is_empty(),
            "nothing is kept of a session that wants nothing"
        );
    }

    #[test]
    fn pushes_leave_half_to_what_is_asked_for() {
        let places = places(4, 100);
        let pushes: Vec<_> = (0..2)
            .map(|_| poll(&mut ask(&places, 1, 0, true)).expect("room"))
            .collect();
        let mut more = ask(&places, 1, 0, true);
        assert!(poll(&mut more).is_none());
        let asked: Vec<_> = (0..2)
            .map(|_| poll(&mut ask(&places, 1, 0, false)).expect("room"))
            .collect();
        assert!(poll(&mut ask(&places, 1, 0, false)).is_none());
        drop(asked);
        assert!(
            poll(&mut more).is_none(),
            "half is the most, whatever is free"
        );
        drop(pushes);
        assert!(poll(&mut more).is_some());
    }

    #[test]
    fn measured_limit_hands_out_places_when_it_rises() {
        let limit = Rc::new(std::cell::Cell::new(2));
        let measured = Rc::clone(&limit);
        let places = Places::measured(Limits::default(), Box::new(move |_, _| measured.get()));
        let push = poll(&mut ask(&places, 1, 0, true)).expect("room");
        let mut pushes = [ask(&places, 1, 0, true), ask(&places, 1, 0, true)];
        assert!(pushes.iter_mut().all(|push| poll(push).is_none()));
        assert!(places.is_awaited(1, &0) && !places.is_awaited(1, &1));
        let request = poll(&mut ask(&places, 1, 0, false)).expect("pushes leave two places");
        limit.set(5);
        places.serve(1);
        let second = poll(&mut pushes[0]).expect("a new place is waiting");
        assert!(poll(&mut pushes[1]).is_none());
        assert_eq!((places.taken_at(1, &0), places.taken_at(1, &1)), (3, 0));
        limit.set(1);
        drop((push, request));
        assert!(poll(&mut pushes[1]).is_none(), "more are taken than may be");
        drop(second);
        assert!(poll(&mut pushes[1]).is_some());
    }

    proptest! {
        /// Random arrivals and departures exceed no bound and leave no exchange waiting that has
        /// room. At the end no state remains.
        #[test]
        fn bounds_hold_and_nobody_waits_who_has_room(
            steps in proptest::collection::vec((0u8..3, 0u64..2, 0u8..3, any::<bool>(), any::<prop::sample::Index>()), 1..120),
            per_origin in 2usize..4,
            per_session in 2usize..7,
        ) {
            let places = places(per_origin, per_session);
            let mut waiting: Vec<(u64, u8, bool, Future1)> = Vec::new();
            let mut held: Vec<(u64, u8, bool, ConnectionPlace<u8>)> = Vec::new();
            for (what, session, origin, push, index) in steps {
                match what {
                    0 => waiting.push((session, origin, push, ask(&places, session, origin, push))),
                    1 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    _ if !waiting.is_empty() => drop(waiting.swap_remove(index.index(waiting.len()))),
                    _ => {}
                }
                let mut still = Vec::new();
                for (session, origin, push, mut future) in waiting {
                    match poll(&mut future) {
                        Some(place) => held.push((session, origin, push, place)),
                        None => still.push((session, origin, push, future)),
                    }
                }
                waiting = still;
                let count = |of: &dyn Fn(u64, u8, bool) -> bool| held.iter().filter(|(s, o, p, _)| of(*s, *o, *p)).count();
                let has_room = |session, origin, push: bool| {
                    let (all, here) = (count(&|s, _, _| s == session), count(&|s, o, _| (s, o) == (session, origin)));
                    let pushes = count(&|s, _, p| s == session && p);
                    let pushes_here = count(&|s, o, p| (s, o) == (session, origin) && p);
                    all < per_session && here < per_origin
                        && (!push || (pushes < per_session / 2 && pushes_here < per_origin / 2))
                };
                for session in 0..2 {
                    prop_assert!(count(&|s, _, _| s == session) <= per_session);
                    prop_assert_eq!(places.taken(session), count(&|s, _, _| s == session));
                    prop_assert!((0..3).all(|origin| count(&|s, o, _| (s, o) == (session, origin)) <= per_origin));
                }
                prop_assert!(waiting.iter().all(|(session, origin, push, _)| !has_room(*session, *origin, *push)));
            }
            waiting.clear();
            held.clear();
            prop_assert!(places.sessions.borrow().is_empty());
        }
    }
}
