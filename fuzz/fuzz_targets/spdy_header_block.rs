//! SPDY header blocks: any bytes as a compressed block, as an inflated list, and as the input of
//! our compressor.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_spdy::header_block::{Block, Decoder, Encoder, HeaderCompression, Pairs};

const LIMIT: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::new(LIMIT);
    for block in bytes.chunks(97) {
        if decoder.decode(block).is_err() {
            break;
        }
    }
    let Ok(pairs) = Pairs::load(bytes, LIMIT) else {
        return;
    };
    let pairs: Vec<_> = pairs.iter().collect();
    for setting in [
        HeaderCompression::Full,
        HeaderCompression::Safe,
        HeaderCompression::Off,
    ] {
        let mut encoder = Encoder::new(setting);
        let mut decoder = Decoder::new(LIMIT);
        for _ in 0..3 {
            let mut block = Block::new();
            for (name, value) in &pairs {
                block.push(name, &[value], 0, false);
            }
            let mut wire = Vec::new();
            encoder.encode(&block, &mut wire);
            let read = decoder
                .decode(&wire)
                .expect("in step")
                .expect("legal, as it was before");
            assert!(read.iter().eq(pairs.iter().copied()));
        }
    }
});
