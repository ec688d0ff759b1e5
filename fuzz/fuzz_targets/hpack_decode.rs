//! Any header block is decoded or refused, within bounds; decoded fields survive our encoder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::fields::Field;
use tandem_http::hpack::{Decoder, Encoder};

type List = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut again) = (Decoder::new(), Decoder::new());
    let mut encoder = Encoder::new();
    for block in data.split(|&b| b == 0xa5) {
        let Ok(list) = decode(&mut decoder, block) else {
            return;
        };
        let mut ours = Vec::new();
        encoder.begin(&mut ours);
        for (name, value) in &list {
            encoder.field(
                &mut ours,
                Field {
                    name,
                    value,
                    sensitive: false,
                },
            );
        }
        assert_eq!(decode(&mut again, &ours).as_ref(), Ok(&list));
    }
});

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<List, tandem_http::hpack::HpackError> {
    let mut list = List::new();
    decoder.decode(block, |f| {
        assert!(f.name.len() + f.value.len() <= 4096 + 2 * block.len());
        list.push((f.name.to_vec(), f.value.to_vec()));
    })?;
    Ok(list)
}
