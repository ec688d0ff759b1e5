//! The parsers of UDP tunnels: capsules read the same however they are cut, the path of a request
//! names what it was made from, and a SOCKS datagram is written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::connect_udp::{
    CapsuleReader, MAX_PAYLOAD, MalformedCapsule, put_datagram, request, target,
};
use tandem_http::socks::Datagram;

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let step = usize::from(first) + 1;
    let whole = read(data, data.len().max(1));
    assert_eq!(whole, read(data, step));
    if let (payloads, None) = whole {
        let mut wire = Vec::new();
        for payload in &payloads {
            assert!(payload.len() <= MAX_PAYLOAD);
            put_datagram(&mut wire, payload);
        }
        assert_eq!(read(&wire, step), (payloads, None));
    }
    if let Ok(path) = std::str::from_utf8(data)
        && let Some((host, port)) = target(path)
    {
        assert_eq!(target(&request(&host, port).path), Some((host, port)));
    }
    if let Some(datagram) = Datagram::parse(data) {
        let mut again = Vec::new();
        Datagram::put_answer(&mut again, datagram.address, datagram.payload);
        assert_eq!(again[3..], data[3..]);
        assert_eq!(Datagram::parse(&again), Some(datagram));
    }
});

/// Returns the payloads of the datagrams, and the error that ended them.
fn read(data: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<MalformedCapsule>) {
    let mut reader = CapsuleReader::default();
    let mut payloads = Vec::new();
    for piece in data.chunks(step) {
        reader.push(piece);
        loop {
            match reader.datagram() {
                Ok(Some(payload)) => payloads.push(payload.to_vec()),
                Ok(None) => break,
                Err(error) => return (payloads, Some(error)),
            }
        }
    }
    (payloads, None)
}
