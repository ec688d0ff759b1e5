//! The address tokens that a client keeps for its return to a gateway, and the round trip.
//!
//! A gateway can link the associations that show its tokens. A token is therefore shown once, and
//! only by an association with the same isolation key and the same own address, as over QUIC.
//! Everything is in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tandem::back::policy::is_public;
use tandem::exchange::Isolation;
use tandem::transport::earlier::{self, Age, Clocks};

use crate::token::AddressToken;

/// The tokens of one isolation key in one network.
const MOST_TOKENS: usize = 4;

/// The tokens of one gateway.
pub(crate) type Memory = Rc<RefCell<earlier::Memory<Rc<Kept>>>>;

/// The tokens of one isolation key in one network.
pub(crate) struct Kept(RefCell<State>);

struct State {
    age: Age,
    tokens: VecDeque<AddressToken>,
    /// The last round trip that an association has measured.
    round_trip: Option<Duration>,
}

impl State {
    fn expire(&mut self, now: Clocks) {
        if self.age.is_over(now) {
            self.tokens.clear();
            self.round_trip = None;
        }
    }
}

impl Kept {
    fn new(own: IpAddr) -> Rc<Self> {
        Rc::new(Self(RefCell::new(State {
            age: Age::new(!is_public(own), Clocks::now()),
            tokens: VecDeque::new(),
            round_trip: None,
        })))
    }

    /// Notes the beginning of an association, and takes the last token.
    fn begun(&self, now: Clocks) -> Earlier {
        let mut state = self.0.borrow_mut();
        state.expire(now);
        state.age.begun(now);
        Earlier {
            token: state.tokens.pop_back(),
            round_trip: state.round_trip,
        }
    }

    fn ended(&self, now: Clocks) {
        let mut state = self.0.borrow_mut();
        state.expire(now);
        state.age.ended(now);
    }

    /// Appends a token. The oldest one makes room.
    fn put(&self, token: AddressToken) {
        let tokens = &mut self.0.borrow_mut().tokens;
        if tokens.len() >= MOST_TOKENS {
            tokens.pop_front();
        }
        tokens.push_back(token);
    }
}

/// The knowledge with which an association begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Earlier {
    /// The token to show.
    pub(crate) token: Option<AddressToken>,
    pub(crate) round_trip: Option<Duration>,
}

/// The place for the knowledge of one association.
pub(crate) struct Keeping {
    memory: Memory,
    isolation: Isolation,
    own: IpAddr,
    kept: Rc<Kept>,
}

impl Keeping {
    /// Begins an association of an isolation key from `own`. Returns the knowledge of earlier ones
    /// as well.
    pub(crate) fn begin(memory: &Memory, isolation: &Isolation, own: IpAddr) -> (Self, Earlier) {
        let kept = memory.borrow_mut().of(isolation, own, || Kept::new(own));
        let earlier = kept.begun(Clocks::now());
        let keeping = Self {
            memory: Rc::clone(memory),
            isolation: isolation.clone(),
            own,
            kept,
        };
        (keeping, earlier)
    }

    /// Keeps a token that came to the address `own` of this machine, unless its isolation key was
    /// forgotten.
    pub(crate) fn keep(&mut self, own: IpAddr, token: AddressToken) {
        let mut memory = self.memory.borrow_mut();
        let is_own = |kept: &Rc<Kept>| Rc::ptr_eq(kept, &self.kept);
        if !memory.of_key(&self.isolation).any(is_own) {
            return;
        }
        if own != self.own {
            // The machine is in another network.
            let now = Clocks::now();
            self.kept.ended(now);
            self.own = own;
            self.kept = memory.of(&self.isolation, own, || Kept::new(own));
            let mut state = self.kept.0.borrow_mut();
            state.expire(now);
            state.age.begun(now);
        }
        self.kept.put(token);
    }

    /// Notes the round trip, as the association measures it now.
    pub(crate) fn note_round_trip(&self, round_trip: Duration) {
        self.kept.0.borrow_mut().round_trip = Some(round_trip);
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.kept.ended(Clocks::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 0, 2));
    const PUBLIC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(8, 8, 4, 4));

    fn key(name: &str) -> Isolation {
        Isolation::new(name.as_bytes(), b"")
    }

    fn token(number: u8) -> AddressToken {
        AddressToken::decode(&[number; 28]).expect("a whole token")
    }

    /// Begins an association of a key, and gives it a token. Returns the one that it shows.
    fn visit(memory: &Memory, name: &str, own: IpAddr, number: u8) -> Option<AddressToken> {
        let (mut keeping, shown) = Keeping::begin(memory, &key(name), own);
        keeping.keep(own, token(number));
        shown.token
    }

    #[test]
    fn token_is_shown_once_by_its_key_and_network() {
        let memory = Memory::default();
        assert_eq!(visit(&memory, "a", HOME, 1), None);
        assert_eq!(visit(&memory, "b", HOME, 2), None);
        assert_eq!(visit(&memory, "a", PUBLIC, 3), None);
        let (_first, shown) = Keeping::begin(&memory, &key("a"), HOME);
        assert_eq!(shown.token, Some(token(1)));
        let (_second, shown) = Keeping::begin(&memory, &key("a"), HOME);
        assert_eq!(shown.token, None, "it was shown");
        assert_eq!(visit(&memory, "b", HOME, 4), Some(token(2)));
    }

    #[test]
    fn last_tokens_are_kept() {
        let memory = Memory::default();
        let (mut keeping, _) = Keeping::begin(&memory, &key("a"), PUBLIC);
        (0..9).for_each(|number| keeping.keep(PUBLIC, token(number)));
        let shown = || Keeping::begin(&memory, &key("a"), PUBLIC).1.token;
        let shown: Vec<_> = std::iter::from_fn(shown).collect();
        assert_eq!(shown, [8, 7, 6, 5].map(token));
    }

    /// The token of an association that goes on would link the isolation key with its next use.
    #[test]
    fn forgotten_key_gets_no_more_tokens() {
        for own in [HOME, PUBLIC] {
            let memory = Memory::default();
            let (mut keeping, _) = Keeping::begin(&memory, &key("a"), HOME);
            keeping.keep(HOME, token(1));
            memory.borrow_mut().forget(&key("a"));
            keeping.keep(own, token(2));
            assert_eq!(visit(&memory, "a", HOME, 3), None);
            assert_eq!(visit(&memory, "a", PUBLIC, 4), None);
        }
    }

    #[test]
    fn token_belongs_to_the_network_in_which_it_came() {
        let memory = Memory::default();
        let (mut keeping, _) = Keeping::begin(&memory, &key("a"), HOME);
        keeping.keep(HOME, token(1));
        keeping.keep(PUBLIC, token(2));
        keeping.keep(HOME, token(3));
        drop(keeping);
        assert_eq!(visit(&memory, "a", PUBLIC, 4), Some(token(2)));
        assert_eq!(visit(&memory, "a", HOME, 5), Some(token(3)));
    }

    #[test]
    fn tokens_of_a_private_address_end_after_some_minutes() {
        for (own, expected) in [(HOME, None), (PUBLIC, Some(token(1)))] {
            let memory = Memory::default();
            visit(&memory, "a", own, 1);
            let mut now = Clocks::now();
            now.monotonic += Duration::from_secs(601);
            let kept = memory.borrow_mut().of(&key("a"), own, || Kept::new(own));
            assert_eq!(kept.begun(now).token, expected);
        }
    }

    #[test]
    fn round_trip_is_kept_as_tokens_are() {
        const RTT: Duration = Duration::from_millis(90);
        for (own, expected) in [(HOME, None), (PUBLIC, Some(RTT))] {
            let memory = Memory::default();
            let (keeping, earlier) = Keeping::begin(&memory, &key("a"), own);
            assert_eq!(earlier.round_trip, None);
            keeping.note_round_trip(RTT);
            let begin = |name, own| Keeping::begin(&memory, &key(name), own).1.round_trip;
            assert_eq!(begin("a", own), Some(RTT));
            assert_eq!(begin("b", own), None);
            let elsewhere = IpAddr::from([192, 168, 0, 3]);
            assert_eq!(begin("a", elsewhere), None);
            drop(keeping);
            let mut now = Clocks::now();
            now.monotonic += Duration::from_secs(601);
            let kept = memory.borrow_mut().of(&key("a"), own, || Kept::new(own));
            assert_eq!(kept.begun(now).round_trip, expected);
        }
    }
}
