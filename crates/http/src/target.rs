//! The bytes of a request target, by one rule for all protocols. RFC 3986 section 2.1, RFC 9112
//! section 3.2.

use std::borrow::Cow;

/// Returns the text of a request target, or `None` if it is empty or holds a control byte, a space,
/// DEL or a fragment. A fragment never leaves a client (RFC 9110 section 7.1).
///
/// Many programs send the bytes of other scripts as they are. These are percent-encoded, as
/// browsers do, so that stores and origins see one form of each target.
pub fn encoded_target(target: &[u8]) -> Option<Cow<'_, str>> {
    let is_allowed = |&byte: &u8| byte > b' ' && !matches!(byte, b'#' | 0x7f);
    if target.is_empty() || !target.iter().all(is_allowed) {
        return None;
    }
    if target.is_ascii() {
        return std::str::from_utf8(target).ok().map(Cow::Borrowed);
    }
    let mut text = String::with_capacity(target.len() * 3);
    for &byte in target {
        if byte.is_ascii() {
            text.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    Some(Cow::Owned(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_beyond_ascii_are_encoded() {
        for (target, text) in [
            (&b"/a%2f?b=|{}\\"[..], "/a%2f?b=|{}\\"),
            ("/\u{e9}?\u{20ac}".as_bytes(), "/%C3%A9?%E2%82%AC"),
            (b"/\xe9\x80\xff", "/%E9%80%FF"),
            (b"http://a/\xe9", "http://a/%E9"),
        ] {
            assert_eq!(encoded_target(target).as_deref(), Some(text));
        }
        for byte in 0..=u8::MAX {
            let refused = byte <= b' ' || byte == 0x7f || byte == b'#';
            let target = [b'/', byte, 0xe9];
            assert_eq!(encoded_target(&target).is_none(), refused, "{byte}");
            let encoded = encoded_target(&target);
            assert!(encoded.is_none_or(|text| text.is_ascii()), "{byte}");
        }
        assert_eq!(encoded_target(b""), None);
    }
}
