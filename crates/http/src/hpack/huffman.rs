//! The Huffman code of string literals (RFC 7541 section 5.2 and appendix B).
//!
//! The code is canonical: code words of one length are consecutive numbers in order of their
//! symbols, and go on from the shorter ones. So the lengths are all the data there is; everything
//! else here is computed from them.

/// Length in bits of each symbol's code word; symbol 256 is EOS.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const EOS: u16 = 256;
const LONGEST: usize = 30;

/// Code words of one length.
#[derive(Clone, Copy)]
struct CodeRun {
    /// First code word.
    first: u32,
    /// The code after the last one, shifted left for comparison with 32 bits of input.
    limit: u64,
    /// Place of the first one's symbol in [`HuffmanCode::symbols`].
    at: u16,
}

/// Everything that follows from [`LENGTHS`].
struct HuffmanCode {
    words: [u32; 257],
    /// Symbols in order of their code words.
    symbols: [u16; 257],
    runs: [CodeRun; LONGEST + 1],
    /// Symbol and length for each possible first byte; length 0 where the code word is longer than
    /// a byte.
    short: [(u8, u8); 256],
}

static CODE: HuffmanCode = build();

const fn build() -> HuffmanCode {
    let mut code = HuffmanCode {
        words: [0; 257],
        symbols: [0; 257],
        runs: [CodeRun {
            first: 0,
            limit: 0,
            at: 0,
        }; LONGEST + 1],
        short: [(0, 0); 256],
    };
    let (mut next, mut at, mut length) = (0u32, 0usize, 1usize);
    while length <= LONGEST {
        code.runs[length].first = next;
        code.runs[length].at = at as u16;
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == length {
                code.words[symbol] = next;
                code.symbols[at] = symbol as u16;
                if length <= 8 {
                    fill_short(&mut code.short, next, length, symbol as u8);
                }
                next += 1;
                at += 1;
            }
            symbol += 1;
        }
        code.runs[length].limit = (next as u64) << (32 - length);
        next <<= 1;
        length += 1;
    }
    code
}

const fn fill_short(short: &mut [(u8, u8); 256], word: u32, length: usize, symbol: u8) {
    let mut tail = 0;
    while tail < 1 << (8 - length) {
        short[((word as usize) << (8 - length)) | tail] = (symbol, length as u8);
        tail += 1;
    }
}

/// Bytes that [`encode`] appends for `text`.
pub fn encoded_len(text: &[u8]) -> usize {
    text.iter()
        .map(|&b| usize::from(LENGTHS[usize::from(b)]))
        .sum::<usize>()
        .div_ceil(8)
}

/// Appends `text` encoded and padded.
pub fn encode(out: &mut Vec<u8>, text: &[u8]) {
    let (mut word, mut bits) = (0u64, 0u32);
    for &byte in text {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        word = word << length | u64::from(CODE.words[usize::from(byte)]);
        bits += length;
        if bits >= 32 {
            bits -= 32;
            out.extend_from_slice(&((word >> bits) as u32).to_be_bytes());
        }
    }
    if bits > 0 {
        let padded = (word << (32 - bits)) as u32 | (u32::MAX >> bits);
        out.extend_from_slice(&padded.to_be_bytes()[..bits.div_ceil(8) as usize]);
    }
}

/// Not a sequence of code words with proper padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad Huffman code")]
pub struct BadHuffman;

/// Appends the decoded text of `coded`: at most 8/5 of its length. On an error `out` keeps the
/// valid part.
pub fn decode(out: &mut Vec<u8>, coded: &[u8]) -> Result<(), BadHuffman> {
    out.reserve(coded.len() * 8 / 5);
    let mut input = Bits {
        word: 0,
        left: 0,
        coded,
    };
    loop {
        input.refill();
        let (symbol, length) = CODE.short[(input.word >> 56) as usize];
        let (symbol, length) = if length == 0 {
            long(input.word)
        } else {
            (u16::from(symbol), u32::from(length))
        };
        if length > input.left {
            return input.padding();
        }
        if symbol == EOS {
            return Err(BadHuffman);
        }
        out.push(symbol as u8);
        input.word <<= length;
        input.left -= length;
    }
}

/// The code word of more than 8 bits at the top of `word`.
#[cold]
fn long(word: u64) -> (u16, u32) {
    let top = word >> 32;
    for length in 9..LONGEST {
        let run = CODE.runs[length];
        if top < run.limit {
            let offset = (top >> (32 - length)) as u32 - run.first;
            return (
                CODE.symbols[usize::from(run.at) + offset as usize],
                length as u32,
            );
        }
    }
    // The code is complete: a code that fits no shorter run is in the last one.
    let run = CODE.runs[LONGEST];
    let offset = (top >> (32 - LONGEST)) as u32 - run.first;
    (
        CODE.symbols[usize::from(run.at) + offset as usize],
        LONGEST as u32,
    )
}

/// Input at the top of a word, zeros below.
struct Bits<'a> {
    word: u64,
    left: u32,
    coded: &'a [u8],
}

impl Bits<'_> {
    /// Fills the buffer to 32 bits, or to the end of the input.
    fn refill(&mut self) {
        if self.left >= 32 {
            return;
        }
        if let Some((four, rest)) = self.coded.split_first_chunk::<4>() {
            self.word |= u64::from(u32::from_be_bytes(*four)) << (32 - self.left);
            self.left += 32;
            self.coded = rest;
            return;
        }
        while let Some((&byte, rest)) = self.coded.split_first() {
            self.word |= u64::from(byte) << (56 - self.left);
            self.left += 8;
            self.coded = rest;
        }
    }

    /// Padding is shorter than a byte and all ones, the beginning of EOS (RFC 7541 section 5.2).
    fn padding(&self) -> Result<(), BadHuffman> {
        let ones = !(u64::MAX >> self.left);
        if self.left < 8 && self.word == ones {
            Ok(())
        } else {
            Err(BadHuffman)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn code_is_full_and_has_the_known_words() {
        let sum: u64 = LENGTHS
            .iter()
            .map(|&length| 1u64 << (LONGEST - usize::from(length)))
            .sum();
        assert_eq!(
            sum,
            1 << LONGEST,
            "Kraft's sum of a full prefix code is one"
        );
        // A word of each kind, as printed in appendix B.
        let printed = [
            (b'0', 0x0),
            (b'a', 0x3),
            (b' ', 0x14),
            (b'z', 0x7b),
            (b'&', 0xf8),
            (b'!', 0x3f8),
            (b'\\', 0x7fff0),
            (0, 0x1ff8),
            (249, 0xffffffe),
            (b'\n', 0x3ffffffc),
            (22, 0x3ffffffe),
            (255, 0x3ffffee),
        ];
        for (symbol, word) in printed {
            assert_eq!(CODE.words[usize::from(symbol)], word, "{symbol}");
        }
        assert_eq!(CODE.words[256], 0x3fffffff);
    }

    #[test]
    fn each_symbol_alone() {
        for byte in 0..=255 {
            let (mut coded, mut text) = (Vec::new(), Vec::new());
            encode(&mut coded, &[byte]);
            decode(&mut text, &coded).expect("own code");
            assert_eq!(text, [byte]);
        }
    }

    #[test]
    fn bad_padding_and_eos() {
        let bad: [&[u8]; 5] = [
            &[0xff],                         // eight ones: padding too long
            &[0b0001_1000],                  // 'a', then zeros
            &[0xff, 0xff, 0xff, 0xff],       // EOS
            &[0xff, 0xff, 0xff, 0xff, 0xff], // EOS and more
            &[0b0001_1111, 0xff],            // 'a', then eleven ones
        ];
        for coded in bad {
            assert_eq!(
                decode(&mut Vec::new(), coded),
                Err(BadHuffman),
                "{coded:x?}"
            );
        }
        let mut text = Vec::new();
        assert_eq!(decode(&mut text, &[0b0001_1111]), Ok(()));
        assert_eq!(text, b"a");
    }

    proptest! {
        #[test]
        fn round_trip(text: Vec<u8>) {
            let (mut coded, mut back) = (Vec::new(), Vec::new());
            encode(&mut coded, &text);
            prop_assert_eq!(coded.len(), encoded_len(&text));
            prop_assert_eq!(decode(&mut back, &coded), Ok(()));
            prop_assert_eq!(back, text);
        }

        /// Each text has exactly one code, so decoded input encodes to itself.
        #[test]
        fn decoding_is_exact(coded: Vec<u8>) {
            let mut text = Vec::new();
            if decode(&mut text, &coded).is_ok() {
                let mut again = Vec::new();
                encode(&mut again, &text);
                prop_assert_eq!(&again, &coded);
            }
            prop_assert!(text.len() <= coded.len() * 8 / 5);
        }
    }
}
