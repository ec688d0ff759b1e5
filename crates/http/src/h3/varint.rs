//! Integers of variable length (RFC 9000 section 16).

/// The largest value.
pub(crate) const MAX: u64 = (1 << 62) - 1;

/// The length of the longest integer in bytes.
pub(crate) const LONGEST: usize = 8;

/// Appends a value of at most [`MAX`].
pub(crate) fn put(out: &mut Vec<u8>, value: u64) {
    debug_assert!(
        value <= MAX,
        "numbers of streams, frames and pushes are smaller"
    );
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Takes the integer at the front of `bytes`. Returns `None` if it is cut off.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, _) = bytes.split_first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = number[1..]
        .iter()
        .fold(u64::from(first & 0x3f), |value, &byte| {
            value << 8 | u64::from(byte)
        });
    *bytes = rest;
    Some(value)
}

/// An integer whose bytes arrive one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Partial {
    bytes: [u8; 8],
    len: u8,
}

impl Partial {
    pub(crate) const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Takes bytes from the front of `input` until the integer is complete.
    pub(crate) fn take(&mut self, input: &mut &[u8]) -> Option<u64> {
        while let Some((&byte, rest)) = input.split_first() {
            self.bytes[usize::from(self.len)] = byte;
            self.len += 1;
            *input = rest;
            let value = take(&mut &self.bytes[..usize::from(self.len)]);
            if value.is_some() {
                self.len = 0;
                return value;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn varint_reads_the_examples_of_rfc_9000() {
        let cases: [(&[u8], u64); 5] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (wire, value) in cases {
            assert_eq!(take(&mut &*wire), Some(value));
            assert_eq!(take(&mut &wire[..wire.len() - 1]), None);
        }
    }

    proptest! {
        #[test]
        fn varint_returns_after_a_cut(value in 0..=MAX, shift in 0u32..62) {
            let value = value >> shift;
            let mut wire = Vec::new();
            put(&mut wire, value);
            let mut partial = Partial::default();
            let (last, first) = wire.split_last().expect("a byte");
            prop_assert_eq!(partial.take(&mut &*first), None);
            prop_assert_eq!(partial.take(&mut &[*last, 7][..]), Some(value));
            prop_assert!(partial.is_empty());
        }
    }
}
