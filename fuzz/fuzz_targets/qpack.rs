//! Any instructions and sections leave a QPACK decoder working, however they are cut. An encoder's
//! sections are read back exactly.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::fields::Field;
use tandem_http::qpack::{Decoded, Decoder, Encoder};

const TABLE: usize = 200;

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    let middle = rest.len() * usize::from(first >> 4) / 16;
    let (instructions, section) = rest.split_at(middle);
    let (whole, cut) = (
        lines(instructions, section, instructions.len().max(1)),
        lines(instructions, section, usize::from(first & 15) + 1),
    );
    assert_eq!(whole, cut);
    let mut encoder = Encoder::new();
    encoder.set_limits(TABLE, 2, &mut Vec::new());
    let _ = encoder.handle_decoder_stream(rest);
    round_trip(rest);
});

/// Returns the fields of the section, or `None` if it or the instructions are bad.
fn lines(instructions: &[u8], section: &[u8], cut: usize) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut decoder = Decoder::new(TABLE, 1);
    for part in instructions.chunks(cut) {
        decoder.handle_encoder_stream(part).ok()?;
    }
    let mut fields = Vec::new();
    let decoded = decoder.decode(0, section, |field| {
        fields.push((field.name.to_vec(), field.value.to_vec()));
    });
    decoded.ok().map(|_| fields)
}

/// Sends the input as fields, and acknowledges them at times that it chooses.
fn round_trip(data: &[u8]) {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(TABLE, 0));
    let mut instructions = Vec::new();
    encoder.set_limits(TABLE, 0, &mut instructions);
    for (turn, text) in data.chunks(12).enumerate() {
        let stream = turn as u64 * 4;
        let (name, value) = text.split_at(text.len() / 3);
        let field = Field {
            name,
            value,
            sensitive: false,
        };
        let mut section = encoder.begin(stream, true);
        section.field(field, &mut instructions);
        section.field(field, &mut instructions);
        let mut bytes = Vec::new();
        section.end(&mut bytes);
        let mut count = 0;
        let decoded = decoder.decode(stream, &bytes, |seen| {
            assert_eq!((seen.name, seen.value), (name, value));
            count += 1;
        });
        assert_eq!((decoded, count), (Ok(Decoded::Whole), 2));
        if text[0] % 3 == 0 {
            decoder
                .handle_encoder_stream(&std::mem::take(&mut instructions))
                .expect("instructions of an encoder");
            encoder
                .handle_decoder_stream(&decoder.take_output())
                .expect("acknowledgements of a decoder");
        }
    }
}
