//! The key of a stored response, and the requests that have one.
//!
//! The key covers every part of a request that may change the origin's choice of a resource (RFC
//! 9111 section 7.1). Frameworks read some fields in place of the URL or the method, so the values
//! of these fields belong to the key. A request with a body, or with a head of unusual size, has no
//! key: an origin may answer it otherwise than the plain request.

use std::sync::Arc;

use tandem_http::{Method, RequestHead};

/// The users that a stored response may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The user for which the response was fetched.
    Private,
    /// All users. The responses of each first-party site are separate.
    Shared,
    /// All users of the one origin that a reverse gateway serves.
    Origin,
}

/// The fields that some frameworks read in place of the URL, the method or the client's address.
const OVERRIDES: [&str; 17] = [
    "client-ip",
    "forwarded",
    "true-client-ip",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
];

/// The bytes of a request's fields above which the request has no key. Browsers send less than a
/// quarter of it, apart from cookies.
const MAX_HEAD: usize = 8 << 10;

/// The key of a stored response: who may use it, and the target of its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Returns the key of `request`. `owner` is the number of the user to which the response
    /// belongs, or 0; `partition` separates the sites and isolation keys of that user.
    ///
    /// Returns `None` for a request that no stored response may serve. An unsafe method has the key
    /// of a GET request, which it invalidates.
    pub fn new(
        owner: u64,
        partition: &[u8],
        request: &RequestHead,
        has_body: bool,
    ) -> Option<Self> {
        let reads = matches!(request.method, Method::Get | Method::Head);
        if request.protocol.is_some() || !request.path.starts_with('/') || (reads && has_body) {
            return None;
        }
        let cookies: usize = request.fields.get_all("cookie").map(<[u8]>::len).sum();
        if reads && request.fields.text_len() - cookies > MAX_HEAD {
            return None;
        }
        let mut text = Vec::with_capacity(64 + request.authority.len() + request.path.len());
        text.extend_from_slice(&owner.to_be_bytes());
        let mut add = |part: &[u8]| {
            // A length before each part keeps different lists of parts different.
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part);
        };
        add(partition);
        add(request.scheme.as_str().as_bytes());
        add(request.authority.to_ascii_lowercase().as_bytes());
        add(request.path.as_bytes());
        for field in request.fields.iter() {
            let name = std::str::from_utf8(field.name).unwrap_or_default();
            // Some origins do not tell `_` from `-` in names.
            let is_override = OVERRIDES.contains(&name)
                || (name.contains('_') && OVERRIDES.contains(&&*name.replace('_', "-")));
            if is_override {
                add(field.name);
                add(field.value);
            }
        }
        Some(Self(text.into()))
    }

    /// The size of the key in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of the key.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(path: &str, fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "Site.example", path)
        }
    }

    fn key(path: &str, fields: &[(&str, &str)]) -> Option<Key> {
        Key::new(0, b"", &request(path, fields), false)
    }

    #[test]
    fn key_keeps_paths_as_they_are_written() {
        let plain = key("/a/b", &[]);
        assert!(plain.is_some());
        for other in [
            "/a//b",
            "/a/./b",
            "/a/c/../b",
            "/a/%62",
            "/a/b?",
            "/a/b;x",
            "/A/b",
            "/a/b/",
            "/a\\b",
        ] {
            assert_ne!(key(other, &[]), plain, "{other}");
        }
        assert_eq!(key("*", &[]), None);
    }

    #[test]
    fn key_covers_overrides_of_the_target() {
        let plain = key("/", &[]);
        for name in OVERRIDES {
            assert_ne!(key("/", &[(name, "evil.example")]), plain, "{name}");
            let one = key("/", &[(name, "a")]);
            assert_ne!(one, key("/", &[(name, "b")]), "{name}");
        }
        assert_ne!(key("/", &[("x_forwarded_host", "evil.example")]), plain);
        assert_eq!(key("/", &[("accept", "text/html")]), plain);
    }

    #[test]
    fn unusual_requests_have_no_key() {
        let get = request("/", &[]);
        assert!(Key::new(0, b"", &get, true).is_none(), "a GET with a body");
        let long = "x".repeat(MAX_HEAD);
        assert!(key("/", &[("x-long", &long)]).is_none());
        assert!(key("/", &[("cookie", &long)]).is_some());
        let upgrade = RequestHead {
            protocol: Some("websocket".into()),
            ..get
        };
        assert!(Key::new(0, b"", &upgrade, false).is_none());
    }

    #[test]
    fn unsafe_method_has_the_key_of_its_target() {
        let post = RequestHead {
            method: Method::Post,
            ..request("/", &[])
        };
        assert_eq!(Key::new(0, b"", &post, true), key("/", &[]));
    }

    #[test]
    fn partitions_and_owners_are_separate() {
        let get = request("/", &[]);
        let all = [
            Key::new(0, b"", &get, false),
            Key::new(1, b"", &get, false),
            Key::new(0, b"a", &get, false),
            Key::new(0, b"b", &get, false),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one));
        }
    }
}
