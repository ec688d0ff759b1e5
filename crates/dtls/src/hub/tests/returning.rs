//! Clients that show an address token to the hub.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::hub::returning::{UNPROVED, UNPROVED_OF_ONE};

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn token(hub: &Hub, address: IpAddr) -> AddressToken {
    hub.token(address).expect("a token")
}

fn with_token(nonce: Nonce, token: &AddressToken) -> Vec<u8> {
    let mut datagram = Vec::new();
    Envelope::Initial {
        nonce,
        cookie: token.shown(),
        records: b"records",
    }
    .encode(&mut datagram);
    datagram
}

fn is_retry(reply: &[u8]) -> bool {
    matches!(Envelope::decode(reply), Ok(Envelope::Retry { .. }))
}

/// Lets the client at an address return. Returns its association if it begins at once, and checks
/// that it gets a cookie if not.
fn visit(
    hub: &Arc<Hub>,
    (number, newcomers): &mut (u64, mpsc::Receiver<Newcomer>),
    from: SocketAddr,
    token: &AddressToken,
) -> Option<Newcomer> {
    let sent = with_token(NONCE, token);
    let reply = handle(hub, *number, from, &sent);
    assert!(reply.len() <= sent.len(), "no amplification");
    let newcomer = newcomers.try_recv().ok();
    assert_eq!(newcomer.is_none(), is_retry(&reply));
    newcomer
}

#[test]
fn token_begins_an_association_at_once() {
    let hub = Arc::new(Hub::new(socket()));
    let mut listener = hub.add_listener();
    let from = address("192.0.2.7:1000");
    let token = token(&hub, from.ip());
    let newcomer = visit(&hub, &mut listener, from, &token).expect("an association");
    assert_eq!(
        (newcomer.ends.peer, newcomer.route.id),
        (from, token.id(&NONCE))
    );
    // The client repeats its first flight until it has the answer.
    let again = with_token(NONCE, &token);
    assert!(handle(&hub, listener.0, from, &again).is_empty());
    assert!(listener.1.try_recv().is_err());
    assert_eq!(waiting(&newcomer), [&again[..]; 2].concat());
}

#[test]
fn token_is_accepted_once() {
    let hub = Arc::new(Hub::new(socket()));
    let mut listener = hub.add_listener();
    let from = address("192.0.2.7:1000");
    let token = token(&hub, from.ip());
    let newcomer = visit(&hub, &mut listener, from, &token).expect("an association");
    // Another attempt shows it while the first one is under way, and after that.
    for nonce in [[6; 8], NONCE] {
        let reply = handle(&hub, listener.0, from, &with_token(nonce, &token));
        assert_eq!(is_retry(&reply), nonce != NONCE, "{nonce:?}");
    }
    drop(newcomer);
    assert!(visit(&hub, &mut listener, from, &token).is_none());
    assert!(hub.state().routes.is_empty());
}

#[test]
fn token_of_another_address_brings_a_cookie() {
    let hub = Arc::new(Hub::new(socket()));
    let mut listener = hub.add_listener();
    let (from, other) = (address("192.0.2.7:1000"), address("192.0.2.8:1000"));
    let restarted = Arc::new(Hub::new(socket()));
    let _accepting = restarted.add_listener();
    for token in [token(&hub, other.ip()), token(&restarted, from.ip())] {
        assert!(visit(&hub, &mut listener, from, &token).is_none());
    }
    assert!(hub.state().routes.is_empty());
    // A short datagram gets nothing, so that no reply is longer than its question.
    let short = &with_token(NONCE, &token(&hub, other.ip()))[..24];
    assert!(handle(&hub, listener.0, from, short).is_empty());
}

/// A translator of addresses may take another port while the answer is on its way.
#[test]
fn repeated_flight_from_another_port_brings_a_cookie() {
    let hub = Arc::new(Hub::new(socket()));
    let mut listener = hub.add_listener();
    let (from, moved) = (address("192.0.2.7:1000"), address("192.0.2.7:1001"));
    let token = token(&hub, from.ip());
    let newcomer = visit(&hub, &mut listener, from, &token).expect("an association");
    assert!(visit(&hub, &mut listener, moved, &token).is_none());
    assert_eq!(
        waiting(&newcomer),
        with_token(NONCE, &token),
        "it got nothing of it"
    );
}

#[test]
fn client_with_many_tokens_has_few_handshakes() {
    let hub = Arc::new(Hub::new(socket()));
    let mut listener = hub.add_listener();
    let mut begin = |from: SocketAddr, token: &AddressToken| {
        let newcomer = visit(&hub, &mut listener, from, token)?;
        drop(newcomer.place);
        Some((newcomer.route, newcomer.unproved))
    };
    let at = |network: u8, port| SocketAddr::from(([192, 0, 2, network], port));
    let mut begun = Vec::new();
    for network in 0..=UNPROVED.div_ceil(UNPROVED_OF_ONE) as u8 {
        let port = 1..=UNPROVED_OF_ONE as u16 + 5;
        let visits = port.filter_map(|port| {
            let from = at(network, port);
            begin(from, &token(&hub, from.ip()))
        });
        let visits: Vec<_> = visits.collect();
        let left = UNPROVED - begun.len();
        assert_eq!(visits.len(), UNPROVED_OF_ONE.min(left), "{network}");
        begun.extend(visits);
    }
    // A token that found no place is good once there is one. The handshake ends, and the
    // association goes on.
    let (from, token) = (at(0, 9), token(&hub, at(0, 9).ip()));
    assert!(begin(from, &token).is_none());
    drop(begun[0].1.take());
    assert!(begin(from, &token).is_some());
    begun.clear();
    assert!(hub.state().returning.unproved.is_empty());
}

#[test]
fn draining_hub_offers_no_token() {
    let hub = Arc::new(Hub::new(socket()));
    let [first, last] = [(); 2].map(|()| hub.add_listener().0);
    let own = address("192.0.2.7:1000").ip();
    hub.remove_listener(first);
    assert!(hub.token(own).is_some(), "another thread accepts");
    hub.remove_listener(last);
    assert!(hub.token(own).is_none());
}

#[test]
fn draining_hub_answers_no_token() {
    let hub = Arc::new(Hub::new(socket()));
    let (number, _newcomers) = hub.add_listener();
    let from = address("192.0.2.7:1000");
    let token = token(&hub, from.ip());
    hub.remove_listener(number);
    assert!(handle(&hub, number, from, &with_token(NONCE, &token)).is_empty());
}

proptest! {
    #[test]
    fn forged_token_begins_nothing(
        token in any::<[u8; 12]>(),
        nonce in any::<Nonce>(),
        records in vec(any::<u8>(), 0..60),
    ) {
        let hub = Arc::new(Hub::new(socket()));
        let (number, mut newcomers) = hub.add_listener();
        let (mut sent, from) = (Vec::new(), address("192.0.2.7:1000"));
        Envelope::Initial { nonce, cookie: token, records: &records }.encode(&mut sent);
        let reply = handle(&hub, number, from, &sent);
        prop_assert!(reply.len() <= sent.len());
        prop_assert!(newcomers.try_recv().is_err() && hub.state().routes.is_empty());
    }
}
