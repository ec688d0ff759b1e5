//! Bodies that origins sent with gzip (RFC 1952): the gateway decodes them, so that they cross the
//! path as zstd, and the browser gets them without a content coding.
//!
//! The gateway is a transforming proxy here (RFC 9110 section 7.7). The text stays as it is, but
//! the bytes of its representation change. The head therefore changes too: a strong `ETag` becomes
//! a weak one, and the length and the offer of ranges disappear. A response keeps its coding if
//! either side forbids a transformation, or if a field depends on the coded bytes.
//!
//! [`Gunzip`](crate::Gunzip) decodes the bodies.

use tandem_http::cache::validation;
use tandem_http::{Fields, RequestHead, ResponseHead};

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
        && !BOUND_TO_BYTES
            .iter()
            .any(|name| head.fields.contains(name) || head.fields.has_token("trailer", name))
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
    if validation::confirm_weak_tag(&request.fields, &mut head.fields) {
        head.fields.remove("content-encoding");
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
        for (asked, coding, expected) in [
            ("W/\"a\"", None, "W/\"a\""),
            ("\"a\"", Some("gzip"), "\"a\""),
        ] {
            request.fields.set("if-none-match", asked);
            let mut answer = head(&[("etag", "\"a\""), ("content-encoding", "gzip")]);
            transform_not_modified(&request, &mut answer);
            let found = |name: &str| answer.fields.get(name);
            assert_eq!(found("etag"), Some(expected.as_bytes()), "{asked}");
            assert_eq!(
                found("content-encoding"),
                coding.map(str::as_bytes),
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

    #[test]
    fn announced_digest_forbids_a_transformation() {
        let mut request = RequestHead::get(Scheme::Http, "own.example", "/");
        request.fields.set("accept-encoding", "gzip");
        for (trailer, expected) in [("x-sum", true), ("x-sum, Content-Digest", false)] {
            let head = head(&[("content-encoding", "gzip"), ("trailer", trailer)]);
            assert_eq!(is_permitted(&request, &head), expected, "{trailer}");
        }
    }
}
