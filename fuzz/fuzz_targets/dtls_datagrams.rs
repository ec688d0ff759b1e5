//! The datagrams of the transport `dtls`: any bytes are parsed without a panic, and what was parsed
//! is written unchanged. Neither end of an association connects to a peer without keys.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tandem_dtls::association::{Association, Settings};
use tandem_dtls::envelope::Envelope;

fuzz_target!(|bytes: &[u8]| {
    let mut out = Vec::new();
    if let Ok(envelope) = Envelope::decode(bytes) {
        envelope.encode(&mut out);
        match envelope {
            Envelope::Hello { .. } => assert_eq!(out[..9], bytes[..9]),
            _ => assert_eq!(out, bytes),
        }
    }
    let settings = Settings::new(Default::default(), Duration::from_secs(30)).expect("valid");
    let (now, remote) = (Instant::now(), "192.0.2.1:443".parse().expect("an address"));
    let mut client =
        Association::connect(&settings, remote, Box::new(|_| Ok(())), now).expect("random numbers");
    // The first byte of each part is its length: several datagrams in a row.
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (datagram, others) = after.split_at(after.len().min(usize::from(*length) * 6));
        client.handle_datagram(now, remote, datagram);
        while client.poll_output(now, &mut out).is_some() {}
        client.handle_timeout(now + Duration::from_millis(10));
        rest = others;
    }
    assert!(!client.is_connected());
});
