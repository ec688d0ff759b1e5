//! An inflater of header blocks: one zlib stream (RFC 1950, RFC 1951) for the life of a session.
//!
//! An inflater needs about 40 KiB of memory. Between two blocks, later blocks can refer only to the
//! latest output, as far back as the peer's window. [`Inflate::release`] keeps that text and frees
//! the inflater. The next block then begins a raw deflate stream, and the text is its dictionary.

use flate2::{Decompress, FlushDecompress, Status};

use crate::deflate::Deflate;
use crate::header_block::{DICTIONARY, DICTIONARY_ID, InflateError};

/// The largest window of deflate, in bytes.
const MAX_WINDOW: usize = 1 << 15;
/// The number of bytes by which the recent output may exceed the window before it is cut.
const SLACK: usize = 8 << 10;
/// The kept text is compressed above this size, in bytes. Header blocks resemble each other.
const PACK_ABOVE: usize = 512;
/// The end of each block: that of an empty stored block (Z_SYNC_FLUSH).
const FLUSHED: [u8; 4] = [0, 0, 0xff, 0xff];

/// The inflating end of a direction.
#[derive(Debug)]
pub(crate) struct Inflate {
    state: State,
    /// True if the context keeps the text for `release`.
    keeps_text: bool,
    /// The peer's window in bytes; 0 before the first byte.
    window: usize,
    /// The latest output, without the dictionary.
    recent: Vec<u8>,
    /// The last block ended at a byte boundary between deflate blocks.
    flushed: bool,
}

#[derive(Debug)]
enum State {
    /// No block has come.
    Fresh,
    Active(Box<Decompress>),
    Released(Packed),
}

impl Inflate {
    /// Creates a context that allocates nothing before its first block.
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Fresh,
            keeps_text: false,
            window: 0,
            recent: Vec::new(),
            flushed: false,
        }
    }

    /// Lets the context keep the text that `release` needs.
    pub(crate) const fn permit_release(&mut self) {
        self.keeps_text = true;
    }

    /// Notes the beginning of a block.
    pub(crate) fn begin(&mut self, block: &[u8]) {
        self.flushed = block.ends_with(&FLUSHED);
        if let (0, Some(head)) = (self.window, block.first()) {
            // The upper half of CMF is the logarithm of the window, minus 8. Deflaters of zlib use
            // 512 bytes where they announce 256.
            self.window = MAX_WINDOW.min(1 << (8 + (head >> 4)).clamp(9, 15));
        }
    }

    /// Inflates as much as fits into the spare capacity of `out`; returns the number of bytes.
    pub(crate) fn step(
        &mut self,
        rest: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let before = out.len();
        let produced = step(self.activate()?, rest, out)?;
        if self.keeps_text {
            self.remember(&out[before..]);
        }
        Ok(produced)
    }

    /// Frees the inflater if the stream is between two blocks.
    pub(crate) fn release(&mut self) {
        if self.keeps_text && self.flushed && matches!(self.state, State::Active(_)) {
            let mut recent = std::mem::take(&mut self.recent);
            recent.drain(..recent.len().saturating_sub(self.window));
            self.state = State::Released(Packed::new(recent));
        }
    }

    fn activate(&mut self) -> Result<&mut Decompress, InflateError> {
        match std::mem::replace(&mut self.state, State::Fresh) {
            State::Fresh => self.state = State::Active(Box::new(Decompress::new(true))),
            State::Released(packed) => {
                self.recent = packed.unpack()?;
                let mut inflate = Box::new(Decompress::new(false));
                let missing = MAX_WINDOW.saturating_sub(self.recent.len());
                let preset = &DICTIONARY[DICTIONARY.len().saturating_sub(missing)..];
                inflate
                    .set_dictionary(&[preset, &self.recent].concat())
                    .map_err(|_| InflateError::Corrupt)?;
                self.state = State::Active(inflate);
            }
            active @ State::Active(_) => self.state = active,
        }
        match &mut self.state {
            State::Active(inflate) => Ok(inflate),
            _ => Err(InflateError::Corrupt),
        }
    }

    fn remember(&mut self, text: &[u8]) {
        let text = &text[text.len().saturating_sub(self.window)..];
        let len = self.recent.len() + text.len();
        if len > self.window + SLACK {
            self.recent.drain(..len - self.window);
        }
        self.recent.extend_from_slice(text);
    }
}

/// Inflates as much as fits into the spare capacity of `out`; returns the number of bytes.
fn step(
    inflate: &mut Decompress,
    rest: &mut &[u8],
    out: &mut Vec<u8>,
) -> Result<usize, InflateError> {
    let (used, made) = (inflate.total_in(), inflate.total_out());
    let result = inflate.decompress_vec(rest, out, FlushDecompress::Sync);
    let consumed = (inflate.total_in() - used) as usize;
    let produced = (inflate.total_out() - made) as usize;
    *rest = rest.get(consumed..).unwrap_or_default();
    match result {
        // The peer ended its zlib stream; the direction has no more blocks.
        Ok(Status::StreamEnd) => Err(InflateError::Corrupt),
        Ok(_) if consumed == 0 && produced == 0 && !rest.is_empty() => Err(InflateError::Corrupt),
        Ok(_) => Ok(produced),
        Err(error) if error.needs_dictionary() == Some(DICTIONARY_ID) => {
            inflate
                .set_dictionary(DICTIONARY)
                .map_err(|_| InflateError::Corrupt)?;
            step(inflate, rest, out).map(|more| more + produced)
        }
        Err(_) => Err(InflateError::Corrupt),
    }
}

/// The text of a released context, compressed if that saves memory.
#[derive(Debug)]
struct Packed {
    bytes: Vec<u8>,
    /// The length of the text if the bytes are compressed.
    len: Option<usize>,
}

impl Packed {
    fn new(mut text: Vec<u8>) -> Self {
        if text.len() > PACK_ABOVE {
            let mut bytes = Vec::new();
            Deflate::new().write(&text, &[], &mut bytes);
            bytes.shrink_to_fit();
            return Self {
                bytes,
                len: Some(text.len()),
            };
        }
        text.shrink_to_fit();
        Self {
            bytes: text,
            len: None,
        }
    }

    fn unpack(self) -> Result<Vec<u8>, InflateError> {
        let Some(len) = self.len else {
            return Ok(self.bytes);
        };
        let mut text = Vec::with_capacity(len);
        let mut inflate = Decompress::new(false);
        inflate
            .set_dictionary(DICTIONARY)
            .map_err(|_| InflateError::Corrupt)?;
        match inflate.decompress_vec(&self.bytes, &mut text, FlushDecompress::Sync) {
            Ok(_) if text.len() == len => Ok(text),
            _ => Err(InflateError::Corrupt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_text_unpacks_to_itself() {
        let similar = b"accept: text/html, user-agent: example\0".repeat(500);
        let mixed: Vec<u8> = (0..9000u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for text in [Vec::new(), vec![7; 100], similar, mixed] {
            let packed = Packed::new(text.clone());
            // A literal of the fixed code has nine bits at most.
            assert!(packed.bytes.capacity() <= text.len().max(PACK_ABOVE) / 8 * 9 + 16);
            assert_eq!(packed.unpack(), Ok(text));
        }
    }

    #[test]
    fn inflater_without_a_flush_stays_active() {
        let mut inflate = Inflate::new();
        inflate.permit_release();
        // The head of the zlib stream alone.
        let head = [0x68, 0xbc, 0xe3, 0xc6, 0xa7, 0xc2];
        inflate.begin(&head);
        assert_eq!(inflate.window, 1 << 14);
        let mut out = Vec::with_capacity(16);
        let _ = inflate.step(&mut &head[..], &mut out);
        inflate.release();
        assert!(matches!(inflate.state, State::Active(_)));
    }
}
