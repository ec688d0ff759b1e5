//! The segments of a tunnel's datagrams: any bytes are parsed without a panic, and parsed segments
//! are written unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_tunnel::wire::Segments;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    let mut first = Vec::new();
    for segment in Segments::new(bytes) {
        let Ok(segment) = segment else { break };
        segment.encode(&mut again);
        first.push(segment);
    }
    assert!(again.len() <= bytes.len());
    let second: Result<Vec<_>, _> = Segments::new(&again).collect();
    assert_eq!(second.as_ref(), Ok(&first));
});
