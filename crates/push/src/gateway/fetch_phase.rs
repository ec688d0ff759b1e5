//! The progress of a fetch, and the holds that delay it.
//!
//! ```text
//!  Waiting ──▶ Fetching ───────────▶ Passing ──▶ Over
//!  for its      for its │        ▲   all parts, the head only,
//!  turn, for    head    ▼        │   or nothing yet
//!  requests            Slow ─────┘
//!  or a claim          without a slot
//! ```
//!
//! A fetch is held in one phase only: before it begins (`Start`), or after its head has arrived
//! (`Passage`). [`FetchPhase::release`] ends each hold.

use tandem_http::RequestHead;

/// The progress of a fetch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FetchPhase {
    /// The request has not been made.
    Waiting {
        /// The request.
        request: RequestHead,
        /// The event after which the fetch waits for its turn.
        start: Start,
    },
    /// The fetch has a slot of the queue, and no head yet.
    Fetching,
    /// The fetch waits for its head without a slot, because the head took too long.
    Slow,
    /// The head has arrived.
    Passing(Passage),
    /// The fetch has ended or failed.
    Over,
}

/// The event after which a fetch waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The promise has been sent.
    Promise,
    /// A moment has passed since the promise was sent, in which requests of the browser could
    /// arrive.
    Gathered,
    /// The browser has claimed the resource, or has claimed others and thereby shown that it lacks
    /// this one.
    Claim,
    /// The browser has claimed the resource. Claims of others have no effect, because a check of
    /// the same resource has replaced the promise.
    OwnClaim,
    /// The first response of its series has come, or the browser has claimed the resource.
    Series,
}

/// The part of a response that may be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// The head and the body.
    All,
    /// The head. The body waits for a request that needs it.
    Head,
    /// No part of it. Only a request that waits already may get the response.
    Nothing,
}

/// The effect of the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// The phase had no hold.
    Nothing,
    /// The fetch may wait for its turn.
    Fetch,
    /// The whole response may be passed on.
    Response,
    /// The body may follow its head.
    Body,
}

impl FetchPhase {
    /// Returns the phase of a new fetch.
    pub(super) const fn new(request: RequestHead) -> Self {
        Self::Waiting {
            request,
            start: Start::Promise,
        }
    }

    /// Returns the request of a fetch that has not begun.
    pub(super) const fn waiting_request(&self) -> Option<&RequestHead> {
        match self {
            Self::Waiting { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Returns whether the fetch has not begun.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Returns whether the fetch waits until the browser shows that it lacks the resource, or until
    /// the first response of its series has come.
    pub(super) const fn is_held(&self) -> bool {
        matches!(
            self.start(),
            Some(Start::Claim | Start::OwnClaim | Start::Series)
        )
    }

    /// Returns whether a claim of another resource may begin the fetch.
    pub(super) const fn is_releasable(&self) -> bool {
        matches!(self.start(), Some(Start::Claim))
    }

    /// Returns whether the fetch has not begun, and begins without a claim.
    pub(super) const fn begins_unclaimed(&self) -> bool {
        matches!(self.start(), Some(Start::Promise | Start::Gathered))
    }

    /// Returns whether the fetch or a part of its response waits for a request.
    pub(super) const fn awaits_request(&self) -> bool {
        self.is_held() || self.holds_head() || self.holds_body()
    }

    /// Returns whether the fetch is neither over nor waits for a request.
    pub(super) const fn is_under_way(&self) -> bool {
        !self.awaits_request() && !matches!(self, Self::Over)
    }

    /// Returns whether the fetch has a slot of the queue.
    pub(super) const fn has_slot(&self) -> bool {
        matches!(self, Self::Fetching)
    }

    /// Returns whether the head is still to come.
    pub(super) const fn awaits_head(&self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::Fetching | Self::Slow)
    }

    /// Returns whether the head must not be passed on yet.
    pub(super) const fn holds_head(&self) -> bool {
        matches!(self, Self::Passing(Passage::Nothing))
    }

    /// Returns whether the head may be passed on, but not the body.
    pub(super) const fn holds_body(&self) -> bool {
        matches!(self, Self::Passing(Passage::Head))
    }

    /// Returns the event after which a fetch waits for its turn, if it has not begun.
    pub(super) const fn start(&self) -> Option<Start> {
        match self {
            Self::Waiting { start, .. } => Some(*start),
            _ => None,
        }
    }

    /// Lets a new fetch wait for a claim.
    pub(super) fn hold(&mut self) {
        self.change_start(Start::Promise, Start::Claim);
    }

    /// Lets a new fetch wait for the first response of its series.
    pub(super) fn wait_for_series(&mut self) {
        self.change_start(Start::Promise, Start::Series);
    }

    /// Returns whether the fetch waits for the first response of its series.
    pub(super) const fn waits_for_series(&self) -> bool {
        matches!(self.start(), Some(Start::Series))
    }

    /// Lets a new fetch wait for requests of the browser that may still arrive.
    pub(super) fn gather(&mut self) {
        self.change_start(Start::Promise, Start::Gathered);
    }

    /// Ends the wait for requests of the browser. Returns whether there was one.
    pub(super) fn end_gathering(&mut self) -> bool {
        self.change_start(Start::Gathered, Start::Promise)
    }

    /// Lets a held fetch wait for its own claim only.
    pub(super) fn supersede(&mut self) {
        let _ = self.change_start(Start::Claim, Start::OwnClaim)
            || self.change_start(Start::Series, Start::OwnClaim);
    }

    /// Changes the start if it is `from`. Returns whether it was.
    fn change_start(&mut self, from: Start, to: Start) -> bool {
        match self {
            Self::Waiting { start, .. } if *start == from => {
                *start = to;
                true
            }
            _ => false,
        }
    }

    /// Holds back the head that has arrived.
    pub(super) const fn hold_head(&mut self) {
        if let Self::Passing(passage) = self {
            *passage = Passage::Nothing;
        }
    }

    /// Holds the body back behind the head that has arrived.
    pub(super) const fn hold_body(&mut self) {
        if let Self::Passing(passage) = self {
            *passage = Passage::Head;
        }
    }

    /// Ends the hold for a request. A wait for further requests goes on.
    pub(super) const fn release(&mut self) -> Released {
        match self {
            Self::Waiting { start, .. }
                if matches!(start, Start::Claim | Start::OwnClaim | Start::Series) =>
            {
                *start = Start::Promise;
                Released::Fetch
            }
            Self::Passing(passage) => match std::mem::replace(passage, Passage::All) {
                Passage::All => Released::Nothing,
                Passage::Head => Released::Body,
                Passage::Nothing => Released::Response,
            },
            _ => Released::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn waiting(start: Start) -> FetchPhase {
        FetchPhase::Waiting {
            request: RequestHead::get(Scheme::Http, "a.test", "/"),
            start,
        }
    }

    fn all() -> [FetchPhase; 11] {
        [
            waiting(Start::Promise),
            waiting(Start::Gathered),
            waiting(Start::Claim),
            waiting(Start::OwnClaim),
            FetchPhase::Fetching,
            FetchPhase::Slow,
            FetchPhase::Passing(Passage::All),
            FetchPhase::Passing(Passage::Head),
            FetchPhase::Passing(Passage::Nothing),
            FetchPhase::Over,
            waiting(Start::Series),
        ]
    }

    /// Returns the numbers of the phases, in the order above, for which a question has the answer
    /// yes.
    fn holding_for(question: impl Fn(&FetchPhase) -> bool) -> Vec<usize> {
        let phases = all();
        let indices = 0..phases.len();
        indices.filter(|at| question(&phases[*at])).collect()
    }

    /// Returns the phases that a transition changes, and the ones that they become.
    fn changed_by(transition: impl Fn(&mut FetchPhase)) -> Vec<(usize, FetchPhase)> {
        let after = all().map(|mut phase| {
            transition(&mut phase);
            phase
        });
        let pairs = all().into_iter().zip(after).enumerate();
        pairs
            .filter(|(_, (before, after))| before != after)
            .map(|(at, (_, after))| (at, after))
            .collect()
    }

    #[test]
    fn fetch_phases_tell_their_holds() {
        let asked = |question: fn(&FetchPhase) -> bool| holding_for(question);
        assert_eq!(asked(FetchPhase::is_waiting), [0, 1, 2, 3, 10]);
        assert_eq!(asked(FetchPhase::begins_unclaimed), [0, 1]);
        assert_eq!(asked(FetchPhase::is_held), [2, 3, 10]);
        assert_eq!(asked(FetchPhase::waits_for_series), [10]);
        assert_eq!(asked(FetchPhase::is_releasable), [2]);
        assert_eq!(asked(FetchPhase::has_slot), [4]);
        assert_eq!(asked(FetchPhase::awaits_head), [0, 1, 2, 3, 4, 5, 10]);
        assert_eq!(asked(FetchPhase::holds_body), [7]);
        assert_eq!(asked(FetchPhase::holds_head), [8]);
        assert_eq!(asked(FetchPhase::awaits_request), [2, 3, 7, 8, 10]);
        assert_eq!(asked(FetchPhase::is_under_way), [0, 1, 4, 5, 6]);
        assert_eq!(asked(|phase| phase.waiting_request().is_some()).len(), 5);
    }

    #[test]
    fn fetch_is_held_only_before_it_begins() {
        assert_eq!(
            changed_by(FetchPhase::hold),
            [(0, waiting(Start::Claim))],
            "new fetches only"
        );
        assert_eq!(
            changed_by(FetchPhase::gather),
            [(0, waiting(Start::Gathered))]
        );
        assert_eq!(
            changed_by(FetchPhase::wait_for_series),
            [(0, waiting(Start::Series))]
        );
        assert_eq!(
            changed_by(FetchPhase::supersede),
            [2, 10].map(|at| (at, waiting(Start::OwnClaim))),
            "held fetches only"
        );
    }

    #[test]
    fn wait_for_requests_ends_once() {
        let mut phase = waiting(Start::Promise);
        assert!(!phase.end_gathering(), "it has not begun");
        phase.gather();
        assert_eq!(
            phase.release(),
            Released::Nothing,
            "a claim does not end it"
        );
        assert!(phase.end_gathering() && !phase.end_gathering());
        assert_eq!(phase, waiting(Start::Promise));
    }

    #[test]
    fn response_is_held_only_after_its_head() {
        let passing = [6, 7, 8];
        for (changed, passage) in [
            (changed_by(FetchPhase::hold_head), Passage::Nothing),
            (changed_by(FetchPhase::hold_body), Passage::Head),
        ] {
            assert_eq!(changed.len(), passing.len() - 1, "{passage:?}");
            for (at, after) in changed {
                assert!(passing.contains(&at));
                assert_eq!(after, FetchPhase::Passing(passage));
            }
        }
    }

    #[test]
    fn release_ends_each_hold_once() {
        for (at, mut phase) in all().into_iter().enumerate() {
            let expected = match at {
                2 | 3 | 10 => Released::Fetch,
                7 => Released::Body,
                8 => Released::Response,
                _ => Released::Nothing,
            };
            assert_eq!(phase.release(), expected, "{at}");
            assert!(!phase.awaits_request(), "{at}");
            assert_eq!(phase.release(), Released::Nothing, "{at}");
        }
    }
}
