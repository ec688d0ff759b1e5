//! The first flight of a tunnel that knows the round trip of its handshake, in virtual time.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_link::queue::QueueLimits;
use tandem_tunnel::{Algorithm, Config, Coupling};

use crate::path::{MS, Path};

/// The bytes of data in a full packet, at least.
const DATA: u64 = 1180;
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Cubic, Algorithm::Bbr];

fn link(rate: &str, round_trip: Duration, packets: usize) -> LinkConfig {
    LinkConfig {
        delay: round_trip / 2,
        rate: rate.parse().expect("a rate"),
        queue: QueueLimits {
            packets: Some(packets),
            ..QueueLimits::default()
        },
        ..LinkConfig::default()
    }
}

/// Returns the bytes of a download that arrive within `time`.
fn received(config: &Config, link: &LinkConfig, knows: bool, time: Duration) -> u64 {
    let mut path = Path::new(config, link, 1);
    path.client.counts_only = true;
    let tunnel = &mut path.server.tunnel;
    if knows {
        tunnel.note_handshake(2 * link.delay);
    }
    let stream = tunnel.open(path.now).expect("open");
    let mut data = Bytes::from_static(&[7; 1 << 20]);
    tunnel.write(stream, &mut data).expect("an open stream");
    path.run_for(time);
    path.client.bytes_read.get(&stream).copied().unwrap_or(0)
}

fn config(algorithm: Algorithm) -> Config {
    Config {
        algorithm,
        // The window of the receiver does not limit the sender.
        initial_credit: 8 << 20,
        ..Config::default()
    }
}

#[test]
fn first_flight_of_a_long_path_has_32_packets() {
    let round_trip = 400 * MS;
    let link = link("20mbit", round_trip, 667);
    for algorithm in ALGORITHMS {
        let [unknown, known] = [false, true].map(|knows| {
            let time = round_trip * 3 / 2 - MS;
            received(&config(algorithm), &link, knows, time) / DATA
        });
        assert_eq!((unknown, known), (10, 32), "{algorithm:?}");
    }
}

#[test]
fn first_flight_of_a_short_path_has_ten_packets() {
    let round_trip = 40 * MS;
    let link = link("20mbit", round_trip, 67);
    for algorithm in ALGORITHMS {
        let time = round_trip * 3 / 2 - MS;
        let packets = received(&config(algorithm), &link, true, time) / DATA;
        assert_eq!(packets, 10, "{algorithm:?}");
    }
}

/// Paced over the round trip, 25 packets fit a queue of 17.
#[test]
fn first_flight_fits_a_thin_path() {
    let link = link("2mbit", 100 * MS, 17);
    for algorithm in ALGORITHMS {
        let packets = received(&config(algorithm), &link, true, 195 * MS) / DATA;
        assert!(packets >= 25, "{algorithm:?}: {packets}");
    }
}

/// Many flows at once begin with ten packets each.
#[test]
fn streams_with_own_windows_begin_with_ten_packets() {
    let round_trip = 400 * MS;
    let link = link("20mbit", round_trip, 667);
    let config = Config {
        coupling: Coupling::PerStream,
        ..config(Algorithm::Bbr)
    };
    let packets = received(&config, &link, true, round_trip * 3 / 2 - MS) / DATA;
    assert_eq!(packets, 10);
}

/// The rate of the second round does not fall to that of the first acknowledgements.
#[test]
fn bbr_doubles_a_paced_first_flight() {
    let round_trip = 400 * MS;
    let link = link("20mbit", round_trip, 667);
    let time = round_trip * 5 / 2;
    let packets = received(&config(Algorithm::Bbr), &link, true, time) / DATA;
    assert!(packets >= 32 * 3 * 9 / 10, "{packets}");
}

/// Returns the bytes of a download that arrive within `time`, after small messages with pauses.
fn received_after_messages(algorithm: Algorithm, messages: usize, time: Duration) -> u64 {
    let round_trip = 400 * MS;
    let link = link("20mbit", round_trip, 667);
    let mut path = Path::new(&config(algorithm), &link, 1);
    path.client.counts_only = true;
    path.server.tunnel.note_handshake(round_trip);
    let stream = path.server.tunnel.open(path.now).expect("open");
    for _ in 0..messages {
        let mut message = Bytes::from_static(&[7; 300]);
        path.server
            .tunnel
            .write(stream, &mut message)
            .expect("an open stream");
        path.run_for(2 * round_trip);
    }
    let before = path.client.bytes_read.get(&stream).copied().unwrap_or(0);
    let mut data = Bytes::from_static(&[7; 1 << 20]);
    path.server
        .tunnel
        .write(stream, &mut data)
        .expect("an open stream");
    path.run_for(time);
    path.client.bytes_read.get(&stream).copied().unwrap_or(0) - before
}

/// Messages that the application limits tell nothing about the rate of the path.
#[test]
fn small_messages_with_pauses_leave_the_window() {
    let time = 400 * MS * 7 / 2;
    for algorithm in ALGORITHMS {
        let [fresh, used] = [0, 20].map(|messages| {
            let bytes = received_after_messages(algorithm, messages, time);
            bytes / DATA
        });
        assert!(used >= fresh, "{algorithm:?}: {used} of {fresh} packets");
    }
}
