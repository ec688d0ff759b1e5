//! Associations over a network that loses, repeats, delays and changes datagrams, in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tandem_dtls::association::AssociationError;
use tandem_dtls::envelope::Envelope;
use tandem_tunnel::Closed;

use crate::network::{Direction, Fate, Network};

fn content(size: usize) -> Bytes {
    (0..size).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn handshake_survives_the_loss_of_any_datagram() {
    for direction in [Direction::Up, Direction::Down] {
        for lost in 1..8 {
            let mut network = Network::new(move |on, number, _: &[u8]| {
                if on == direction && number == lost {
                    Fate::Lost
                } else {
                    Fate::Arrives
                }
            });
            network.connect();
            let content = content(5000);
            let id = network.write(&content);
            network.expect(id, &content);
        }
    }
}

#[test]
fn handshake_survives_repetition_and_disorder() {
    for turn in 0..6 {
        let mut network = Network::new(move |_, number, _: &[u8]| match (number + turn) % 3 {
            0 => Fate::Repeated(Duration::from_millis(70)),
            1 => Fate::Late(Duration::from_millis(45)),
            _ => Fate::Arrives,
        });
        network.connect();
        let content = content(100_000);
        let id = network.write(&content);
        network.expect(id, &content);
    }
}

#[test]
fn streams_are_exact_under_loss() {
    let mut network = Network::new(|_, number, _: &[u8]| {
        if number % 17 == 3 {
            Fate::Lost
        } else {
            Fate::Arrives
        }
    });
    network.connect();
    let content = content(1 << 20);
    let ids: Vec<_> = (0..3).map(|_| network.write(&content)).collect();
    for id in ids {
        network.expect(id, &content);
    }
}

#[test]
fn forged_and_damaged_records_change_nothing() {
    let mut network = Network::new(|_, number, datagram: &[u8]| {
        let mut damaged = datagram.to_vec();
        match number {
            0..12 => return Fate::Arrives,
            number if number.is_multiple_of(5) => damaged.truncate(datagram.len() / 2),
            number if number % 5 == 1 => damaged[datagram.len() - 1] ^= 1,
            number if number % 11 == 2 => damaged.fill(0xff),
            _ => return Fate::Arrives,
        }
        Fate::As(damaged)
    });
    network.connect();
    let content = content(200_000);
    let id = network.write(&content);
    network.expect(id, &content);
    assert!(network.client.ended().is_none());
}

#[test]
fn replayed_records_change_nothing() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let recorded = Rc::clone(&seen);
    let mut network = Network::new(move |direction, _, datagram: &[u8]| {
        if direction == Direction::Up {
            recorded.borrow_mut().push(datagram.to_vec());
        }
        Fate::Arrives
    });
    network.connect();
    let content = content(50_000);
    let first = network.write(&content);
    network.expect(first, &content);
    let (own, other) = (network.client_address, "192.0.2.9:7".parse().unwrap());
    let replayed = seen.borrow().clone();
    let before = network.gateway.as_mut().unwrap().tunnel().stats();
    for datagram in &replayed {
        network.inject(own, datagram);
        network.inject(other, datagram);
    }
    let after = network.gateway.as_mut().unwrap().tunnel().stats();
    assert_eq!(before.datagrams_received, after.datagrams_received);
    assert_eq!(network.gateway.as_ref().unwrap().remote(), own);
    let second = network.write(&content);
    network.expect(second, &content);
    assert_eq!(network.astray, 0, "nothing went to the other address");
}

/// A path that reorders by 5 ms delays a record by more than 64 others at 100 Mbit/s.
#[test]
fn late_records_arrive_once() {
    let held = Rc::new(RefCell::new(Vec::new()));
    let (keeps, numbers) = (Rc::clone(&held), Rc::new(Cell::new(0)));
    let sent = Rc::clone(&numbers);
    let mut network = Network::new(move |direction, _, datagram: &[u8]| {
        if direction == Direction::Up && datagram.len() > 1000 {
            sent.set(sent.get() + 1);
            // The handshake has ended by the twentieth.
            if sent.get() == 20 {
                keeps.replace(datagram.to_vec());
                return Fate::Lost;
            }
        }
        Fate::Arrives
    });
    network.connect();
    let content = content(1 << 20);
    for _ in 0..2 {
        let id = network.write(&content);
        network.expect(id, &content);
    }
    assert!((1020..4000).contains(&numbers.get()), "{}", numbers.get());
    let own = network.client_address;
    for more in [1, 0, 0] {
        let before = network.gateway.as_mut().unwrap().tunnel().stats();
        network.inject(own, &held.borrow());
        let after = network.gateway.as_mut().unwrap().tunnel().stats();
        assert_eq!(after.datagrams_received - before.datagrams_received, more);
    }
}

#[test]
fn congestion_marks_reach_the_tunnel_and_its_peer() {
    let mut network = Network::new(|direction, number, _: &[u8]| {
        if direction == Direction::Up && number > 20 && number.is_multiple_of(10) {
            Fate::Marked
        } else {
            Fate::Arrives
        }
    });
    network.connect();
    let content = content(1 << 20);
    let id = network.write(&content);
    network.expect(id, &content);
    let gateway = network.gateway.as_mut().unwrap().tunnel().stats();
    assert!(gateway.marked > 50, "{gateway:?}");
    assert_eq!(network.client.tunnel().stats().marked, 0);
}

#[test]
fn gateway_follows_a_client_to_a_validated_address() {
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    network.connect();
    let content = content(300_000);
    let first = network.write(&content);
    network.expect(first, &content);
    network.client_address = "198.51.100.3:2000".parse().unwrap();
    let second = network.write(&content);
    network.expect(second, &content);
    let remote = network.gateway.as_ref().unwrap().remote();
    assert_eq!(remote, network.client_address);
}

/// An address translator before the gateway sends the client's datagrams to another address of it.
#[test]
fn gateway_follows_a_client_to_its_other_address() {
    let ip = |text: &str| Some(text.parse().unwrap());
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    network.gateway_ip = ip("192.0.2.1");
    network.connect();
    assert_eq!(network.astray, 0);
    let content = content(300_000);
    for (own, client) in [
        ("192.0.2.5", "192.0.2.2:1000"),
        ("192.0.2.6", "198.51.100.3:2000"),
    ] {
        network.gateway_ip = ip(own);
        network.client_address = client.parse().unwrap();
        let before = network.astray;
        let id = network.write(&content);
        network.expect(id, &content);
        network.rest();
        let moved = network.astray;
        assert!(moved > before, "the gateway sends on the old way at first");
        let id = network.write(&content);
        network.expect(id, &content);
        assert_eq!(network.astray, moved, "the gateway follows to {own}");
    }
    assert!(network.client.ended().is_none());
}

#[test]
fn gateway_ignores_an_address_without_a_response() {
    let captured = Rc::new(RefCell::new(None));
    let capture = Rc::new(Cell::new(false));
    let (taken, active) = (Rc::clone(&captured), Rc::clone(&capture));
    let mut network = Network::new(move |direction, _, datagram: &[u8]| {
        if direction == Direction::Up && active.replace(false) {
            // An attacker takes the datagram off the way, and sends it from its own address.
            *taken.borrow_mut() = Some(datagram.to_vec());
            return Fate::Lost;
        }
        Fate::Arrives
    });
    network.connect();
    capture.set(true);
    let content = content(100_000);
    let id = network.write(&content);
    assert!(network.run(|_| captured.borrow().is_some()));
    let datagram = captured.borrow_mut().take().unwrap();
    let own = network.client_address;
    network.inject("203.0.113.66:6".parse().unwrap(), &datagram);
    network.expect(id, &content);
    assert_eq!(network.gateway.as_ref().unwrap().remote(), own);
    assert_eq!(network.astray, 1, "a single challenge went there");
}

#[test]
fn client_ends_on_a_certificate_that_it_rejects() {
    let refuse = Box::new(|_: &[u8]| Err(rustls::Error::General("unknown".into())));
    let mut network = Network::verified(|_, _, _: &[u8]| Fate::Arrives, refuse);
    assert!(network.run(|network| network.client.ended().is_some()));
    let ended = network.client.ended();
    assert!(matches!(ended, Some(AssociationError::Certificate(_))));
    assert!(!network.client.is_connected());
}

#[test]
fn close_tells_the_peer() {
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    network.connect();
    network.client.close(7);
    let told = network.run(|network| network.gateway.as_ref().unwrap().ended().is_some());
    assert!(told);
    let gateway = network.gateway.as_ref().unwrap();
    let ended = gateway.ended();
    assert!(
        matches!(ended, Some(AssociationError::Closed(Closed::Peer(7)))),
        "{ended:?}"
    );
}

#[test]
fn silent_peer_is_lost() {
    let cut = Rc::new(Cell::new(false));
    let is_cut = Rc::clone(&cut);
    let mut network = Network::new(move |_, _, _: &[u8]| {
        if is_cut.get() {
            Fate::Lost
        } else {
            Fate::Arrives
        }
    });
    network.connect();
    cut.set(true);
    network.write(&content(1000));
    assert!(network.run(|network| network.client.ended().is_some()));
    let ended = network.client.ended();
    assert!(matches!(
        ended,
        Some(AssociationError::Closed(Closed::TimedOut))
    ));
}

#[test]
fn client_learns_of_a_restarted_gateway() {
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    network.connect();
    network.gateway = None;
    network.write(&content(1000));
    assert!(network.run(|network| network.client.ended().is_some()));
    let ended = network.client.ended();
    assert!(
        matches!(ended, Some(AssociationError::Unknown)),
        "{ended:?}"
    );
}

#[test]
fn forged_restart_is_ignored() {
    let mut network = Network::new(|direction, number, _: &[u8]| {
        if direction == Direction::Down && number == 12 {
            let mut forged = Vec::new();
            Envelope::Unknown { tail: [3; 16] }.encode(&mut forged);
            return Fate::As(forged);
        }
        Fate::Arrives
    });
    network.connect();
    let content = content(100_000);
    let id = network.write(&content);
    network.expect(id, &content);
}

#[test]
fn small_path_carries_whole_streams() {
    // Datagrams above 1,280 bytes of IPv6 vanish.
    let mut network = Network::new(|_, _, datagram: &[u8]| {
        if datagram.len() > 1280 - 48 {
            Fate::Lost
        } else {
            Fate::Arrives
        }
    });
    network.connect();
    let content = content(500_000);
    let id = network.write(&content);
    network.expect(id, &content);
}

/// Connects over a path of 400 ms that loses this datagram of the gateway. Returns the datagrams
/// that the gateway sends on new streams within the first round trip.
fn first_flight(lost: Option<usize>) -> usize {
    let mut network =
        Network::new(
            move |direction, number, _| match (direction, Some(number) == lost) {
                (Direction::Down, true) => Fate::Lost,
                _ => Fate::Late(Duration::from_millis(180)),
            },
        );
    network.connect();
    let before = network.sent_by_gateway();
    let now = network.now();
    let gateway = network.gateway.as_mut().unwrap();
    let at = gateway.tunnel_time(now);
    // Each has a credit of 16 KiB.
    for _ in 0..4 {
        let id = gateway.tunnel().open(at).unwrap();
        gateway.tunnel().write(id, &mut content(100_000)).unwrap();
    }
    network.rest_for(Duration::from_millis(399));
    network.sent_by_gateway() - before
}

#[test]
fn first_flight_follows_the_handshake() {
    assert_eq!(first_flight(None), 32);
    // Its first datagram is the cookie. Repeated ones do not tell the round trip.
    assert_eq!(first_flight(Some(2)), 10);
}

/// The gateway is replaced after it has sent a cookie, and the next process knows no such cookie.
#[test]
fn client_begins_again_with_another_process() {
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    assert!(network.run(|network| network.retries == 1));
    network.restart_gateway(2);
    let begun = network.now();
    network.connect();
    let taken = network.now() - begun;
    assert_eq!(network.retries, 2, "one more cookie suffices");
    // No timer has to end: the new cookie leaves with the flight that is known.
    assert!(taken < Duration::from_millis(500), "{taken:?}");
    let content = content(10_000);
    let id = network.write(&content);
    network.expect(id, &content);
}

/// Processes that take turns at one address do not make the client send at the rate of the path.
#[test]
fn client_shows_few_cookies() {
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    for secret in 2..60 {
        let before = network.retries;
        network.run(|network| network.retries > before || network.client.ended().is_some());
        network.restart_gateway(secret);
    }
    assert!(network.client.ended().is_some() && !network.client.is_connected());
    assert!(network.retries < 16, "{}", network.retries);
}
