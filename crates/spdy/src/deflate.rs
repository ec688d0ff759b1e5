//! A compressor of header blocks: zlib streams (RFC 1950, RFC 1951) in which a secret is never
//! matched.
//!
//! A general deflate compressor cannot do this. It finds a cookie in its window, even if an
//! attacker put a guess beside it, and the length of the frame reveals the match (CRIME). To
//! protect a secret, one would have to empty the window, dictionary included, after each. Here the
//! window knows the positions of secret bytes. They are written one by one, in codes of lengths
//! that depend on nothing else. No later match begins in, ends in or crosses them; all other bytes
//! keep their history.
//!
//! The codes are the fixed ones (RFC 1951 section 3.2.6). Header blocks are too short for dynamic
//! tables, and a table made from a secret's letters would reveal them. Each block ends like
//! Z_SYNC_FLUSH, with the bytes 00 00 ff ff. A session that has sent a block needs about 90 KiB of
//! memory.

use std::collections::VecDeque;
use std::ops::Range;

use crate::header_block::{DICTIONARY, DICTIONARY_ID};

/// How far back matches reach, and the window that the zlib head announces.
const WINDOW: usize = 1 << WINDOW_BITS;
const WINDOW_BITS: u32 = 14;
/// zlib keeps this distance from the window's end; some inflaters count on it.
const MAX_DISTANCE: usize = WINDOW - 262;
/// Shorter matches save next to nothing over literals: 12 bits and the distance's own, up to 12
/// more.
const MIN_MATCH: usize = 4;
const MAX_MATCH: usize = 258;
const HASH_BITS: u32 = 12;
/// Candidates looked at for one match.
const MAX_CHAIN: usize = 16;
/// A match this long is taken without trying the next position.
const NICE_MATCH: usize = 32;
/// The length, in bytes, at which a match at the previous distance is taken without a search.
const ALIGNED_MATCH: usize = 8;
/// The number of positions of a match that enter the index. The repeated text is in the index
/// itself, or was until recently.
const REMEMBERED: usize = 16;
/// The shortest length of the match codes (RFC 1951 section 3.2.5).
const CODED_FROM: usize = 3;
const END_OF_BLOCK: usize = 256;
/// The latest text that a released context keeps, in bytes.
const RELEASED_TEXT: usize = 2 << 10;

/// A compression context that lives as long as its session.
#[derive(Debug)]
pub(crate) struct Deflate {
    /// The window and the bytes being written: at most three windows long.
    text: Vec<u8>,
    /// Latest place (plus one) of each hash, and before it the previous place of the same hash.
    head: Box<[u16; 1 << HASH_BITS]>,
    previous: Box<[u16; WINDOW]>,
    /// The ranges of secrets in `text`, in order.
    secrets: VecDeque<Range<usize>>,
    /// The starts of the parts between secrets, of the previous block and of this one. Blocks
    /// resemble each other, so each part is first compared with its counterpart.
    parts_before: Vec<usize>,
    parts: Vec<usize>,
    bits: BitWriter,
}

#[derive(Clone, Copy)]
struct Match {
    len: usize,
    distance: usize,
}

/// The part of a context that remains while its session is idle: the latest text, without the
/// index.
#[derive(Debug)]
pub(crate) struct ReleasedDeflate {
    text: Vec<u8>,
    secrets: Vec<Range<usize>>,
    parts: Vec<usize>,
}

impl Deflate {
    pub(crate) fn new() -> Self {
        Self::resume(ReleasedDeflate {
            text: DICTIONARY.to_vec(),
            secrets: Vec::new(),
            parts: Vec::new(),
        })
    }

    /// Returns the latest text for `resume`. Later matches refer to this text only, which is part
    /// of the peer's window.
    pub(crate) fn release(&self) -> ReleasedDeflate {
        let cut = self.text.len().saturating_sub(RELEASED_TEXT);
        let secrets = self.secrets.iter().filter(|secret| secret.end > cut);
        ReleasedDeflate {
            text: self.text[cut..].to_vec(),
            secrets: secrets
                .map(|secret| secret.start.saturating_sub(cut)..secret.end - cut)
                .collect(),
            parts: self
                .parts
                .iter()
                .map(|part| part.saturating_sub(cut))
                .collect(),
        }
    }

    /// Goes on after `release`: builds the index again.
    pub(crate) fn resume(released: ReleasedDeflate) -> Self {
        let mut this = Self {
            text: Vec::with_capacity(2 * WINDOW),
            head: Box::new([0; 1 << HASH_BITS]),
            previous: Box::new([0; WINDOW]),
            secrets: VecDeque::new(),
            parts_before: Vec::new(),
            parts: released.parts,
            bits: BitWriter::default(),
        };
        this.text.extend_from_slice(&released.text);
        let mut open = 0;
        for secret in &released.secrets {
            // A hash must not cover a part of the secret.
            this.remember(open..secret.start.saturating_sub(MIN_MATCH - 1));
            open = secret.end;
        }
        this.remember(open..this.text.len());
        this.secrets = released.secrets.into();
        this
    }

    /// Appends one block, ended by a flush. `secrets` are parts of `block`, in order and disjoint.
    pub(crate) fn write(&mut self, block: &[u8], secrets: &[Range<usize>], out: &mut Vec<u8>) {
        std::mem::swap(&mut self.parts_before, &mut self.parts);
        self.parts.clear();
        // BFINAL 0, BTYPE 01: fixed codes.
        self.bits.put(out, 0b010, 3);
        let mut done = 0;
        for secret in secrets {
            self.write_plain(&block[done..secret.start], out);
            self.write_secret(&block[secret.clone()], out);
            done = secret.end;
        }
        self.write_plain(&block[done..], out);
        self.bits.put_code(out, END_OF_BLOCK);
        // BFINAL 0, BTYPE 00: an empty stored block.
        self.bits.put(out, 0, 3);
        self.bits.align(out);
        out.extend_from_slice(&[0, 0, 0xff, 0xff]);
    }

    fn write_secret(&mut self, secret: &[u8], out: &mut Vec<u8>) {
        for part in secret.chunks(WINDOW) {
            self.slide();
            let start = self.text.len();
            self.text.extend_from_slice(part);
            self.secrets.push_back(start..self.text.len());
            for &byte in part {
                self.bits.put_code(out, usize::from(byte));
            }
        }
    }

    fn write_plain(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        for part in plain.chunks(WINDOW) {
            self.slide();
            let start = self.text.len();
            let counterpart = self.parts_before.get(self.parts.len());
            let distance = counterpart.map_or(0, |&before| start - before);
            self.parts.push(start);
            self.text.extend_from_slice(part);
            self.match_from(start, distance, out);
        }
    }

    /// Writes `text[at..]` as matches and literals. A longer match that begins a byte later takes
    /// precedence. `distance` is the first distance to try, then that of the latest match. After a
    /// value that differs from an earlier one of equal length, the distance stays the same.
    fn match_from(&mut self, mut at: usize, mut distance: usize, out: &mut Vec<u8>) {
        let end = self.text.len();
        while at < end {
            let Some(mut found) = self
                .aligned_match(at, distance)
                .or_else(|| self.longest_match(at))
            else {
                self.put_literal(at, out);
                at += 1;
                continue;
            };
            while found.len < NICE_MATCH
                && found.distance != distance
                && let Some(next) = self
                    .longest_match(at + 1)
                    .filter(|next| next.len > found.len)
            {
                self.put_literal(at, out);
                at += 1;
                found = next;
            }
            self.bits.put_match(out, found);
            self.remember(at..at + found.len.min(REMEMBERED));
            distance = found.distance;
            at += found.len;
        }
    }

    fn put_literal(&mut self, at: usize, out: &mut Vec<u8>) {
        self.bits.put_code(out, usize::from(self.text[at]));
        self.remember(at..at + 1);
    }

    /// Returns the match between `at` and `distance` bytes before it, if it is long.
    fn aligned_match(&self, at: usize, distance: usize) -> Option<Match> {
        if distance == 0 || distance > MAX_DISTANCE {
            return None;
        }
        let candidate = at - distance;
        let target = &self.text[at..self.text.len().min(at + MAX_MATCH)];
        let len = common_prefix(&self.text[candidate..], target);
        if len < ALIGNED_MATCH {
            return None;
        }
        let len = len.min(self.open_len(candidate));
        (len >= ALIGNED_MATCH).then_some(Match { len, distance })
    }

    /// Returns the longest earlier occurrence of the text at `at`, if it is worth its codes.
    fn longest_match(&self, at: usize) -> Option<Match> {
        let target = &self.text[at..self.text.len().min(at + MAX_MATCH)];
        let mut best = Match {
            len: MIN_MATCH - 1,
            distance: 0,
        };
        let mut link = self.head[hash(target.get(..MIN_MATCH)?)];
        for _ in 0..MAX_CHAIN {
            let Some(candidate) = usize::from(link).checked_sub(1) else {
                break;
            };
            if at - candidate > MAX_DISTANCE {
                break;
            }
            // The compared bytes may be secret; the usable length is computed only if it matters.
            if self.text[candidate + best.len] == target[best.len] {
                let len = common_prefix(&self.text[candidate..], target);
                if len > best.len {
                    let len = len.min(self.open_len(candidate));
                    if len > best.len {
                        best = Match {
                            len,
                            distance: at - candidate,
                        };
                        if len == target.len() {
                            break;
                        }
                    }
                }
            }
            link = self.previous[candidate % WINDOW];
        }
        (best.distance > 0).then_some(best)
    }

    /// Returns the number of bytes from `candidate` to the next secret; 0 inside a secret.
    fn open_len(&self, candidate: usize) -> usize {
        let next = self
            .secrets
            .partition_point(|secret| secret.end <= candidate);
        self.secrets
            .get(next)
            .map_or(usize::MAX, |secret| secret.start.saturating_sub(candidate))
    }

    /// Adds positions to the index. Callers pass positions outside secrets only. The last three
    /// before a secret cannot be found, since their hash would cover a part of it.
    fn remember(&mut self, places: Range<usize>) {
        if places.is_empty() {
            return;
        }
        let text = &self.text[places.start..self.text.len().min(places.end + MIN_MATCH - 1)];
        for (at, bytes) in places.zip(text.windows(MIN_MATCH)) {
            let slot = hash(bytes);
            self.previous[at % WINDOW] = self.head[slot];
            self.head[slot] = (at + 1) as u16;
        }
    }

    /// Drops the text that no match may reach any more, so that positions stay below three windows.
    fn slide(&mut self) {
        while self.text.len() >= 2 * WINDOW {
            self.text.drain(..WINDOW);
            for link in self.head.iter_mut().chain(self.previous.iter_mut()) {
                *link = link.saturating_sub(WINDOW as u16);
            }
            for place in self.parts.iter_mut().chain(&mut self.parts_before) {
                // Dropped positions move to a place that no match reaches.
                *place = place.saturating_sub(WINDOW);
            }
            while self
                .secrets
                .front()
                .is_some_and(|secret| secret.end <= WINDOW)
            {
                self.secrets.pop_front();
            }
            for secret in &mut self.secrets {
                *secret = secret.start.saturating_sub(WINDOW)..secret.end - WINDOW;
            }
        }
    }
}

/// The head of a zlib stream that asks for the dictionary (RFC 1950 section 2.2).
pub(crate) fn write_zlib_head(out: &mut Vec<u8>) {
    const PRESET: u16 = 1 << 5;
    let method = ((WINDOW_BITS as u16 - 8) << 4 | 8) << 8 | PRESET;
    let check = 31 - method % 31;
    out.extend_from_slice(&(method | check).to_be_bytes());
    out.extend_from_slice(&DICTIONARY_ID.to_be_bytes());
}

/// Appends one block as it is, in stored blocks (RFC 1951 section 3.2.4), ended like a flush.
pub(crate) fn write_stored(block: &[u8], out: &mut Vec<u8>) {
    for part in block.chunks(usize::from(u16::MAX)) {
        let len = part.len() as u16;
        out.push(0);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
}

/// How much of `b` stands at the beginning of `a` too, which is no shorter, compared by eights.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let a = &a[..b.len()];
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    for (at, (a, b)) in a_words.iter().zip(b_words).enumerate() {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return at * 8 + (differing.trailing_zeros() / 8) as usize;
        }
    }
    a_words.len() * 8
        + a_rest
            .iter()
            .zip(b_rest)
            .take_while(|(a, b)| a == b)
            .count()
}

/// Hashes the first four bytes.
fn hash(bytes: &[u8]) -> usize {
    (u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).wrapping_mul(0x9e37_79b1)
        >> (32 - HASH_BITS)) as usize
}

/// Writes bits, the least significant first.
#[derive(Debug, Default)]
struct BitWriter {
    held: u64,
    count: u32,
}

impl BitWriter {
    /// Appends the low `count` bits, at most 16 of them.
    fn put(&mut self, out: &mut Vec<u8>, bits: u32, count: u32) {
        self.held |= u64::from(bits) << self.count;
        self.count += count;
        if self.count >= 32 {
            out.extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.count -= 32;
        }
    }

    /// A symbol of the fixed literal and length code.
    fn put_code(&mut self, out: &mut Vec<u8>, symbol: usize) {
        let (code, len) = FIXED[symbol];
        self.put(out, u32::from(code), u32::from(len));
    }

    /// A length and a distance (RFC 1951 section 3.2.5).
    fn put_match(&mut self, out: &mut Vec<u8>, found: Match) {
        let len = (found.len - CODED_FROM) as u32;
        match len {
            255 => self.put_code(out, 285),
            0..8 => self.put_code(out, 257 + len as usize),
            _ => {
                let extra = len.ilog2() - 2;
                self.put_code(out, (257 + 4 * (extra + 1) + (len >> extra & 3)) as usize);
                self.put(out, len & ((1 << extra) - 1), extra);
            }
        }
        let distance = (found.distance - 1) as u32;
        if distance < 4 {
            self.put(out, distance.reverse_bits() >> 27, 5);
        } else {
            let extra = distance.ilog2() - 1;
            let symbol = 2 * (extra + 1) + (distance >> extra & 1);
            self.put(out, symbol.reverse_bits() >> 27, 5);
            self.put(out, distance & ((1 << extra) - 1), extra);
        }
    }

    /// Fills up the last byte with zeros.
    fn align(&mut self, out: &mut Vec<u8>) {
        let bytes = self.count.div_ceil(8) as usize;
        out.extend_from_slice(&self.held.to_le_bytes()[..bytes]);
        *self = Self::default();
    }
}

/// The fixed code of each symbol, in the order of the wire, and its length (RFC 1951 section
/// 3.2.6).
const FIXED: [(u16, u8); 288] = {
    let mut table = [(0, 0); 288];
    let mut symbol = 0;
    while symbol < 288 {
        let (code, len) = match symbol {
            0..144 => (0x30 + symbol, 8),
            144..256 => (0x190 + symbol - 144, 9),
            256..280 => (symbol - 256, 7),
            _ => (0xc0 + symbol - 280, 8),
        };
        table[symbol as usize] = ((code as u16).reverse_bits() >> (16 - len), len as u8);
        symbol += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    use flate2::{Decompress, FlushDecompress};
    use proptest::prelude::*;

    /// Inflates with zlib-rs, block by block.
    struct Inflater(Decompress);

    impl Inflater {
        fn read(&mut self, bytes: &[u8]) -> Vec<u8> {
            let mut out = Vec::with_capacity(1 << 20);
            let before = self.0.total_in();
            let mut result = self
                .0
                .decompress_vec(bytes, &mut out, FlushDecompress::Sync);
            if result
                .as_ref()
                .is_err_and(|error| error.needs_dictionary() == Some(DICTIONARY_ID))
            {
                self.0
                    .set_dictionary(DICTIONARY)
                    .expect("the right dictionary");
                let used = (self.0.total_in() - before) as usize;
                result = self
                    .0
                    .decompress_vec(&bytes[used..], &mut out, FlushDecompress::Sync);
            }
            result.expect("a valid stream");
            assert_eq!(self.0.total_in() - before, bytes.len() as u64);
            out
        }
    }

    fn compress_all(blocks: &[(Vec<u8>, Vec<Range<usize>>)]) {
        let mut deflate = Deflate::new();
        let mut inflater = Inflater(Decompress::new(true));
        for (index, (block, secrets)) in blocks.iter().enumerate() {
            let mut wire = Vec::new();
            if index == 0 {
                write_zlib_head(&mut wire);
            }
            if index % 4 == 3 {
                deflate = Deflate::resume(deflate.release());
            }
            deflate.write(block, secrets, &mut wire);
            assert!(wire.ends_with(&[0, 0, 0xff, 0xff]));
            assert_eq!(&inflater.read(&wire), block);
        }
    }

    #[test]
    fn every_length_and_many_distances() {
        let mut blocks = Vec::new();
        for len in 3..600 {
            let word: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            blocks.push(([&word[..], &word, &vec![b'z'; len]].concat(), Vec::new()));
        }
        compress_all(&blocks);
    }

    #[test]
    fn blocks_longer_than_the_window() {
        let long: Vec<u8> = (0..5 * WINDOW as u32)
            .flat_map(|i| (i / 3).to_be_bytes())
            .collect();
        compress_all(&[
            (
                long.clone(),
                vec![100..2 * WINDOW, 3 * WINDOW..3 * WINDOW + 9],
            ),
            (long, Vec::new()),
        ]);
    }

    #[test]
    fn a_secret_costs_the_same_beside_its_guess() {
        let guess = b"correct horse battery staple";
        let size = |secret: &[u8], hidden: bool| {
            let block = [&guess[..], b"\0\0", secret, b"\0\0", guess].concat();
            let start = guess.len() + 2;
            let secrets = Vec::from_iter(hidden.then_some(start..start + secret.len()));
            let mut wire = Vec::new();
            Deflate::new().write(&block, &secrets, &mut wire);
            wire.len()
        };
        let other = b"qwzjxkv pbmfy kzxwgrq jtuznv";
        assert_eq!(size(guess, true), size(other, true));
        assert!(size(guess, false) + 15 < size(other, false));
    }

    #[test]
    fn resumed_context_matches_text_but_no_secret() {
        let guess = b"correct horse battery staple";
        let block = [&guess[..], b"\0\0", b"an ordinary header value"].concat();
        let size = |text: &[u8]| {
            let mut deflate = Deflate::new();
            let secret = 0..guess.len();
            deflate.write(&block, std::slice::from_ref(&secret), &mut Vec::new());
            let mut deflate = Deflate::resume(deflate.release());
            let mut wire = Vec::new();
            deflate.write(text, &[], &mut wire);
            wire.len()
        };
        assert_eq!(size(guess), size(b"qwzjxkv pbmfy kzxwgrq jtuznv"));
        assert!(size(b"an ordinary header value") + 12 < size(guess));
    }

    proptest! {
        #[test]
        fn inflates_to_what_went_in(
            blocks in prop::collection::vec((prop::collection::vec(0u8..6, 0..2000), 0usize..2000, 0usize..300), 1..40)
        ) {
            let blocks: Vec<_> = blocks
                .into_iter()
                .map(|(block, start, len)| {
                    let start = start.min(block.len());
                    let end = (start + len).min(block.len());
                    (block, std::iter::once(start..end).collect())
                })
                .collect();
            compress_all(&blocks);
        }
    }
}
