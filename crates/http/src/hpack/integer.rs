//! Integers with an N-bit prefix (RFC 7541 section 5.1).

/// Appends `value` with a prefix of `bits` bits; `pattern` fills the bits above the prefix.
#[inline]
pub(crate) fn encode(out: &mut Vec<u8>, pattern: u8, bits: u8, value: usize) {
    let mask = (1usize << bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
    } else {
        encode_long(out, pattern, mask, value);
    }
}

fn encode_long(out: &mut Vec<u8>, pattern: u8, mask: usize, value: usize) {
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The reason for which no integer could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadInteger {
    /// The bytes end before the integer.
    CutOff,
    /// The integer has more bytes than the caller accepts.
    TooLong,
}

/// Reads the integer that begins at `*at` and has at most `most` bytes behind its prefix. Moves
/// `*at` behind it. With `most` up to 8, the value is below 2^57.
pub(crate) fn read(block: &[u8], at: &mut usize, bits: u8, most: u32) -> Result<usize, BadInteger> {
    let mask = u8::MAX >> (8 - bits);
    let first = block.get(*at).ok_or(BadInteger::CutOff)? & mask;
    *at += 1;
    if first < mask {
        return Ok(usize::from(first));
    }
    let mut value = 0usize;
    for place in 0..most {
        let byte = *block.get(*at).ok_or(BadInteger::CutOff)?;
        *at += 1;
        value |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value + usize::from(mask));
        }
    }
    Err(BadInteger::TooLong)
}

/// Reads the integer that begins at `*at`; moves `*at` behind it. `None` means that the
/// integer is cut off, or at least 2^28, which no index, length or table size reaches.
pub(super) fn decode(block: &[u8], at: &mut usize, bits: u8) -> Option<usize> {
    read(block, at, bits, 4).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn examples_of_appendix_c1() {
        for (bits, value, wire) in [
            (5, 10, &[0x0a][..]),
            (5, 1337, &[0x1f, 0x9a, 0x0a]),
            (8, 42, &[0x2a]),
        ] {
            let mut out = Vec::new();
            encode(&mut out, 0, bits, value);
            assert_eq!(out, wire);
            let mut at = 0;
            assert_eq!(decode(wire, &mut at, bits), Some(value));
            assert_eq!(at, wire.len());
        }
    }

    #[test]
    fn overlong_and_cut_off_are_refused() {
        for wire in [
            &[0x1f, 0xff, 0xff, 0xff, 0xff, 0x01][..],
            &[0x1f, 0x80],
            &[0x1f],
            &[],
        ] {
            assert_eq!(decode(wire, &mut 0, 5), None);
        }
    }

    proptest! {
        #[test]
        fn round_trip(value in 0usize..(1 << 28), bits in 4u8..8) {
            let mut out = Vec::new();
            encode(&mut out, 0, bits, value);
            let mut at = 0;
            prop_assert_eq!(decode(&out, &mut at, bits), Some(value));
            prop_assert_eq!(at, out.len());
        }
    }
}
