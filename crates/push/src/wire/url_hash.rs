//! The hash by which both halves name a URL.

use tandem_http::RequestHead;
use tandem_preload::split;

/// Returns the hash of a request's URL. Two URLs may share a hash. A report then counts for the
/// wrong push, which may be raised, cancelled or left out. The content of a response is never
/// affected.
pub fn url_hash(request: &RequestHead) -> u32 {
    hash_parts(request.scheme.as_str(), &request.authority, &request.path)
}

/// Returns the hash of a normalised URL; `None` for other text.
pub fn url_hash_of(url: &str) -> Option<u32> {
    let (scheme, authority, path) = split(url)?;
    Some(hash_parts(scheme, authority, path))
}

fn hash_parts(scheme: &str, authority: &str, path: &str) -> u32 {
    let authority = authority.bytes().map(|byte| byte.to_ascii_lowercase());
    fnv1a(scheme.bytes().chain(authority).chain(path.bytes()))
}

/// Computes the FNV-1a hash with 32 bits. Both proxies must agree on it, so it is part of the wire
/// format.
pub(crate) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    #[test]
    fn fnv1a_has_published_values() {
        assert_eq!(fnv1a(b"".iter().copied()), 0x811c_9dc5);
        assert_eq!(fnv1a(b"a".iter().copied()), 0xe40c_292c);
        assert_eq!(fnv1a(b"foobar".iter().copied()), 0xbf9c_f968);
    }

    #[test]
    fn url_hash_ignores_case_of_the_host_only() {
        let hash = |scheme, authority: &str, path: &str| {
            url_hash(&RequestHead::get(scheme, authority, path))
        };
        let plain = hash(Scheme::Http, "h:8080", "/a?b");
        assert_eq!(plain, hash(Scheme::Http, "H:8080", "/a?b"));
        assert_eq!(plain, fnv1a(b"httph:8080/a?b".iter().copied()));
        assert_eq!(url_hash_of("http://h:8080/a?b"), Some(plain));
        assert_eq!(url_hash_of("mailto:a"), None);
        for other in [
            hash(Scheme::Https, "h:8080", "/a?b"),
            hash(Scheme::Http, "h", "/a?b"),
            hash(Scheme::Http, "h:8080", "/A?b"),
        ] {
            assert_ne!(plain, other);
        }
    }
}
