//! Bodies that origins sent with gzip (RFC 1952): the gateway decodes them, so that they cross the
//! path as zstd, and the browser gets them without a content coding.
//!
//! The gateway is a transforming proxy here (RFC 9110 section 7.7). The text stays as it is, but
//! the bytes of its representation change. The head therefore changes too: a strong `ETag` becomes
//! a weak one, and the length and the offer of ranges disappear. A response keeps its coding if
//! either side forbids a transformation, or if a field depends on the coded bytes.
//!
//! [`Gunzip`] decodes in pieces of bounded size, so a body that expands a thousandfold takes no
//! more memory than another.

use bytes::{Buf, Bytes};
use flate2::{Decompress, FlushDecompress, Status};
use tandem_http::{Fields, RequestHead, ResponseHead};

use crate::CodingError;

/// The largest piece that a step returns, in bytes.
const MAX_PIECE: usize = 32 << 10;

/// The window of gzip, as a power of two in bytes.
const WINDOW_BITS: u8 = 15;

/// The first bytes of each member of a gzip file, with DEFLATE as its method (RFC 1952 section 2.3).
const MAGIC: [u8; 3] = [0x1f, 0x8b, 0x08];

/// The fields of a response whose values depend on the coded bytes (RFC 9530, RFC 9421, RFC 3230,
/// RFC 1864).
const BOUND_TO_BYTES: [&str; 6] = [
    "content-digest",
    "repr-digest",
    "digest",
    "content-md5",
    "signature",
    "signature-input",
];

/// Returns whether a body has gzip as its only content coding.
pub fn is_gzip(fields: &Fields) -> bool {
    let mut codings = fields.get_all("content-encoding");
    let is_gzip = |coding: &[u8]| {
        [&b"gzip"[..], b"x-gzip"]
            .iter()
            .any(|name| coding.eq_ignore_ascii_case(name))
    };
    codings.next().is_some_and(is_gzip) && codings.next().is_none()
}

/// Returns whether the two sides permit a transformation of the response's body.
pub fn is_permitted(request: &RequestHead, head: &ResponseHead) -> bool {
    let forbids = |fields: &Fields| fields.has_token("cache-control", "no-transform");
    !forbids(&request.fields)
        && !forbids(&head.fields)
        && !BOUND_TO_BYTES.iter().any(|name| head.fields.contains(name))
        && !request.fields.contains("range")
        && accepts_both(&request.fields)
}

/// Returns whether a request names gzip, so that its sender decodes it, and accepts a body without
/// a content coding too (RFC 9110 section 12.5.3).
fn accepts_both(fields: &Fields) -> bool {
    let (gzip, identity, any) = (
        accepts(fields, "gzip"),
        accepts(fields, "identity"),
        accepts(fields, "*"),
    );
    gzip == Some(true) && identity.or(any) != Some(false)
}

/// Returns whether a request accepts a content coding, or `None` if it does not name it.
fn accepts(fields: &Fields, name: &str) -> Option<bool> {
    let values = fields.get_all("accept-encoding");
    let mut items = values.flat_map(|value| value.split(|&byte| byte == b','));
    items.find_map(|item| {
        let end = item.iter().position(|&byte| byte == b';');
        let (named, weight) = item.split_at(end.unwrap_or(item.len()));
        let is_named = named.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
        is_named
            .then(|| weight.is_empty() || weight.iter().any(|byte| (b'1'..=b'9').contains(byte)))
    })
}

/// Changes the head of a response with gzip to that of its decoded body.
pub fn transform(head: &mut ResponseHead) {
    for name in ["content-encoding", "content-length", "accept-ranges"] {
        head.fields.remove(name);
    }
    weaken(&mut head.fields);
}

/// Changes the head of a 304 response in the same way, if it confirms the weak tag of a transformed
/// response. An origin compares tags weakly there (RFC 9110 section 13.1.2), and responds with the
/// strong tag of its own coding.
pub fn transform_not_modified(request: &RequestHead, head: &mut ResponseHead) {
    let Some(tag) = head.fields.get("etag") else {
        return;
    };
    let weak = [&b"W/"[..], tag].concat();
    let mut asked = request.fields.get_all("if-none-match");
    let is_asked = asked.any(|value| {
        let mut tags = value.split(|&byte| byte == b',');
        tags.any(|tag| tag.trim_ascii() == weak)
    });
    if is_asked && !tag.starts_with(b"W/") {
        head.fields.remove("content-encoding");
        weaken(&mut head.fields);
    }
}

/// Removes the trailer fields whose values depend on the coded bytes.
pub fn transform_trailers(fields: &mut Fields) {
    for name in BOUND_TO_BYTES {
        fields.remove(name);
    }
}

/// Makes a strong `ETag` weak: the decoded body is another representation, byte for byte.
fn weaken(fields: &mut Fields) {
    let weak = match fields.get("etag") {
        Some(tag) if !tag.starts_with(b"W/") => [&b"W/"[..], tag].concat(),
        _ => return,
    };
    fields.set("etag", weak);
}

/// Decodes one body, which is a series of members (RFC 1952 section 2.2).
pub struct Gunzip {
    inner: Decompress,
    input: Bytes,
    space: Vec<u8>,
    /// True if decoded data may be left that did not fit into the last piece.
    has_more: bool,
    position: Position,
}

/// The position in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// No byte has been read.
    Start,
    /// Within a member.
    Member,
    /// Behind a member, and behind this many bytes of another one's [`MAGIC`].
    Behind(usize),
    /// Behind the last member.
    End,
}

impl Gunzip {
    /// The memory in bytes that a decoder takes at most: its state and window, and a piece.
    pub const MEMORY: usize = (64 << 10) + MAX_PIECE;

    /// Creates a decoder.
    pub fn new() -> Self {
        Self {
            inner: Decompress::new_gzip(WINDOW_BITS),
            input: Bytes::new(),
            space: Vec::new(),
            has_more: false,
            position: Position::Start,
        }
    }

    /// Adds a piece of the body. All of the previous one must have been decoded. Data behind the
    /// last member that begin no other one are ignored, as by other decoders.
    pub fn write(&mut self, data: Bytes) {
        debug_assert!(self.input.is_empty(), "the previous piece is decoded");
        self.input = data;
    }

    /// Returns the next piece of the decoded body, or `None` if that needs more data.
    ///
    /// # Errors
    /// Fails if the data are malformed or have a wrong checksum.
    pub fn read(&mut self) -> Result<Option<&[u8]>, CodingError> {
        while self.has_more || !self.input.is_empty() {
            match self.position {
                Position::Start | Position::Member => {}
                Position::Behind(matched) => {
                    self.look_for_member(matched)?;
                    continue;
                }
                Position::End => {
                    self.input.clear();
                    continue;
                }
            }
            self.space.resize(MAX_PIECE, 0);
            let before = (self.inner.total_in(), self.inner.total_out());
            let status = self
                .inner
                .decompress(&self.input, &mut self.space, FlushDecompress::None)
                .map_err(malformed)?;
            let read = usize::try_from(self.inner.total_in() - before.0).unwrap_or(usize::MAX);
            let written = usize::try_from(self.inner.total_out() - before.1).unwrap_or(usize::MAX);
            self.input.advance(read.min(self.input.len()));
            let has_ended = status == Status::StreamEnd;
            self.position = if has_ended {
                Position::Behind(0)
            } else {
                Position::Member
            };
            self.has_more = !has_ended && written >= MAX_PIECE;
            if written > 0 {
                return Ok(self.space.get(..written));
            }
            if read == 0 && !has_ended {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Compares the next byte behind a member with that of [`MAGIC`], and begins another member
    /// behind the last one.
    fn look_for_member(&mut self, matched: usize) -> Result<(), CodingError> {
        if self.input.first() != MAGIC.get(matched) {
            self.position = Position::End;
            return Ok(());
        }
        self.input.advance(1);
        self.position = Position::Behind(matched + 1);
        if matched + 1 == MAGIC.len() {
            self.inner = Decompress::new_gzip(WINDOW_BITS);
            self.inner
                .decompress(&MAGIC, &mut [], FlushDecompress::None)
                .map_err(malformed)?;
            self.position = Position::Member;
        }
        Ok(())
    }

    /// Checks that the body is complete. An empty body is, since some origins name gzip there.
    ///
    /// # Errors
    /// Fails if the body ends within a member.
    pub fn finish(&self) -> Result<(), CodingError> {
        match self.position {
            Position::Start | Position::Behind(_) | Position::End => Ok(()),
            Position::Member => Err(CodingError::Truncated),
        }
    }
}

impl Default for Gunzip {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Gunzip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gunzip")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

fn malformed(error: flate2::DecompressError) -> CodingError {
    CodingError::Malformed(error.to_string())
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;
    use crate::wire::tests::head;

    #[test]
    fn transformed_head_describes_the_decoded_body() {
        let mut coded = head(&[
            ("content-type", "text/html"),
            ("content-encoding", "gzip"),
            ("content-length", "700"),
            ("accept-ranges", "bytes"),
            ("etag", "\"a\""),
            ("vary", "Accept-Encoding"),
            ("cache-control", "max-age=60"),
        ]);
        transform(&mut coded);
        let expected = head(&[
            ("content-type", "text/html"),
            ("vary", "Accept-Encoding"),
            ("cache-control", "max-age=60"),
            ("etag", "W/\"a\""),
        ]);
        let fields = |head: &ResponseHead| {
            let mut all: Vec<_> = head
                .fields
                .iter()
                .map(|it| (it.name.to_vec(), it.value.to_vec()))
                .collect();
            all.sort();
            all
        };
        assert_eq!(fields(&coded), fields(&expected));
        transform(&mut coded);
        assert_eq!(fields(&coded), fields(&expected), "a weak tag stays");
    }

    #[test]
    fn not_modified_confirms_the_tag_of_the_request() {
        let mut request = RequestHead::get(Scheme::Http, "own.example", "/");
        for (asked, tag, expected) in [
            ("W/\"a\"", "\"a\"", "W/\"a\""),
            ("\"b\", W/\"a\"", "\"a\"", "W/\"a\""),
            ("\"a\"", "\"a\"", "\"a\""),
            ("W/\"b\"", "\"a\"", "\"a\""),
            ("W/\"a\"", "W/\"a\"", "W/\"a\""),
        ] {
            request.fields.set("if-none-match", asked);
            let mut answer = head(&[("etag", tag)]);
            transform_not_modified(&request, &mut answer);
            assert_eq!(
                answer.fields.get("etag"),
                Some(expected.as_bytes()),
                "{asked}"
            );
        }
    }

    #[test]
    fn trailers_lose_digests_of_coded_bytes() {
        let fields = [("x-sum", "1"), ("content-digest", "sha-256=:AAAA:")];
        let mut trailers: Fields = fields.into_iter().collect();
        transform_trailers(&mut trailers);
        assert_eq!(trailers, [("x-sum", "1")].into_iter().collect());
    }
}
