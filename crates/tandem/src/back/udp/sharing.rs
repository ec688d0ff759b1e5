//! The places of UDP tunnels: a bound for each session, and one that all sessions of a thread
//! share.
//!
//! ```text
//!   session full? ──▶ refused        thread full? ──▶ another tunnel ends (`back::lasting`):
//!                                    of the session with the most idle ones, else with the most
//! ```
//!
//! A session with many tunnels therefore keeps no place from a session with few.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::back::lasting::{Exchanging, Lasting};
use crate::error::{Error, Kind, Side};
use crate::exchange::Canceller;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::token_bucket::TokenBucket;

/// The number of tunnels that one session may have open.
const MOST_OF_SESSION: usize = 256;

/// The datagrams that one session may send in a second, and those after a pause. A capsule of three
/// bytes becomes a packet of sixty and a system call, so that the rate of the session is no limit.
pub(super) const PACKETS: (u32, u32) = (20_000, 4_096);

/// The time without a datagram after which a tunnel counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// The least time between two looks at all tunnels.
const ROUND: Duration = Duration::from_secs(1);

/// The tunnels of all sessions of a thread.
pub(super) struct Shared {
    open: RefCell<Lasting<Open>>,
    /// The number of the last session or tunnel.
    issued: Cell<u64>,
    /// The time of the last look at all tunnels.
    looked: Cell<Option<Instant>>,
}

/// The tunnels of one session.
pub(super) struct SessionTunnels {
    number: u64,
    open: Cell<usize>,
    /// The datagrams that may be sent to origins.
    pub(super) packets: TokenBucket,
}

/// An open tunnel, as the others see it.
struct Open {
    number: u64,
    reply: Canceller,
    state: Rc<TunnelState>,
}

/// The state of a tunnel that its place shows to the others.
pub(super) struct TunnelState {
    /// The time of the last datagram in either direction.
    pub(super) used: Cell<Instant>,
    /// True once the tunnel was agreed to.
    pub(super) is_agreed: Cell<bool>,
}

impl Exchanging for Open {
    fn has_moved(&mut self) -> bool {
        self.state.used.get().elapsed() < IDLE_AFTER
    }
}

impl Shared {
    /// Creates places for `most` tunnels.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            open: RefCell::new(Lasting::new(most)),
            issued: Cell::new(0),
            looked: Cell::new(None),
        }
    }

    fn issue(&self) -> u64 {
        self.issued.update(|issued| issued + 1);
        self.issued.get()
    }

    /// Returns the tunnels of a new session.
    pub(super) fn session(&self, now: Instant) -> Rc<SessionTunnels> {
        let (rate, burst) = PACKETS;
        Rc::new(SessionTunnels {
            number: self.issue(),
            open: Cell::default(),
            packets: TokenBucket::new(rate, burst, now),
        })
    }

    /// Ends tunnels above the limit: without the borrow, since each drops its [`TunnelPlace`].
    /// Returns false if the tunnel with this number has to end, because each other session has only
    /// one.
    fn make_room(&self, newcomer: u64, now: Instant) -> bool {
        static WARNED: LogLimit = LogLimit::new();
        if !self.open.borrow().is_above_limit() {
            return true;
        }
        if self.looked.get().is_none_or(|at| now - at >= ROUND) {
            self.looked.set(Some(now));
            self.open.borrow_mut().end_round();
        }
        loop {
            let surplus = self.open.borrow_mut().surplus();
            let Some(tunnel) = surplus else { return true };
            if tunnel.number == newcomer {
                return false;
            }
            METRICS.exchanges_cancelled.add(1);
            if let Some(held_back) = WARNED.admit() {
                tracing::warn!(
                    held_back,
                    "ended a UDP tunnel: too many are open (max-lasting-exchanges)"
                );
            }
            match tunnel.state.is_agreed.get() {
                // As after its idle time, the program may open it again.
                true => tunnel.reply.end(),
                false => tunnel.reply.fail(full()),
            }
        }
    }
}

/// Returns the error for a tunnel without a place.
pub(super) fn full() -> Error {
    Error::new(Kind::Busy, Side::Local, "too many UDP tunnels are open")
}

/// The place of a tunnel among those of its session and of the thread.
pub(super) struct TunnelPlace {
    shared: Rc<Shared>,
    pub(super) session: Rc<SessionTunnels>,
    pub(super) state: Rc<TunnelState>,
    number: u64,
}

impl TunnelPlace {
    /// Takes a place for a tunnel with this reply. Another tunnel may end for it.
    pub(super) fn take(
        shared: &Rc<Shared>,
        session: &Rc<SessionTunnels>,
        reply: Canceller,
    ) -> Option<Self> {
        if session.open.get() >= MOST_OF_SESSION {
            return None;
        }
        let now = Instant::now();
        let place = Self {
            shared: Rc::clone(shared),
            session: Rc::clone(session),
            state: Rc::new(TunnelState {
                used: Cell::new(now),
                is_agreed: Cell::default(),
            }),
            number: shared.issue(),
        };
        session.open.update(|open| open + 1);
        let open = Open {
            number: place.number,
            reply,
            state: Rc::clone(&place.state),
        };
        let mut all = shared.open.borrow_mut();
        all.insert(session.number, place.number, open);
        drop(all);
        shared.make_room(place.number, now).then_some(place)
    }
}

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        let mut all = self.shared.open.borrow_mut();
        let open = all.remove(self.session.number, self.number);
        drop((all, open));
        self.session.open.update(|open| open - 1);
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::ResponseHead;

    use super::*;
    use crate::exchange::{Part, Reply};

    /// A tunnel that was agreed to, unless it got no place.
    struct Tunnel {
        reply: Reply,
        state: Rc<TunnelState>,
    }

    impl Tunnel {
        async fn open(shared: &Rc<Shared>, session: &Rc<SessionTunnels>) -> Option<Self> {
            let mut state = None;
            let mut reply = Reply::generate(|mut sink| {
                let place = TunnelPlace::take(shared, session, sink.canceller());
                state = place.as_ref().map(|place| Rc::clone(&place.state));
                async move {
                    let _place = place.ok_or_else(full)?;
                    sink.send(Part::Head(ResponseHead::new(200))).await;
                    std::future::pending().await
                }
            });
            let state = state?;
            assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
            state.is_agreed.set(true);
            Some(Self { reply, state })
        }

        /// Returns whether the tunnel has ended, which must be regularly.
        async fn has_ended(&mut self) -> bool {
            tokio::select! {
                biased;
                part = self.reply.part() => {
                    assert!(part.is_none(), "{part:?}");
                    true
                }
                () = std::future::ready(()) => false,
            }
        }
    }

    async fn many(shared: &Rc<Shared>, session: &Rc<SessionTunnels>, count: usize) -> Vec<Tunnel> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Tunnel::open(shared, session).await.expect("a place"));
        }
        all
    }

    #[tokio::test]
    async fn session_has_a_bounded_number_of_tunnels() {
        let shared = Rc::new(Shared::new(MOST_OF_SESSION + 1));
        let [one, other] = [0; 2].map(|_| shared.session(Instant::now()));
        let all = many(&shared, &one, MOST_OF_SESSION).await;
        assert!(Tunnel::open(&shared, &one).await.is_none());
        assert!(Tunnel::open(&shared, &other).await.is_some());
        drop(all);
        assert!(Tunnel::open(&shared, &one).await.is_some());
        assert_eq!((one.open.get(), other.open.get()), (0, 0));
        assert!(shared.open.borrow().is_empty());
    }

    /// A session that takes all places loses them to others, the idle ones first.
    #[tokio::test(start_paused = true)]
    async fn session_with_many_tunnels_makes_room_for_others() {
        let shared = Rc::new(Shared::new(6));
        let [greedy, one, other] = [0; 3].map(|_| shared.session(Instant::now()));
        let mut taken = many(&shared, &greedy, 6).await;
        tokio::time::advance(IDLE_AFTER).await;
        for tunnel in [0, 2] {
            taken[tunnel].state.used.set(Instant::now());
        }
        let mut honest = many(&shared, &one, 1).await;
        honest.extend(many(&shared, &other, 2).await);
        let mut ended = Vec::new();
        for tunnel in &mut taken {
            ended.push(tunnel.has_ended().await);
        }
        assert_eq!(ended, [false, true, false, true, true, false]);
        // Its further tunnels end its own.
        let more = many(&shared, &greedy, 4).await;
        for tunnel in &mut honest {
            assert!(!tunnel.has_ended().await);
        }
        drop((more, taken, honest));
        assert!(shared.open.borrow().is_empty());
    }

    #[tokio::test]
    async fn limit_holds_if_each_session_has_one_tunnel() {
        let shared = Rc::new(Shared::new(2));
        let sessions = [0; 3].map(|_| shared.session(Instant::now()));
        let mut first = many(&shared, &sessions[1], 1).await;
        first.extend(many(&shared, &sessions[2], 1).await);
        let third = Tunnel::open(&shared, &sessions[0]).await;
        let mut ended = usize::from(third.is_none());
        for tunnel in &mut first {
            ended += usize::from(tunnel.has_ended().await);
        }
        assert_eq!(ended, 1, "one of three gives way");
    }
}
