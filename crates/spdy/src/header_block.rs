//! Header blocks: lists of names and values, compressed in one zlib stream per direction for the
//! life of the session. Draft sections 2.6.10 and 2.6.10.1.
//!
//! ```text
//! fields ─▶ Block (plain, knows its secrets) ─▶ Encoder ─▶ frame
//! frame  ─▶ Decoder ─▶ Pairs ─▶ fields
//! ```
//!
//! The order of blocks is the order of the frames on the wire, so every encoded block must be sent.
//! Every received block is inflated, needed or not, or both ends drift apart; the inflated size is
//! bounded.

use std::ops::Range;

use memchr::{memchr_iter, memchr3};
use tandem_http::message::is_token;

use crate::deflate::{Deflate, ReleasedDeflate, write_stored, write_zlib_head};
use crate::inflate::Inflate;
use crate::secrets::secret_part;

/// The text that both ends know beforehand. Draft section 2.6.10.1.
pub const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");

/// Adler-32 of [`DICTIONARY`].
pub const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

/// The parts of outgoing header blocks that are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderCompression {
    /// Compresses everything, secrets too. An attacker that sees the lengths of frames and can have
    /// guesses sent beside a cookie finds the cookie (CRIME).
    Full,
    /// Everything but secrets: those are neither matched nor ever matched against. See
    /// `secrets`.
    #[default]
    Safe,
    /// Compresses no part: blocks are stored.
    Off,
}

/// A header block that is being written, in the form that the compressor takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    bytes: Vec<u8>,
    secrets: Vec<Range<usize>>,
    list_size: usize,
    count: u32,
}

impl Block {
    /// A block without pairs.
    pub fn new() -> Self {
        Self::with_capacity(0, 0)
    }

    /// The same with room for `pairs` pairs of `text` bytes in all.
    pub fn with_capacity(pairs: usize, text: usize) -> Self {
        let mut bytes = Vec::with_capacity(4 + 8 * pairs + text);
        bytes.extend_from_slice(&[0; 4]);
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// Appends a pair with the value `parts`, joined by `separator`. `sensitive` marks the value as
    /// secret whatever its name.
    pub fn push(&mut self, name: &[u8], parts: &[&[u8]], separator: u8, sensitive: bool) {
        self.put_len(name.len());
        self.bytes.extend_from_slice(name);
        let len =
            parts.iter().map(|part| part.len()).sum::<usize>() + parts.len().saturating_sub(1);
        self.put_len(len);
        let start = self.bytes.len();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.bytes.push(separator);
            }
            self.bytes.extend_from_slice(part);
        }
        let open = if sensitive {
            0
        } else {
            secret_part(name, &self.bytes[start..])
        };
        if open < len {
            self.secrets.push(start + open..start + len);
        }
        self.list_size += name.len() + len + PAIR_OVERHEAD;
        self.count += 1;
        self.bytes[..4].copy_from_slice(&self.count.to_be_bytes());
    }

    /// Bytes of the list: names, values and 32 for each pair.
    pub const fn list_size(&self) -> usize {
        self.list_size
    }

    /// Returns true if the block has no pairs.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn put_len(&mut self, len: usize) {
        self.bytes.extend_from_slice(&(len as u32).to_be_bytes());
    }
}

/// The overhead of each pair, in bytes, in addition to its text, as in HTTP/2.
const PAIR_OVERHEAD: usize = 32;

/// Compresses our blocks.
#[derive(Debug)]
pub struct Encoder {
    setting: HeaderCompression,
    context: Context,
    started: bool,
}

/// The state of the compressor.
#[derive(Debug)]
enum Context {
    Fresh,
    Active(Deflate),
    Released(ReleasedDeflate),
}

impl Encoder {
    /// A fresh context; allocates nothing before the first block.
    pub const fn new(setting: HeaderCompression) -> Self {
        Self {
            setting,
            context: Context::Fresh,
            started: false,
        }
    }

    /// Appends the compressed block, which must be sent next.
    pub fn encode(&mut self, block: &Block, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.started, true) {
            write_zlib_head(out);
        }
        let secrets: &[_] = match self.setting {
            HeaderCompression::Off => return write_stored(&block.bytes, out),
            HeaderCompression::Safe => &block.secrets,
            HeaderCompression::Full => &[],
        };
        let mut deflate = match std::mem::replace(&mut self.context, Context::Fresh) {
            Context::Fresh => Deflate::new(),
            Context::Active(deflate) => deflate,
            Context::Released(text) => Deflate::resume(text),
        };
        deflate.write(&block.bytes, secrets, out);
        self.context = Context::Active(deflate);
    }

    /// Frees most of the memory of the context. The next block refers only to the latest text.
    pub fn release(&mut self) {
        if let Context::Active(deflate) = &self.context {
            self.context = Context::Released(deflate.release());
        }
    }
}

/// Inflates the peer's blocks.
#[derive(Debug)]
pub struct Decoder {
    inflate: Inflate,
    plain: Vec<u8>,
    limit: usize,
    /// The number of bytes in the last block.
    inflated: usize,
}

/// The session's compression context is lost: nothing that follows can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InflateError {
    /// No zlib stream with our dictionary.
    #[error("header block does not inflate")]
    Corrupt,
    /// A block inflates to many times the size of any permitted list.
    #[error("header block inflates without end")]
    Bomb,
}

/// A block that is wrong in itself; the context is intact, so that only its stream suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Longer than the limit.
    #[error("header list is larger than the limit")]
    TooLarge,
    /// Lengths that do not fit, illegal or repeated names, illegal values.
    #[error("header block is malformed")]
    Malformed,
}

/// A block that inflates to more than this many limits ends the session: to read on costs more than
/// it. An over-long head within this bound fails alone, and the other streams go on. [The
/// excess](Decoder::excess) counts as work without use.
const BOMB_FACTOR: usize = 16;

/// Inflated at once.
const STEP: usize = 4096;

impl Decoder {
    /// A fresh context for lists of up to `limit` bytes; allocates nothing before the first block.
    pub const fn new(limit: usize) -> Self {
        Self {
            inflate: Inflate::new(),
            plain: Vec::new(),
            limit,
            inflated: 0,
        }
    }

    /// Lets the context keep the text that [`Self::release`] needs. Must precede the first block.
    pub const fn permit_release(&mut self) {
        self.inflate.permit_release();
    }

    /// Frees most of the memory of the context, if [`Self::permit_release`] was called. The text
    /// within the peer's window stays.
    pub fn release(&mut self) {
        self.plain = Vec::new();
        self.inflate.release();
    }

    /// Inflates one block. The outer error ends the session.
    pub fn decode(&mut self, block: &[u8]) -> Result<Result<Pairs<'_>, BlockError>, InflateError> {
        self.plain.clear();
        self.plain.shrink_to(4 * STEP);
        self.inflate.begin(block);
        let mut rest = block;
        self.inflated = 0;
        loop {
            if self.inflated > self.limit {
                // Too large already: inflate on, for the context, but keep none of it.
                self.plain.clear();
            }
            self.plain.reserve(STEP);
            let room = self.plain.capacity() - self.plain.len();
            let produced = self.inflate.step(&mut rest, &mut self.plain)?;
            self.inflated += produced;
            if self.inflated > self.limit.saturating_mul(BOMB_FACTOR) {
                return Err(InflateError::Bomb);
            }
            if rest.is_empty() && produced < room {
                break;
            }
        }
        if self.excess() > 0 {
            Ok(Err(BlockError::TooLarge))
        } else {
            Ok(Pairs::load(&self.plain, self.limit))
        }
    }

    /// Returns the number of bytes by which the last block exceeded the limit.
    pub const fn excess(&self) -> usize {
        self.inflated.saturating_sub(self.limit)
    }
}

/// The pairs of an inflated block: names lower-case, not empty, each once; values still joined by
/// NUL, but with no empty part and no line break.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    pairs: Vec<(&'a [u8], &'a [u8])>,
    text_len: usize,
}

impl<'a> Pairs<'a> {
    /// Reads a list of up to `limit` bytes: names, values and 32 for each part of a value.
    pub fn load(mut bytes: &'a [u8], limit: usize) -> Result<Self, BlockError> {
        let count = take_u32(&mut bytes)?;
        // Each pair takes eight bytes at least: no allocation follows an announced count alone.
        let mut pairs = Vec::with_capacity((count as usize).min(bytes.len() / 8));
        let (mut size, mut text_len) = (0, 0);
        let mut seen = Seen::default();
        let mut repeated = false;
        for _ in 0..count {
            let name = take_text(&mut bytes)?;
            let value = take_text(&mut bytes)?;
            // A value of many parts becomes many fields.
            let parts = 1 + memchr_iter(0, value).count();
            text_len += name.len() + value.len();
            size += name.len() + value.len() + parts * PAIR_OVERHEAD;
            if size > limit {
                return Err(BlockError::TooLarge);
            }
            if !is_name(name) || !is_value(value) {
                return Err(BlockError::Malformed);
            }
            repeated |= seen.perhaps(name);
            pairs.push((name, value));
        }
        if !bytes.is_empty() || repeated && has_duplicate(&pairs) {
            return Err(BlockError::Malformed);
        }
        Ok(Self { pairs, text_len })
    }

    /// Bytes of all names and values.
    pub const fn text_len(&self) -> usize {
        self.text_len
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + '_ {
        self.pairs.iter().copied()
    }
}

/// "Header names are lower case ASCII and not empty." A colon may stand in front.
fn is_name(name: &[u8]) -> bool {
    const LEGAL: [bool; 256] = {
        let mut legal = [false; 256];
        let mut byte = 0;
        while byte < 128u8 {
            legal[byte as usize] = is_token(byte) && !byte.is_ascii_uppercase();
            byte += 1;
        }
        legal
    };
    let text = name.strip_prefix(b":").unwrap_or(name);
    !text.is_empty()
        && name.len() <= usize::from(u16::MAX)
        && text.iter().all(|&byte| LEGAL[usize::from(byte)])
}

/// "The value may be empty, but has no NUL at either end and no two in a row." Line breaks would be
/// new fields to an HTTP/1.1 reader behind us.
fn is_value(value: &[u8]) -> bool {
    // Most values have neither.
    let Some(first) = memchr3(0, b'\r', b'\n', value) else {
        return true;
    };
    let parts = value[first..].windows(2).all(|pair| pair != [0, 0]);
    first > 0
        && value.last() != Some(&0)
        && parts
        && !value[first..]
            .iter()
            .any(|byte| matches!(byte, b'\r' | b'\n'))
}

fn has_duplicate(pairs: &[(&[u8], &[u8])]) -> bool {
    let mut names: Vec<_> = pairs.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// Tells most lists without a repeated name apart from those with one, at the cost of a look at
/// each name.
#[derive(Debug, Default)]
pub(crate) struct Seen([u64; 4]);

impl Seen {
    /// Notes a name; false when it was certainly not noted before.
    pub(crate) fn perhaps(&mut self, name: &[u8]) -> bool {
        let byte = |at: usize| name.get(at).map_or(0, |&byte| u32::from(byte));
        let middle = byte(name.len() / 2) << 8 | byte(name.len() / 3) << 16;
        let key = byte(0) | middle | byte(name.len().wrapping_sub(1)) << 24;
        let slot = (key ^ name.len() as u32).wrapping_mul(0x9e37_79b1) >> 24;
        let (word, bit) = (&mut self.0[slot as usize / 64], 1 << (slot % 64));
        std::mem::replace(word, *word | bit) & bit != 0
    }
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32, BlockError> {
    let (number, rest) = bytes.split_first_chunk().ok_or(BlockError::Malformed)?;
    *bytes = rest;
    Ok(u32::from_be_bytes(*number))
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], BlockError> {
    let len = take_u32(bytes)? as usize;
    let (text, rest) = bytes.split_at_checked(len).ok_or(BlockError::Malformed)?;
    *bytes = rest;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(setting: HeaderCompression, releases: bool) {
        let mut encoder = Encoder::new(setting);
        let mut decoder = Decoder::new(1 << 16);
        if releases {
            decoder.permit_release();
        }
        for round in 0..200 {
            if releases && round % 3 == 0 {
                encoder.release();
                decoder.release();
            }
            let mut block = Block::new();
            block.push(
                b":path",
                &[format!("/item/{round}?key={}", round * 31).as_bytes()],
                0,
                false,
            );
            block.push(b"accept", &[b"text/html", b"*/*"], 0, false);
            block.push(b"cookie", &[b"a=1", b"b=2"], b';', false);
            block.push(b"x-empty", &[b""], 0, false);
            let mut wire = Vec::new();
            encoder.encode(&block, &mut wire);
            assert!(wire.ends_with(&[0, 0, 0xff, 0xff]));
            let pairs = decoder.decode(&wire).expect("in step").expect("legal");
            let pairs: Vec<_> = pairs.iter().collect();
            assert_eq!(pairs.len(), 4);
            assert_eq!(pairs[1], (&b"accept"[..], &b"text/html\0*/*"[..]));
            assert_eq!(pairs[2].1, b"a=1;b=2");
        }
    }

    #[test]
    fn both_ends_stay_in_step() {
        for releases in [false, true] {
            round_trip(HeaderCompression::Full, releases);
            round_trip(HeaderCompression::Safe, releases);
            round_trip(HeaderCompression::Off, releases);
        }
    }

    fn raw(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = (pairs.len() as u32).to_be_bytes().to_vec();
        for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }

    #[test]
    fn illegal_lists() {
        for pairs in [
            &[("", "v")][..],
            &[("Accept", "v")],
            &[("a", "1"), ("a", "2")],
            &[("a", "\0b")],
            &[("a", "b\0")],
            &[("a", "b\0\0c")],
            &[("a", "b\r\nc: d")],
            &[("a b", "v")],
            &[(":", "v")],
        ] {
            assert_eq!(
                Pairs::load(&raw(pairs), 1000).err(),
                Some(BlockError::Malformed),
                "{pairs:?}"
            );
        }
        assert!(Pairs::load(&raw(&[("a", ""), (":b", "1\x002")]), 1000).is_ok());
        for value in ["0123456789", "0\x001"] {
            assert_eq!(
                Pairs::load(&raw(&[("a", value)]), 40).err(),
                Some(BlockError::TooLarge)
            );
        }
    }

    #[test]
    fn wrong_lengths() {
        let good = raw(&[("name", "value")]);
        for cut in 0..good.len() {
            assert_eq!(
                Pairs::load(&good[..cut], 1000).err(),
                Some(BlockError::Malformed),
                "{cut}"
            );
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(Pairs::load(&long, 1000).err(), Some(BlockError::Malformed));
        assert_eq!(
            Pairs::load(&[0xff; 64], 1000).err(),
            Some(BlockError::Malformed)
        );
    }

    #[test]
    fn many_names_are_checked_too() {
        let names: Vec<_> = (0..100).map(|index| format!("n{index}")).collect();
        let mut pairs: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        assert!(Pairs::load(&raw(&pairs), 1 << 16).is_ok());
        pairs.push(("n50", "w"));
        assert_eq!(
            Pairs::load(&raw(&pairs), 1 << 16).err(),
            Some(BlockError::Malformed)
        );
    }

    /// A block that deflates a thousandfold, made by another compressor.
    fn bomb(len: usize) -> Vec<u8> {
        let mut deflate = flate2::Compress::new(flate2::Compression::best(), true);
        deflate
            .set_dictionary(DICTIONARY)
            .expect("before any input");
        let mut out = Vec::with_capacity(len / 100 + 1000);
        deflate
            .compress_vec(&vec![b'a'; len], &mut out, flate2::FlushCompress::Sync)
            .expect("compresses");
        out
    }

    #[test]
    fn a_large_block_costs_its_stream_only() {
        let mut decoder = Decoder::new(1000);
        assert_eq!(
            decoder.decode(&bomb(10_000)).expect("in step").err(),
            Some(BlockError::TooLarge)
        );
        assert!(decoder.plain.capacity() < 64 << 10);
    }

    #[test]
    fn a_bomb_ends_the_session() {
        let mut decoder = Decoder::new(64 << 10);
        let wire = bomb(16 << 20);
        assert!(wire.len() < 20_000);
        assert_eq!(decoder.decode(&wire).err(), Some(InflateError::Bomb));
        assert!(decoder.plain.capacity() < 256 << 10);
    }

    #[test]
    fn no_zlib_stream() {
        for wire in [
            &b"nonsense"[..],
            b"\x78\x9c\x07",
            b"\x78\xbb\x00\x00\x00\x01abc",
        ] {
            assert_eq!(
                Decoder::new(1000).decode(wire).err(),
                Some(InflateError::Corrupt),
                "{wire:?}"
            );
        }
    }
}
