//! The datagrams of the transport `dtls`: any bytes are parsed without a panic, and what was parsed
//! is written unchanged. Neither end of an association connects to a peer without keys.
#![no_main]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tandem_dtls::anonymous;
use tandem_dtls::association::{Association, Settings};
use tandem_dtls::envelope::{AssociationId, Envelope};
use tandem_dtls::token::{AddressToken, Tokens};

const ID: [u8; 4] = [0x80, 1, 2, 3];

/// Returns the client's end of an association, with a cookie.
fn client(settings: &Settings, remote: SocketAddr, now: Instant) -> Association {
    let identity = anonymous().expect("random numbers");
    let mut client = Association::connect(settings, identity, remote, Box::new(|_| Ok(true)), now);
    let mut datagram = Vec::new();
    client.poll_output(now, &mut datagram).expect("a hello");
    let Ok(Envelope::Hello { nonce }) = Envelope::decode(&datagram) else {
        panic!("no hello");
    };
    let (id, cookie) = (AssociationId::new(ID), [7; 12]);
    Envelope::Retry { nonce, id, cookie }.encode(&mut datagram);
    client.handle_datagram(now, remote.into(), &datagram, false);
    client
}

/// Returns the client's end of an association that begins with a token, and its id.
fn returning(
    settings: &Settings,
    remote: SocketAddr,
    now: Instant,
) -> (Association, AssociationId) {
    let identity = anonymous().expect("random numbers");
    let mut client = Association::connect(settings, identity, remote, Box::new(|_| Ok(true)), now);
    let token = AddressToken::decode(&[7; 28]).expect("a whole token");
    client.show(&token, now);
    let mut datagram = Vec::new();
    client.poll_output(now, &mut datagram).expect("a flight");
    let Ok(Envelope::Initial { nonce, .. }) = Envelope::decode(&datagram) else {
        panic!("no flight");
    };
    (client, token.id(&nonce))
}

fuzz_target!(|bytes: &[u8]| {
    let mut out = Vec::new();
    if let Ok(envelope) = Envelope::decode(bytes) {
        envelope.encode(&mut out);
        if let Envelope::Initial { nonce, cookie, .. } = envelope {
            let (tokens, any) = (Tokens::new(&[1; 32]), [192, 0, 2, 1].into());
            assert!(tokens.check(Duration::ZERO, any, &nonce, &cookie).is_none());
        }
        match envelope {
            Envelope::Hello { .. } => assert_eq!(out[..9], bytes[..9]),
            _ => assert_eq!(out, bytes),
        }
    }
    let settings = Settings::new(Default::default(), Duration::from_secs(30), true).expect("valid");
    let (now, remote) = (Instant::now(), SocketAddr::from(([192, 0, 2, 1], 443)));
    let (identity, id) = (anonymous().expect("random numbers"), AssociationId::new(ID));
    let verify: Box<dyn Fn(&[u8]) -> _> = Box::new(|_| Ok(true));
    let gateway = Association::accept(&settings, identity, Some(verify), id, remote.into(), now);
    let client = client(&settings, remote, now);
    let mut ends = [
        (client, id),
        (gateway, id),
        returning(&settings, remote, now),
    ];
    if let Some(token) = AddressToken::decode(bytes) {
        assert_eq!(token.to_bytes(), bytes[..28]);
    }
    // The first byte of each part is its length: several datagrams in a row.
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (part, others) = after.split_at(after.len().min(usize::from(*length) * 6));
        let mut datagram = Vec::new();
        for (end, id) in &mut ends {
            let id = *id;
            Envelope::Data { id, records: part }.encode(&mut datagram);
            end.handle_datagram(now, remote.into(), part, false);
            end.handle_datagram(now, remote.into(), &datagram, true);
            while end.poll_output(now, &mut out).is_some() {
                out.clear();
            }
            end.handle_timeout(now + Duration::from_millis(10));
        }
        rest = others;
    }
    assert!(!ends.iter().any(|(end, _)| end.is_connected()));
});
