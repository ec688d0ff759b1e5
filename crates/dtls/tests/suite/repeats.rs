//! Handshakes on paths that lose datagrams or change their round trip, in virtual time.
//!
//! The round trip is that of [`ROUND_TRIP`], unless a test says otherwise.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::rc::Rc;
use std::time::Duration;

use tandem_dtls::envelope::Envelope;

use crate::network::{DELAY, Direction, Fate, Network};

const MS: Duration = Duration::from_millis(1);
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// The handshakes of each test: dimpl varies its times by chance.
const HANDSHAKES: usize = 20;

/// The fate of a datagram on a path with this round trip.
fn after(round_trip: Duration) -> Fate {
    Fate::Late((round_trip / 2).saturating_sub(DELAY))
}

/// Returns the time of a handshake that loses the datagrams of `lost`, by direction and number.
fn handshake_without(lost: (Direction, usize)) -> Duration {
    let mut network = Network::new(move |direction, number, _: &[u8]| {
        if (direction, number) == lost {
            Fate::Lost
        } else {
            after(ROUND_TRIP)
        }
    });
    let start = network.now();
    network.connect();
    network.now() - start
}

/// The datagrams of a handshake: a hello, the first flight and the last one of the client; a retry
/// and some datagrams of the gateway.
#[test]
fn lost_flight_is_repeated_after_some_round_trips() {
    let whole = handshake_without((Direction::Up, 0));
    assert_eq!(whole, 5 * ROUND_TRIP / 2);
    for lost in [(Direction::Up, 2), (Direction::Up, 3), (Direction::Down, 2)] {
        for _ in 0..HANDSHAKES {
            let more = handshake_without(lost) - whole;
            assert!(more < 6 * ROUND_TRIP, "{more:?} without {lost:?}");
        }
    }
}

/// The answer does not tell which hello it answers.
#[test]
fn round_trip_of_a_repeated_hello_is_not_known() {
    for _ in 0..HANDSHAKES {
        let mut network = Network::new(|direction, number, _: &[u8]| {
            match (direction, number) {
                // The first hello is answered after the second one has left.
                (Direction::Up, 1) => after(1100 * MS),
                (Direction::Up, 3) => Fate::Lost,
                _ => after(ROUND_TRIP),
            }
        });
        let start = network.now();
        network.connect();
        let least = ROUND_TRIP * 5 / 2 + 500 * MS + 750 * MS;
        assert!(network.now() - start >= least, "it is a second by default");
    }
}

/// Returns the datagrams of a handshake in each direction.
fn datagrams(mut delay: impl FnMut(Direction, usize) -> Duration + 'static) -> [usize; 2] {
    let counts = Rc::new(Cell::new([0; 2]));
    let counted = Rc::clone(&counts);
    let mut network = Network::new(move |direction, number, _: &[u8]| {
        let mut counts = counted.get();
        counts[usize::from(direction == Direction::Down)] += 1;
        counted.set(counts);
        Fate::Late(delay(direction, number).saturating_sub(DELAY))
    });
    network.connect();
    counts.get()
}

#[test]
fn changing_round_trip_repeats_nothing() {
    let least = datagrams(|_, _| ROUND_TRIP / 2);
    for _ in 0..HANDSHAKES {
        let tripled = datagrams(|direction, number| match (direction, number) {
            (_, 1) => ROUND_TRIP / 2,
            _ => ROUND_TRIP * 3 / 2,
        });
        assert_eq!(tripled, least, "three times as long after the cookie");
        let random = RandomState::new();
        let jittery = datagrams(move |direction, number| {
            let part = random.hash_one((direction == Direction::Up, number)) % 100;
            ROUND_TRIP / 2 + MS * (part as u32)
        });
        assert_eq!(jittery, least, "from one to three times as long");
    }
}

/// Counts the first flights that a client sends.
fn is_first_flight(datagram: &[u8]) -> bool {
    matches!(Envelope::decode(datagram), Ok(Envelope::Initial { .. }))
}

/// A client on a short path repeats its flight more often within the same time.
#[test]
fn gateway_answers_all_repetitions_after_a_cookie() {
    let flights = Rc::new(Cell::new(0));
    let counted = Rc::clone(&flights);
    let mut network = Network::new(move |direction, number, datagram: &[u8]| {
        counted.set(counted.get() + usize::from(is_first_flight(datagram)));
        let is_lost = direction == Direction::Down && number > 1 && counted.get() < 7;
        if is_lost { Fate::Lost } else { Fate::Arrives }
    });
    let start = network.now();
    network.connect();
    assert_eq!(flights.get(), 7);
    let taken = network.now() - start;
    assert!(taken < Duration::from_secs(20), "{taken:?}");
}

/// A client that returns has sent nothing to which the gateway could have answered.
#[test]
fn earlier_round_trip_is_known_at_a_return() {
    for is_shown in [true, false] {
        for _ in 0..HANDSHAKES {
            let lost = Rc::new(Cell::new(false));
            let loses = Rc::clone(&lost);
            let mut network = Network::new(move |direction, _, _: &[u8]| {
                match direction == Direction::Up && loses.take() {
                    true => Fate::Lost,
                    false => after(ROUND_TRIP),
                }
            });
            network.connect();
            network.rest_for(3 * ROUND_TRIP);
            let token = network.client.take_token().unwrap();
            network.begin_again(None);
            network.client.expect_round_trip(ROUND_TRIP);
            if is_shown {
                network.client.show(&token, network.now());
            }
            lost.set(true);
            let start = network.now();
            assert!(network.run(|network| network.client.is_connected()));
            let handshake = if is_shown { ROUND_TRIP } else { 2 * ROUND_TRIP };
            let more = network.now() - start - handshake;
            // A hello is repeated after exactly this time, and after 500 ms otherwise.
            let most = if is_shown { 6 * ROUND_TRIP } else { 450 * MS };
            assert!(!lost.get() && more <= most, "{more:?}");
        }
    }
}
