//! A chunked body gives the same bytes, trailers, end and errors however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::Fields;
use tandem_http::h1::{BadBody, Decoder, Framing};

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let framing = if first == 0 {
        Framing::Length(data.len() as u64 / 2)
    } else {
        Framing::Chunked
    };
    let whole = decode(framing, data, data.len().max(1));
    assert_eq!(whole, decode(framing, data, usize::from(first % 16) + 1));
});

type Outcome = (Vec<u8>, usize, bool, Option<Fields>);

fn decode(framing: Framing, data: &[u8], step: usize) -> Result<Outcome, BadBody> {
    let mut decoder = Decoder::new(framing);
    let (mut body, mut used) = (Vec::new(), 0);
    for piece in data.chunks(step) {
        let mut rest = piece;
        while !rest.is_empty() && !decoder.is_done() {
            let decoded = decoder.decode(rest)?;
            assert!(decoded.consumed > 0);
            body.extend_from_slice(&rest[decoded.data]);
            used += decoded.consumed;
            rest = &rest[decoded.consumed..];
        }
    }
    let done = decoder.is_done();
    assert_eq!(decoder.finish().is_ok(), done);
    Ok((body, used, done, decoder.trailers()))
}
