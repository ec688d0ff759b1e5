//! Decodes the body of a response into parts and joins short chunks (RFC 9112 section 7).

use bytes::{Bytes, BytesMut};
use tandem_http::h1::{BadBody, Decoder};

/// A piece of at least this many bytes is passed on as it is, without a copy.
const SHORT: usize = 1024;
/// The number of bytes of short pieces that are passed on together.
const ENOUGH: usize = 16 << 10;

/// Removes the next part of a body from the front of `input`. Returns no bytes if more input is
/// needed.
///
/// Pieces shorter than [`SHORT`] are joined. Otherwise an origin that sends one byte per chunk
/// would cost one part per byte and starve other exchanges of the thread.
pub(super) fn decode_part(decoder: &mut Decoder, input: &mut Bytes) -> Result<Bytes, BadBody> {
    let mut joined = BytesMut::new();
    loop {
        let decoded = match decoder.decode(input) {
            Ok(decoded) => decoded,
            // The decoder repeats its error once the part before it has been passed on.
            Err(_) if !joined.is_empty() => return Ok(joined.freeze()),
            Err(bad) => return Err(bad),
        };
        let mut piece = input.split_to(decoded.consumed);
        // A slice allocates a count of references, even if it is the whole.
        if decoded.data != (0..decoded.consumed) {
            piece = piece.slice(decoded.data);
        }
        let last = input.is_empty() || decoded.consumed == 0 || decoder.is_done();
        if joined.is_empty() && (last || piece.len() >= SHORT) {
            return Ok(piece);
        }
        joined.extend_from_slice(&piece);
        if last || joined.len() >= ENOUGH {
            return Ok(joined.freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::h1::Framing;

    use super::*;

    fn parts(wire: &[u8]) -> (Vec<Bytes>, Option<BadBody>) {
        let mut decoder = Decoder::new(Framing::Chunked);
        let (mut input, mut parts) = (Bytes::copy_from_slice(wire), Vec::new());
        while !input.is_empty() && !decoder.is_done() {
            match decode_part(&mut decoder, &mut input) {
                Ok(part) => parts.push(part),
                Err(bad) => return (parts, Some(bad)),
            }
        }
        (parts, None)
    }

    #[test]
    fn decode_joins_short_chunks() {
        let (parts, bad) = parts(&b"1\r\nx\r\n".repeat(10_000));
        assert_eq!(bad, None);
        let lengths: Vec<usize> = parts.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [10_000]);
        assert!(parts[0].iter().all(|&byte| byte == b'x'));
    }

    #[test]
    fn decode_returns_long_chunks_without_a_copy() {
        let wire = [b"800\r\n", &[b'a'; 2048][..], b"\r\n"].concat().repeat(3);
        let lengths: Vec<usize> = parts(&wire).0.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [2048; 3]);
    }

    #[test]
    fn decode_passes_on_bytes_before_a_fault() {
        let (parts, bad) = parts(b"1\r\na\r\n1\r\nb\r\nnonsense\r\n");
        assert_eq!(parts.concat(), b"ab");
        assert_eq!(bad, Some(BadBody::ChunkSize));
    }
}
