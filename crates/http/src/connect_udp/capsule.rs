//! The capsules in the body of a CONNECT-UDP tunnel (RFC 9297 section 3.2, RFC 9298 section 5).
//!
//! ```text
//!  type (varint)   length (varint)   value
//!  0x00 DATAGRAM                     context ID (varint), UDP payload if the context ID is 0
//! ```
//!
//! A reader skips capsules of other types and datagrams of other contexts, as the RFCs demand.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::h3::varint;

/// The largest UDP payload in bytes (RFC 9298 section 5).
pub const MAX_PAYLOAD: usize = 65_527;

/// The type of a DATAGRAM capsule.
const DATAGRAM: u64 = 0;

/// The length of the longest varint in bytes.
const MAX_VARINT: usize = 8;

/// A capsule that a peer must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedCapsule {
    /// A datagram with more than [`MAX_PAYLOAD`] bytes and its context ID.
    #[error("a datagram longer than UDP allows")]
    TooLong,
    /// A datagram without a whole context ID.
    #[error("a datagram without a context ID")]
    NoContext,
    /// The end of the stream inside a capsule (RFC 9297 section 3.3).
    #[error("the stream of capsules ends inside a capsule")]
    Truncated,
}

/// Reads the datagrams from a stream of capsules that is cut anywhere. It holds at most one
/// incomplete datagram besides the pushed bytes.
#[derive(Debug, Default)]
pub struct CapsuleReader {
    input: BytesMut,
    /// The bytes of a capsule of another type that are still to come.
    skip: u64,
}

impl CapsuleReader {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        self.input.extend_from_slice(&bytes[skipped as usize..]);
    }

    /// Returns the next UDP payload, or `None` until more bytes are pushed. After an error the
    /// stream cannot be read on.
    pub fn datagram(&mut self) -> Result<Option<Bytes>, MalformedCapsule> {
        loop {
            let mut rest = &self.input[..];
            let head = varint::take(&mut rest).zip(varint::take(&mut rest));
            let Some((kind, length)) = head else {
                return Ok(None);
            };
            let begin = self.input.len() - rest.len();
            if kind != DATAGRAM {
                self.skip(begin, length);
                continue;
            }
            if length > (MAX_PAYLOAD + MAX_VARINT) as u64 {
                return Err(MalformedCapsule::TooLong);
            }
            let length = length as usize;
            if rest.len() < length {
                return Ok(None);
            }
            self.input.advance(begin);
            let mut value = self.input.split_to(length).freeze();
            let mut rest = &value[..];
            let context = varint::take(&mut rest).ok_or(MalformedCapsule::NoContext)?;
            value.advance(value.len() - rest.len());
            if value.len() > MAX_PAYLOAD {
                return Err(MalformedCapsule::TooLong);
            }
            if context == 0 {
                return Ok(Some(value));
            }
        }
    }

    /// Checks at the end of the stream that the last capsule is whole. [`CapsuleReader::datagram`]
    /// has returned `None` before.
    pub fn finish(&self) -> Result<(), MalformedCapsule> {
        match self.skip == 0 && self.input.is_empty() {
            true => Ok(()),
            false => Err(MalformedCapsule::Truncated),
        }
    }

    /// Drops a capsule whose value begins at `begin`.
    fn skip(&mut self, begin: usize, length: u64) {
        let here = (self.input.len() - begin) as u64;
        let now = length.min(here);
        self.skip = length - now;
        self.input.advance(begin + now as usize);
    }
}

/// Appends a capsule with one UDP payload of at most [`MAX_PAYLOAD`] bytes.
pub fn put_datagram(out: &mut Vec<u8>, payload: &[u8]) {
    varint::put(out, DATAGRAM);
    varint::put(out, payload.len() as u64 + 1);
    varint::put(out, 0);
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(reader: &mut CapsuleReader) -> Result<Vec<Bytes>, MalformedCapsule> {
        std::iter::from_fn(|| reader.datagram().transpose()).collect()
    }

    #[test]
    fn reader_skips_other_capsules_and_contexts() {
        let mut wire = vec![0x40, 0x52, 3, 1, 2, 3];
        wire.extend([0, 3, 2, 9, 9]);
        put_datagram(&mut wire, b"");
        wire.extend([0x17, 0]);
        put_datagram(&mut wire, b"abc");
        for step in 1..wire.len() {
            let mut reader = CapsuleReader::default();
            let mut read_so_far = Vec::new();
            for piece in wire.chunks(step) {
                reader.push(piece);
                read_so_far.extend(read(&mut reader).expect("legal capsules"));
            }
            assert_eq!(read_so_far, [Bytes::new(), Bytes::from_static(b"abc")]);
        }
    }

    #[test]
    fn reader_holds_nothing_of_a_skipped_capsule() {
        let mut reader = CapsuleReader::default();
        reader.push(&[0x17]);
        reader.push(&(1u64 << 40 | 0xc000_0000_0000_0000).to_be_bytes());
        for _ in 0..1000 {
            reader.push(&[7; 1000]);
            assert_eq!(reader.datagram(), Ok(None));
            assert!(reader.input.is_empty());
        }
    }

    #[test]
    fn reader_refuses_malformed_datagrams() {
        let mut reader = CapsuleReader::default();
        reader.push(&[0, 0]);
        assert_eq!(reader.datagram(), Err(MalformedCapsule::NoContext));
        let mut reader = CapsuleReader::default();
        reader.push(&[0, 1, 0x40]);
        assert_eq!(reader.datagram(), Err(MalformedCapsule::NoContext));
        let mut reader = CapsuleReader::default();
        reader.push(&[0, 0x80, 1, 0, 0]);
        assert_eq!(reader.datagram(), Err(MalformedCapsule::TooLong));
        let mut wire = Vec::new();
        put_datagram(&mut wire, &[1; MAX_PAYLOAD + 1]);
        let mut reader = CapsuleReader::default();
        reader.push(&wire);
        assert_eq!(reader.datagram(), Err(MalformedCapsule::TooLong));
    }

    #[test]
    fn reader_refuses_an_end_inside_a_capsule() {
        let mut wire = vec![0x40, 0x52, 3, 1, 2, 3];
        let whole = [0, wire.len()];
        put_datagram(&mut wire, b"abc");
        for cut in 0..=wire.len() {
            let mut reader = CapsuleReader::default();
            reader.push(&wire[..cut]);
            read(&mut reader).expect("legal capsules");
            let is_whole = whole.contains(&cut) || cut == wire.len();
            assert_eq!(reader.finish().is_ok(), is_whole, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn datagrams_survive_any_cuts(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20),
            step in 1usize..200,
        ) {
            let mut wire = Vec::new();
            for payload in &payloads {
                put_datagram(&mut wire, payload);
            }
            let mut reader = CapsuleReader::default();
            let mut all = Vec::new();
            for piece in wire.chunks(step) {
                reader.push(piece);
                all.extend(read(&mut reader).expect("own writing"));
            }
            prop_assert_eq!(all, payloads);
        }
    }
}
