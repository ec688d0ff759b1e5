//! The hub with datagrams of several clients, without a network.

mod returning;

use std::cell::Cell;

use super::*;

use crate::inbox::{OWN, Reader, STRANGE, UNCONNECTED};

const NONCE: [u8; 8] = [5; 8];

/// Brings a datagram to the hub, and returns its reply.
fn handle(hub: &Arc<Hub>, number: u64, from: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let mut replies = Batch::default();
    hub.handle(number, &Arrived::one(from, datagram), &mut replies);
    replies.bytes
}

fn hello(hub: &Arc<Hub>, from: SocketAddr) -> (AssociationId, [u8; 12]) {
    let mut hello = Vec::new();
    Envelope::Hello { nonce: NONCE }.encode(&mut hello);
    let reply = handle(hub, 0, from, &hello);
    assert!(reply.len() <= hello.len(), "no amplification");
    match Envelope::decode(&reply) {
        Ok(Envelope::Retry { id, cookie, .. }) => (id, cookie),
        other => panic!("no retry: {other:?}"),
    }
}

fn initial(cookie: [u8; 12]) -> Vec<u8> {
    let mut datagram = Vec::new();
    let records = b"records";
    Envelope::Initial {
        nonce: NONCE,
        cookie,
        records,
    }
    .encode(&mut datagram);
    datagram
}

/// Returns the bytes that wait for a newcomer.
fn waiting(newcomer: &Newcomer) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut reader = Reader::new(Arc::clone(&newcomer.inbox));
    reader.receive(|arrived| bytes.extend_from_slice(arrived.bytes));
    bytes
}

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").expect("a port")
}

#[test]
fn hub_keeps_state_only_after_a_cookie() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, mut newcomers) = hub.add_listener();
    let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
    let other: SocketAddr = "192.0.2.8:1000".parse().expect("an address");
    let (id, cookie) = hello(&hub, from);
    for (address, cookie) in [(from, [0; 12]), (other, cookie)] {
        let sent = initial(cookie);
        let reply = handle(&hub, number, address, &sent);
        let reply = Envelope::decode(&reply);
        assert!(matches!(reply, Ok(Envelope::Retry { .. })), "{reply:?}");
        // A shorter datagram gets nothing, so that no reply is longer than its question.
        assert!(handle(&hub, number, address, &sent[..24]).is_empty());
        assert!(newcomers.try_recv().is_err() && hub.state().routes.is_empty());
    }
    for _ in 0..2 {
        assert!(handle(&hub, number, from, &initial(cookie)).is_empty());
    }
    let newcomer = newcomers.try_recv().expect("one association");
    assert_eq!((newcomer.ends.peer, newcomer.route.id), (from, id));
    assert!(
        newcomers.try_recv().is_err(),
        "the repetition is the same client"
    );
    assert_eq!(waiting(&newcomer), [&initial(cookie)[..]; 2].concat());
    drop(newcomer);
    assert!(hub.state().routes.is_empty());
}

/// A gateway that drains answers nothing, so that the client finds the next process.
#[test]
fn hub_without_listeners_sends_no_cookie() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, _newcomers) = hub.add_listener();
    let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
    let (_, cookie) = hello(&hub, from);
    hub.remove_listener(number);
    let mut datagram = Vec::new();
    Envelope::Hello { nonce: NONCE }.encode(&mut datagram);
    for sent in [datagram, initial(cookie), initial([0; 12])] {
        assert!(handle(&hub, number, from, &sent).is_empty());
    }
}

#[test]
fn hub_ignores_datagrams_that_it_cannot_answer() {
    let hub = Arc::new(Hub::new(socket()));
    let _newcomers = hub.add_listener();
    let from = SocketAddr::from(([192, 0, 2, 7], 0));
    let (mut datagram, id) = (Vec::new(), AssociationId::new([1; 4]));
    for envelope in [
        Envelope::Hello { nonce: NONCE },
        Envelope::Data {
            id,
            records: &[7; 40],
        },
    ] {
        envelope.encode(&mut datagram);
        assert!(handle(&hub, 0, from, &datagram).is_empty());
        let answered = SocketAddr::new(from.ip(), 1);
        assert!(!handle(&hub, 0, answered, &datagram).is_empty());
    }
}

/// Replies of the hub and those of an association leave from the address that has got the
/// datagram before them.
#[test]
fn replies_leave_from_the_address_of_the_question() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, mut newcomers) = hub.add_listener();
    let peer: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
    let ends = ["198.51.100.1", "198.51.100.2"].map(|own| Ends {
        peer,
        own: Some(own.parse().expect("an address")),
    });
    let (mut datagram, id) = (Vec::new(), AssociationId::new([1; 4]));
    let records = &[7; 40];
    let mut replies = Batch::default();
    for envelope in [
        Envelope::Hello { nonce: NONCE },
        Envelope::Data { id, records },
    ] {
        envelope.encode(&mut datagram);
        for from in ends {
            let arrived = Arrived {
                from,
                ..Arrived::one(peer, &datagram)
            };
            hub.handle(number, &arrived, &mut replies);
        }
    }
    let mut sent = Vec::new();
    replies
        .send(&Cell::new(64), |transmit| {
            sent.push((transmit.destination, transmit.src_ip));
            Ok(())
        })
        .expect("no error");
    let [first, second] = ends.map(|ends| (ends.peer, ends.own));
    assert_eq!(sent, [first, second, first, second]);
    // The cookie is good at each address.
    let (_, cookie) = hello(&hub, peer);
    let initial = initial(cookie);
    let arrived = Arrived {
        from: ends[1],
        ..Arrived::one(peer, &initial)
    };
    hub.handle(number, &arrived, &mut Batch::default());
    assert_eq!(newcomers.try_recv().expect("one").ends, ends[1]);
}

/// Two threads read the datagrams of one flight, and neither knows the association yet.
#[test]
fn threads_that_begin_at_once_share_an_association() {
    let hub = Arc::new(Hub::new(socket()));
    let listeners = [hub.add_listener(), hub.add_listener()];
    let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
    let (id, cookie) = hello(&hub, from);
    for (number, _) in &listeners {
        let first = initial(cookie);
        assert!(hub.begin(*number, id, &Arrived::one(from, &first), None));
    }
    let newcomers = listeners.map(|(_, mut newcomers)| newcomers.try_recv().ok());
    let mut newcomers: Vec<_> = newcomers.into_iter().flatten().collect();
    assert_eq!(newcomers.len(), 1);
    let first_flight = [&initial(cookie)[..]; 2].concat();
    assert_eq!(waiting(&newcomers[0]), first_flight);
    newcomers.clear();
    assert!(hub.state().routes.is_empty());
}

#[test]
fn hub_bounds_newcomers_and_queues() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, mut newcomers) = hub.add_listener();
    for last in 0..100 {
        let from = SocketAddr::from(([192, 0, 2, last], 1));
        let (_, cookie) = hello(&hub, from);
        handle(&hub, number, from, &initial(cookie));
    }
    assert_eq!(hub.state().routes.len(), NEWCOMERS);
    let newcomer = newcomers.try_recv().expect("an association");
    let mut data = Vec::new();
    let (id, records) = (newcomer.route.id, &b"records"[..]);
    Envelope::Data { id, records }.encode(&mut data);
    waiting(&newcomer);
    let other = SocketAddr::from(([192, 0, 2, 200], 1));
    let own = newcomer.ends.peer;
    for (address, most) in [(other, STRANGE), (own, UNCONNECTED), (own, OWN)] {
        if most == OWN {
            newcomer.inbox.widen();
        }
        for _ in 0..2 * OWN {
            handle(&hub, number, address, &data);
        }
        assert_eq!(waiting(&newcomer).len(), most * data.len());
    }
    hub.remove_listener(number);
    drop((newcomers, newcomer));
    let state = hub.state();
    assert!(state.routes.is_empty() && state.waiting.is_empty());
}

#[test]
fn hub_keeps_places_from_a_network_that_has_its_share() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, mut newcomers) = hub.add_listener();
    let all = |from: &str, count: u16| {
        for port in 1..=count {
            let address = format!("{from}:{port}").parse().expect("an address");
            let (_, cookie) = hello(&hub, address);
            handle(&hub, number, address, &initial(cookie));
        }
        hub.state().routes.len()
    };
    assert_eq!(all("192.0.2.1", 10), NEWCOMERS_OF_ONE);
    assert_eq!(all("[::ffff:192.0.2.1]", 10), NEWCOMERS_OF_ONE);
    assert_eq!(all("[::ffff:192.0.2.2]", 1), NEWCOMERS_OF_ONE + 1);
    assert_eq!(all("[2001:db8:0:1::1]", 3), NEWCOMERS_OF_ONE + 4);
    assert_eq!(all("[2001:db8:0:1::2]", 3), 2 * NEWCOMERS_OF_ONE + 1);
    // An association that was begun leaves its place, and keeps its route.
    let newcomer = newcomers.try_recv().expect("an association");
    drop(newcomer.place);
    assert_eq!(all("192.0.2.1", 10), 2 * NEWCOMERS_OF_ONE + 2);
}

/// The kernel joins datagrams of equal size, whichever their associations are.
#[test]
fn hub_separates_datagrams_that_have_arrived_together() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, mut newcomers) = hub.add_listener();
    let from: SocketAddr = "192.0.2.7:1000".parse().expect("an address");
    let (id, cookie) = hello(&hub, from);
    handle(&hub, number, from, &initial(cookie));
    let newcomer = newcomers.try_recv().expect("one association");
    waiting(&newcomer);
    let unknown = AssociationId::new([id.to_bytes()[0] ^ 1, 2, 3, 4]);
    let mut joined = Vec::new();
    for (id, last) in [(id, 1), (id, 2), (unknown, 3), (unknown, 4), (id, 5)] {
        let records = &[last; 20][..];
        Envelope::Data { id, records }.append(&mut joined);
    }
    joined.truncate(joined.len() - 7);
    let mut replies = Batch::default();
    let arrived = Arrived {
        stride: 24,
        ..Arrived::one(from, &joined)
    };
    hub.handle(number, &arrived, &mut replies);
    assert_eq!(replies.len(), 1);
    let tail = [3; 16];
    assert_eq!(
        Envelope::decode(&replies.bytes),
        Ok(Envelope::Unknown { tail })
    );
    let expected = [&joined[..48], &joined[96..]].concat();
    assert_eq!(waiting(&newcomer), expected);
}
