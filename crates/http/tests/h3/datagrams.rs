//! Datagrams of HTTP/3 (RFC 9297): two cores exchange them in place of capsules.

use bytes::Bytes;
use tandem_http::connect_udp::{self, CapsuleReader, put_datagram};
use tandem_http::h3::Code;
use tandem_http::{Event, Mux, Priority, Reason, RequestHead, Role, Scheme};

use crate::support::*;

/// The largest datagram of the carrier in bytes.
const LARGEST: usize = 1200;

/// A session with one tunnel for datagrams.
struct Tunnel {
    pair: Pair,
    /// The numbers of the tunnel at the client and at the server.
    ids: [u32; 2],
}

fn session(permit: [bool; 2]) -> Pair {
    let mut pair = Pair::new();
    for (end, permit) in [&mut pair.client, &mut pair.server].into_iter().zip(permit) {
        if permit {
            end.core.permit_datagrams();
            end.core.set_max_datagram(LARGEST);
        }
    }
    pair.run();
    pair
}

impl Tunnel {
    fn asked(mut pair: Pair) -> Self {
        let head = connect_udp::request("192.0.2.1", 443);
        let opened = pair.client.core.open(&head, false, Priority(3));
        let near = opened.expect("room for a request");
        let (_, server) = pair.run();
        let far = server.iter().find_map(|event| match event {
            Event::Request { id, .. } => Some(*id),
            _ => None,
        });
        let ids = [near, far.expect("a request")];
        Self { pair, ids }
    }

    fn open(permit: [bool; 2]) -> Self {
        let mut tunnel = Self::asked(session(permit));
        tunnel.respond(200);
        tunnel.pair.run();
        tunnel
    }

    fn respond(&mut self, status: u16) {
        let head = response(status, &[("capsule-protocol", "?1")]);
        self.pair.server.core.respond(self.ids[1], &head, false);
    }

    fn end(&mut self, role: Role) -> (&mut End, u32) {
        match role {
            Role::Client => (&mut self.pair.client, self.ids[0]),
            Role::Server => (&mut self.pair.server, self.ids[1]),
        }
    }

    /// Sends UDP payloads in one direction.
    fn send(&mut self, from: Role, payloads: &[&[u8]]) {
        let (end, id) = self.end(from);
        let mut wire = Vec::new();
        for payload in payloads {
            put_datagram(&mut wire, payload);
        }
        end.core.send_data(id, wire.into(), false);
    }

    /// Takes the datagrams on their way from one end.
    fn datagrams(&mut self, from: Role) -> Vec<Bytes> {
        let (end, _) = self.end(from);
        std::iter::from_fn(|| end.core.poll_datagram()).collect()
    }

    fn take(&mut self, to: Role, datagrams: Vec<Bytes>) {
        let (end, _) = self.end(to);
        for datagram in datagrams {
            end.core
                .handle_datagram(datagram)
                .expect("a legal datagram");
        }
    }

    /// Returns the UDP payloads that arrived on the stream, or in datagrams before.
    fn received(&mut self, at: Role) -> Vec<Bytes> {
        let (end, _) = self.end(at);
        let mut all = events(&mut end.core);
        let (client, server) = self.pair.run();
        all.extend(match at {
            Role::Client => client,
            Role::Server => server,
        });
        let mut reader = CapsuleReader::default();
        for event in all {
            if let Event::Data { id, data, .. } = event {
                reader.push(&data);
                let (end, _) = self.end(at);
                end.core.release(id, data.len());
            }
        }
        let payloads = std::iter::from_fn(|| reader.datagram().expect("capsules")).collect();
        reader.finish().expect("whole capsules");
        payloads
    }
}

#[test]
fn h3_datagrams_carry_capsules_that_fit() {
    for (from, to) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
        let mut tunnel = Tunnel::open([true; 2]);
        let large = [7; LARGEST];
        tunnel.send(from, &[b"one", &large, b"", b"two"]);
        let datagrams = tunnel.datagrams(from);
        // The first request of a client is on stream 0. The context ID of UDP payloads is 0.
        assert_eq!(datagrams, [&b"\0\0one"[..], b"\0\0", b"\0\0two"]);
        tunnel.take(to, datagrams);
        let received = tunnel.received(to);
        assert_eq!(received, [&b"one"[..], b"", b"two", &large]);
    }
}

#[test]
fn h3_datagrams_need_both_ends() {
    for permit in [[true, false], [false, true], [false, false]] {
        let mut tunnel = Tunnel::open(permit);
        tunnel.send(Role::Client, &[b"one"]);
        tunnel.send(Role::Server, &[b"two"]);
        assert!(tunnel.datagrams(Role::Client).is_empty(), "{permit:?}");
        assert!(tunnel.datagrams(Role::Server).is_empty(), "{permit:?}");
        let (client, server) = tunnel.pair.run();
        for (events, payload) in [(client, b"two"), (server, b"one")] {
            assert!(events.iter().any(|event| matches!(event,
                Event::Data { data, .. } if data.ends_with(payload))));
        }
    }
}

/// A datagram of a client could overtake its request, and would be lost.
#[test]
fn h3_client_sends_capsules_before_the_response() {
    let mut tunnel = Tunnel::asked(session([true; 2]));
    tunnel.send(Role::Client, &[b"early"]);
    assert!(tunnel.datagrams(Role::Client).is_empty());
    assert_eq!(tunnel.received(Role::Server), [&b"early"[..]]);
    tunnel.respond(200);
    tunnel.pair.run();
    tunnel.send(Role::Client, &[b"late"]);
    assert_eq!(tunnel.datagrams(Role::Client).len(), 1);
}

#[test]
fn h3_datagrams_wait_for_response_and_whole_capsules() {
    let mut tunnel = Tunnel::asked(session([true; 2]));
    tunnel.respond(200);
    let whole = [9; LARGEST];
    tunnel.send(Role::Server, &[b"first", &whole]);
    let overtaking = tunnel.datagrams(Role::Server);
    tunnel.take(Role::Client, overtaking);
    assert!(events(&mut tunnel.pair.client.core).is_empty());
    // The response and the long capsule arrive in parts.
    tunnel.pair.choices = vec![300];
    assert!(tunnel.pair.step(Role::Server));
    tunnel.send(Role::Server, &[b"second"]);
    let between = tunnel.datagrams(Role::Server);
    tunnel.take(Role::Client, between);
    let received = tunnel.received(Role::Client);
    assert_eq!(received, [&b"first"[..], &whole, b"second"]);
}

#[test]
fn h3_refused_tunnel_has_no_datagrams() {
    let mut tunnel = Tunnel::asked(session([true; 2]));
    tunnel.respond(403);
    tunnel.pair.run();
    let (near, far) = (tunnel.ids[0], Bytes::from_static(b"a page"));
    tunnel.pair.server.core.send_data(tunnel.ids[1], far, true);
    tunnel.take(Role::Client, vec![Bytes::from_static(b"\0\0x")]);
    let (client, _) = tunnel.pair.run();
    assert_eq!(body(&client, near), (b"a page".to_vec(), true));
    assert!(!tunnel.pair.client.core.has_datagrams());
}

#[test]
fn h3_datagrams_without_a_tunnel_are_dropped() {
    let mut tunnel = Tunnel::open([true; 2]);
    for datagram in [&b"\x01\0other"[..], b"\x3f\0none"] {
        tunnel.take(Role::Server, vec![Bytes::from_static(datagram)]);
    }
    assert!(tunnel.received(Role::Server).is_empty());
    tunnel
        .pair
        .client
        .core
        .reset(tunnel.ids[0], tandem_http::Reason::Cancel);
    tunnel.pair.run();
    assert!(!tunnel.pair.server.core.has_datagrams());
    tunnel.take(Role::Server, vec![Bytes::from_static(b"\0\0late")]);
    assert!(events(&mut tunnel.pair.server.core).is_empty());
}

#[test]
fn h3_malformed_datagrams_end_the_session() {
    for datagram in [&b""[..], b"\x40", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
        let mut tunnel = Tunnel::open([true; 2]);
        let server = &mut tunnel.pair.server.core;
        server
            .handle_datagram(Bytes::from_static(datagram))
            .expect_err("no number of a request");
        let failure = server.failure().expect("a failure");
        assert_eq!(failure.0, Code::DATAGRAM_ERROR);
    }
}

/// A flow that does not leave holds a bounded number of bytes, and goes on when it has left.
#[test]
fn h3_unsent_and_unread_datagrams_are_bounded() {
    let mut tunnel = Tunnel::open([true; 2]);
    let payload = [1; 1000];
    while tunnel.pair.client.core.send_room(tunnel.ids[0]) > 0 {
        tunnel.send(Role::Client, &[&payload]);
    }
    let unsent = tunnel.datagrams(Role::Client);
    assert!((10..=20).contains(&unsent.len()), "{}", unsent.len());
    let told = events(&mut tunnel.pair.client.core);
    assert!(matches!(told[..], [Event::Writable { .. }]), "{told:?}");
    // A server that does not read them loses the rest.
    let window = server_config().stream_window as usize;
    for _ in 0..2 * window / (unsent.len() * 1000) {
        tunnel.take(Role::Server, unsent.clone());
    }
    let held: usize = events(&mut tunnel.pair.server.core)
        .iter()
        .map(|event| match event {
            Event::Data { data, .. } => data.len(),
            _ => 0,
        })
        .sum();
    assert!((window..window + 1100).contains(&held), "{held}");
}

/// An empty capsule needs memory as well.
#[test]
fn h3_empty_datagrams_are_bounded() {
    let mut tunnel = Tunnel::open([true; 2]);
    let mut sent = 0;
    while tunnel.pair.client.core.send_room(tunnel.ids[0]) > 0 && sent < 2000 {
        let empty = Bytes::from_static(&[0, 0]);
        let (end, id) = tunnel.end(Role::Client);
        end.core.send_data(id, empty, false);
        sent += 1;
    }
    assert!((100..500).contains(&sent), "{sent}");
    assert_eq!(tunnel.datagrams(Role::Client).len(), sent);
    let mut early = Tunnel::asked(session([true; 2]));
    early.take(Role::Client, vec![Bytes::from_static(b"\0\0"); 2000]);
    early.respond(200);
    let received = early.received(Role::Client).len();
    assert!((100..500).contains(&received), "{received}");
}

/// The page of a refusal is no stream of capsules, though it may look like the head of one.
#[test]
fn h3_refusal_holds_nothing_back() {
    for (status, fields) in [(403, &[("capsule-protocol", "?1")][..]), (200, &[])] {
        let mut tunnel = Tunnel::asked(session([true; 2]));
        let head = response(status, fields);
        let (end, id) = tunnel.end(Role::Server);
        end.core.respond(id, &head, false);
        let page = Bytes::from_static(b"\0\x01x\0\x40");
        end.core.send_data(id, page.clone(), false);
        assert!(end.core.poll_datagram().is_none());
        let (client, _) = tunnel.pair.run();
        let near = tunnel.ids[0];
        assert_eq!(body(&client, near), (page.to_vec(), false), "{status}");
    }
}

/// RFC 9297 section 2.
#[test]
fn h3_datagram_for_another_request_aborts_it() {
    let mut pair = session([true; 2]);
    let head = RequestHead::get(Scheme::Https, "a.test", "/");
    let near = pair.client.core.open(&head, true, Priority(3));
    pair.run();
    let datagram = Bytes::from_static(b"\0\0x");
    let server = &mut pair.server.core;
    server
        .handle_datagram(datagram)
        .expect("the session goes on");
    let (client, _) = pair.run();
    let reset = |event: &Event| match event {
        Event::Reset { id, reason } => Some((*id, *reason)),
        _ => None,
    };
    let expected = (near.expect("room"), Reason::Protocol);
    assert_eq!(client.iter().find_map(reset), Some(expected));
}

/// Two flows with many datagrams send in turn.
#[test]
fn h3_flows_send_datagrams_in_turn() {
    let tunnel = Tunnel::open([true; 2]);
    let first = tunnel.ids;
    let mut other = Tunnel::asked(tunnel.pair);
    other.respond(200);
    other.pair.run();
    let second = other.ids;
    for ids in [first, second] {
        other.ids = ids;
        other.send(Role::Client, &[b"a", b"b"]);
    }
    let sent = other.datagrams(Role::Client);
    assert_eq!(sent, [&b"\0\0a"[..], b"\x01\0a", b"\0\0b", b"\x01\0b"]);
}
