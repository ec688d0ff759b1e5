//! The names of field lines, in lower case. RFC 9112 section 5.1.

use super::{BadHead, Sender};
use crate::message::is_token;

/// The length of the longest field name taken. The longest one registered has 44 bytes.
pub(in crate::h1) const MAX_NAME: usize = 256;

/// The bytes of tokens in lower case, and 0 for all other bytes.
pub(super) static LOWER: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if is_token(byte as u8) {
            table[byte] = (byte as u8).to_ascii_lowercase();
        }
        byte += 1;
    }
    table
};

/// Reads the name of the first field line in `lines`. Returns it in lower case, with the offset of
/// the value.
pub(super) fn parse_name<'b>(
    lines: &[u8],
    sender: Sender,
    lower: &'b mut [u8; MAX_NAME],
) -> Result<(&'b [u8], usize), BadHead> {
    let mut name_end = lower_letters(lines, lower);
    // Nearly all names end here.
    if name_end > 0 && lines.get(name_end) == Some(&b':') {
        return Ok((&lower[..name_end], name_end + 1));
    }
    for (byte, lower) in lines[name_end..].iter().zip(&mut lower[name_end..]) {
        *lower = LOWER[usize::from(*byte)];
        if *lower == 0 {
            break;
        }
        name_end += 1;
    }
    if name_end == MAX_NAME {
        let more = &lines[MAX_NAME..];
        let is_end = |byte: &u8| LOWER[usize::from(*byte)] == 0;
        name_end += more.iter().position(is_end).ok_or(BadHead::FieldName)?;
    }
    let mut colon = name_end;
    while matches!(lines.get(colon), Some(b' ' | b'\t')) {
        colon += 1;
    }
    if lines.get(colon) != Some(&b':') || name_end == 0 {
        return Err(BadHead::FieldName);
    }
    if colon != name_end && sender == Sender::Client {
        return Err(BadHead::SpaceBeforeColon);
    }
    let name = lower.get(..name_end).ok_or(BadHead::TooLarge)?;
    Ok((name, colon + 1))
}

/// Copies the letters and hyphens with which a text begins to `lower`, in lower case, and returns
/// their number. It takes eight bytes at a time, and leaves the end of a short text to the caller.
fn lower_letters(text: &[u8], lower: &mut [u8; MAX_NAME]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    let mut length = 0;
    let (words, _) = text.as_chunks();
    for (word, lower) in words.iter().zip(lower.as_chunks_mut().0) {
        let word = u64::from_le_bytes(*word);
        // No sum of two bytes below 128 reaches the byte above it.
        let low = word & !HIGH;
        let folded = low | (0x20 * EACH);
        let (from_a, past_z) = (folded + 0x1f * EACH, folded + 0x05 * EACH);
        let letters = from_a & !past_z & HIGH;
        let others = (low ^ (u64::from(b'-') * EACH)) + 0x7f * EACH;
        let good = (letters | !others) & !word & HIGH;
        *lower = (word | (letters >> 2)).to_le_bytes();
        let count = (good ^ HIGH).trailing_zeros() as usize / 8;
        length += count;
        if count < 8 {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_ends_at_the_first_byte_that_is_no_token() {
        for byte in 0..=u8::MAX {
            for at in 0..=17 {
                let mut line = b"Accept-Encoding-_9: value".to_vec();
                line[at] = byte;
                let end = line.iter().position(|byte| LOWER[usize::from(*byte)] == 0);
                let end = end.expect("a colon");
                let name = line[..end].to_ascii_lowercase();
                let is_name = line[end] == b':' && end > 0;
                let mut lower = [0; MAX_NAME];
                let parsed = parse_name(&line, Sender::Client, &mut lower).ok();
                let expected = is_name.then_some((&name[..], end + 1));
                assert_eq!(parsed, expected, "{byte} at {at}");
            }
        }
    }
}
