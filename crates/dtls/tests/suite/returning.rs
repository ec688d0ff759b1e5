//! Clients that return to a gateway with an address token, in virtual time and over sockets.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;
use tandem_dtls::envelope::Envelope;
use tandem_dtls::token::AddressToken;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, block_on, request};
use crate::network::{DELAY, Direction, Fate, Network};
use crate::provided::{OK, start_client, start_gateway, stop};
use crate::slow_path::SlowPath;

fn exact() -> Network {
    Network::new(|_, _, _: &[u8]| Fate::Arrives)
}

/// Returns the token of an association that has just begun.
fn token(network: &mut Network) -> AddressToken {
    network.connect();
    network.rest_for(3 * DELAY);
    network.client.take_token().expect("a token")
}

/// Begins an association with a token. Returns the times that its handshake takes a datagram to
/// travel, and the retries in it.
fn handshake(network: &mut Network, token: Option<&AddressToken>) -> (u32, usize) {
    let (begun, retries) = (network.now(), network.retries);
    network.begin_again(token);
    assert!(network.run(|network| network.client.is_connected()));
    let taken = network.now() - begun;
    let travels = (taken.as_secs_f64() / DELAY.as_secs_f64()).round() as u32;
    network.connect();
    let content = Bytes::from_static(&[7; 5000]);
    let id = network.write(&content);
    network.expect(id, &content);
    (travels, network.retries - retries)
}

#[test]
fn token_saves_a_round_trip() {
    let mut network = exact();
    let first = token(&mut network);
    assert_eq!(handshake(&mut network, None), (4, 1));
    assert_eq!(handshake(&mut network, Some(&first)), (2, 0));
    // The association has brought the next one.
    let next = network.client.take_token().expect("a token");
    assert_ne!(next, first);
    assert_eq!(handshake(&mut network, Some(&next)), (2, 0));
}

/// Each association of a client has another port, and a translator of addresses may change it too.
#[test]
fn token_is_valid_at_another_port() {
    let mut network = exact();
    let token = token(&mut network);
    network.client_address.set_port(4711);
    assert_eq!(handshake(&mut network, Some(&token)), (2, 0));
}

#[test]
fn token_at_another_address_costs_no_more_than_none() {
    let mut network = exact();
    let token = token(&mut network);
    let own = network.client_address;
    network.client_address = "192.0.2.3:1000".parse().unwrap();
    assert_eq!(handshake(&mut network, Some(&token)), (4, 1));
    // It was not used up there.
    network.client_address = own;
    assert_eq!(handshake(&mut network, Some(&token)), (2, 0));
}

#[test]
fn used_token_costs_no_more_than_none() {
    let mut network = exact();
    let token = token(&mut network);
    assert_eq!(handshake(&mut network, Some(&token)), (2, 0));
    assert_eq!(handshake(&mut network, Some(&token)), (4, 1));
}

#[test]
fn token_of_another_process_costs_no_more_than_none() {
    let mut network = exact();
    let token = token(&mut network);
    network.restart_gateway(2);
    assert_eq!(handshake(&mut network, Some(&token)), (4, 1));
    let next = network.client.take_token().expect("a token");
    assert_eq!(handshake(&mut network, Some(&next)), (2, 0));
}

#[test]
fn old_token_costs_no_more_than_none() {
    let mut network = exact();
    let token = token(&mut network);
    network.pass(Duration::from_secs(24 * 3600));
    assert_eq!(handshake(&mut network, Some(&token)), (4, 1));
}

/// Such a gateway takes the token for the cookie of another process.
#[test]
fn gateway_of_an_earlier_version_sends_a_cookie() {
    let mut network = exact();
    let token = token(&mut network);
    network.has_tokens = false;
    assert_eq!(handshake(&mut network, Some(&token)), (4, 1));
    assert_eq!(network.client.take_token(), None);
}

/// On a path of 600 ms, DTLS would repeat a flight that left with the token before the answer to
/// the cookie comes.
#[test]
fn refused_token_leaves_a_known_round_trip() {
    for later in [0, 280].map(Duration::from_millis) {
        let mut network = Network::new(move |_, _, _: &[u8]| Fate::Late(later));
        let way = DELAY + later;
        network.connect();
        network.rest_for(3 * way);
        let token = network.client.take_token().expect("a token");
        network.restart_gateway(2);
        network.begin_again(Some(&token));
        network.connect();
        assert_eq!(network.client.tunnel().first_rtt(), Some(2 * way));
    }
}

#[test]
fn return_survives_the_loss_of_any_datagram() {
    for direction in [Direction::Up, Direction::Down] {
        for lost in 1..8 {
            let left = Rc::new(Cell::new(0));
            let counted = Rc::clone(&left);
            let mut network = Network::new(move |on, _, _: &[u8]| {
                if on == direction && counted.get() > 0 {
                    counted.set(counted.get() - 1);
                    if counted.get() == 0 {
                        return Fate::Lost;
                    }
                }
                Fate::Arrives
            });
            let token = token(&mut network);
            left.set(lost);
            let (_, retries) = handshake(&mut network, Some(&token));
            assert_eq!(
                retries, 0,
                "{direction:?} {lost}: the repeated flight is the same attempt"
            );
        }
    }
}

#[test]
fn lost_token_is_sent_again() {
    let lost = Rc::new(Cell::new(false));
    let loses = Rc::clone(&lost);
    let mut network = Network::new(move |on, _, _: &[u8]| {
        if on == Direction::Down && loses.get() {
            Fate::Lost
        } else {
            Fate::Arrives
        }
    });
    assert!(network.run(|network| network.client.is_connected()));
    // The client has sent the end of its handshake, and the token follows.
    lost.set(true);
    network.rest_for(5 * DELAY);
    lost.set(false);
    assert_eq!(network.client.take_token(), None);
    network.pass(Duration::from_secs(2));
    let content = Bytes::from_static(b"content");
    for _ in 0..2 {
        let id = network.write(&content);
        network.expect(id, &content);
    }
    network.rest_for(3 * DELAY);
    let token = network.client.take_token().expect("the second copy");
    assert_eq!(network.client.take_token(), None, "it comes once");
    assert_eq!(handshake(&mut network, Some(&token)), (2, 0));
}

#[test]
fn copy_of_a_token_is_not_taken_twice() {
    let mut network = exact();
    token(&mut network);
    network.pass(Duration::from_secs(2));
    let content = Bytes::from_static(b"content");
    let id = network.write(&content);
    network.expect(id, &content);
    network.rest_for(3 * DELAY);
    assert_eq!(network.client.take_token(), None);
}

#[test]
fn client_that_moves_gets_a_token_for_its_new_address() {
    let mut network = exact();
    let first = token(&mut network);
    network.client_address = "198.51.100.3:2000".parse().unwrap();
    let content = Bytes::from(vec![7; 100_000]);
    let id = network.write(&content);
    network.expect(id, &content);
    network.rest_for(3 * DELAY);
    let second = network.client.take_token().expect("another token");
    assert_eq!(handshake(&mut network, Some(&first)), (4, 1));
    assert_eq!(handshake(&mut network, Some(&second)), (2, 0));
}

/// A gateway, and a client behind a path with a delay, whose sessions end soon.
struct Pair {
    gateway: Running,
    client: Running,
    http: SocketAddr,
    path: SlowPath,
    origin: Scene,
}

impl Pair {
    fn start(
        name: &str,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let certificates = Certificates::new(name);
        let (gateway, address) = start_gateway(&certificates, 0, gateway);
        let path = SlowPath::to(address, Duration::from_millis(50));
        let (running, http) = start_client(&certificates, path.address, |options| {
            options.preconnect = Some(false);
            options.idle_timeout = Some("500ms".parse().unwrap());
            client(options);
        });
        Self {
            gateway,
            client: running,
            http,
            path,
            origin: Scene::answering(OK),
        }
    }

    /// Sends a request in a session of its own. Returns true if that began with a token.
    fn returns(&self, fields: &str) -> bool {
        self.path.record();
        let mut browser = Client::to(self.http);
        browser.send(request("GET", &self.origin.url("/"), fields));
        assert_eq!(browser.answer("GET").status, 200);
        self.idle();
        let flight = self.path.first_flight();
        match Envelope::decode(&flight[0]) {
            Ok(Envelope::Hello { .. }) => false,
            Ok(Envelope::Initial { .. }) => true,
            other => panic!("no first datagram: {other:?}"),
        }
    }

    /// Waits until the session of the client has ended.
    fn idle(&self) {
        let begun = Instant::now();
        while !block_on(self.gateway.status().snapshot())
            .sessions
            .is_empty()
        {
            assert!(begun.elapsed() < PATIENCE, "the session does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(self) {
        stop([self.client, self.gateway]);
    }
}

#[test]
fn session_of_a_return_begins_with_a_token() {
    let pair = Pair::start("dtls-returns", |_| {}, |_| {});
    let before = tandem::metrics::METRICS.dtls_tokens_accepted.value();
    assert_eq!([(); 3].map(|()| pair.returns("")), [false, true, true]);
    let accepted = tandem::metrics::METRICS.dtls_tokens_accepted.value() - before;
    assert!(accepted >= 2, "{accepted}");
    pair.stop();
}

#[test]
fn isolation_keys_share_no_token() {
    let pair = Pair::start("dtls-return-keys", |_| {}, |_| {});
    // The base64 form of "a:" and "b:".
    let [a, b] = ["YTo=", "Yjo="].map(|user| format!("Proxy-Authorization: Basic {user}\r\n"));
    let keys = [&a[..], &b, "", &a, &b, ""];
    let shown = keys.map(|fields| pair.returns(fields));
    assert_eq!(shown, [false, false, false, true, true, true]);
    pair.stop();
}

#[test]
fn ends_without_early_data_have_no_tokens() {
    let client = Pair::start(
        "dtls-return-off",
        |_| {},
        |options| {
            options.early_data = Some(false);
        },
    );
    assert_eq!([(); 2].map(|()| client.returns("")), [false, false]);
    client.stop();
    let gateway = |options: &mut GatewayOptions| options.early_data = Some(false);
    let gateway = Pair::start("dtls-no-return", gateway, |_| {});
    assert_eq!([(); 2].map(|()| gateway.returns("")), [false, false]);
    gateway.stop();
}

/// For an unknown round trip, the time is a second, less a quarter at most.
#[test]
fn client_keeps_the_round_trip_for_its_return() {
    let pair = Pair::start("dtls-round-trip", |_| {}, |_| {});
    assert!(!pair.returns(""));
    // A machine that is busy for a moment may take longer.
    let mut times = (0..5).map(|_| {
        pair.path.lose_first_flight();
        let begun = Instant::now();
        let mut browser = Client::to(pair.http);
        browser.send(request("GET", &pair.origin.url("/"), ""));
        assert_eq!(browser.answer("GET").status, 200);
        let time = begun.elapsed();
        assert!(time >= Duration::from_millis(300), "{time:?}");
        pair.idle();
        time
    });
    assert!(times.any(|time| time < Duration::from_millis(900)));
    pair.stop();
}
