//! The key of a stored response, and the requests that have one.
//!
//! The key covers every part of a request that may change the origin's choice of a resource (RFC
//! 9111 section 7.1). Frameworks read some fields in place of the URL or the method, and most of
//! them begin with `X-`. The key therefore covers all fields with such a name, and a list of
//! others. A request with a body, with a head of unusual size or with capital letters in its host
//! has no key: an origin may answer it otherwise than the plain request.

use std::sync::Arc;

use tandem_http::{Method, RequestHead};

/// The users that a stored response may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The user for which the response was fetched.
    Private,
    /// The users of a client. The responses of each isolation key are separate.
    Client,
    /// All users. The responses of each first-party site are separate.
    Shared,
    /// All users of the one origin that a reverse gateway serves.
    Origin,
}

impl Sharing {
    /// Returns true if a response serves only the user for which it was fetched.
    pub const fn is_private(self) -> bool {
        matches!(self, Self::Private | Self::Client)
    }
}

/// The fields without `X-` that some frameworks read in place of the URL, the method or the
/// client's address.
const OVERRIDES: [&str; 19] = [
    "base-url",
    "cf-connecting-ip",
    "cf-visitor",
    "client-ip",
    "cloudfront-forwarded-proto",
    "destination",
    "fastly-client-ip",
    "forwarded",
    "front-end-https",
    "host-override",
    "http-host",
    "method-override",
    "proxy-host",
    "real-ip",
    "request-uri",
    "translate",
    "true-client-ip",
    "uri",
    "url",
];

/// The bytes of a request's target and fields above which the request has no key. Browsers send
/// less than a quarter of it, apart from cookies.
const MAX_HEAD: usize = 8 << 10;

/// The key of a stored response: who may use it, and the target of its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    text: Arc<[u8]>,
    /// The positions of the origin and of the path behind it.
    origin: usize,
    path: usize,
    /// The length of the part without the fields that override the target.
    base: usize,
}

/// Adds a part of a key. A length before each part keeps different lists of parts different.
fn add(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(&(part.len() as u64).to_be_bytes());
    text.extend_from_slice(part);
}

/// Returns the part of a key that names the origin of a request.
pub(crate) fn origin_of(request: &RequestHead) -> Vec<u8> {
    let mut text = Vec::with_capacity(32 + request.authority.len());
    add(&mut text, request.scheme.as_str().as_bytes());
    add(&mut text, request.authority.to_ascii_lowercase().as_bytes());
    text
}

impl Key {
    /// Returns whether the response belongs to one user.
    pub(crate) fn has_owner(&self) -> bool {
        self.text
            .iter()
            .take(size_of::<u64>())
            .any(|byte| *byte != 0)
    }

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
        // Browsers write hosts in lower case. Some origins have no other spelling, and answer with
        // an error.
        if reads && request.authority.bytes().any(|it| it.is_ascii_uppercase()) {
            return None;
        }
        let target = request.authority.len() + request.path.len();
        let cookies: usize = request.fields.get_all("cookie").map(<[u8]>::len).sum();
        let head = target + request.fields.text_len() - cookies;
        if target > MAX_HEAD || (reads && head > MAX_HEAD) {
            return None;
        }
        let size = 64 + partition.len() + request.authority.len() + request.path.len();
        let mut text = Vec::with_capacity(size);
        text.extend_from_slice(&owner.to_be_bytes());
        add(&mut text, partition);
        let origin = text.len();
        text.extend_from_slice(&origin_of(request));
        let path = text.len();
        add(&mut text, request.path.as_bytes());
        let base = text.len();
        for field in request
            .fields
            .iter()
            .filter(|field| is_override(field.name))
        {
            add(&mut text, field.name);
            add(&mut text, field.value);
        }
        Some(Self {
            text: text.into(),
            origin,
            path,
            base,
        })
    }

    /// The size of the key in bytes.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// The bytes of the key.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text
    }

    /// The bytes of the key without the fields that override the target. An unsafe request
    /// invalidates all keys that begin with them.
    pub(crate) fn base(&self) -> &[u8] {
        &self.text[..self.base]
    }

    /// The owner and the origin, which all partitions of the owner share.
    pub(crate) fn origin(&self) -> (u64, &[u8]) {
        let owner = self
            .text
            .first_chunk()
            .map_or(0, |owner| u64::from_be_bytes(*owner));
        (owner, &self.text[self.origin..self.path])
    }

    /// Returns the key of the same target without overrides.
    pub(crate) fn plain(&self) -> Self {
        Self {
            text: self.base().into(),
            ..*self
        }
    }

    /// Returns true if the request has fields that override its target.
    pub(crate) fn has_overrides(&self) -> bool {
        self.base < self.text.len()
    }
}

/// Returns true if an origin may read the field `name` in place of the target.
fn is_override(name: &[u8]) -> bool {
    // Some origins do not tell `_` from `-` in names.
    let dashed = |name: &[u8]| -> Vec<u8> {
        let dash = |&byte: &u8| if byte == b'_' { b'-' } else { byte };
        name.iter().map(dash).collect()
    };
    let is_listed = |name: &[u8]| OVERRIDES.iter().any(|listed| listed.as_bytes() == name);
    matches!(name, [b'x', b'-' | b'_', ..])
        || is_listed(name)
        || (name.contains(&b'_') && is_listed(&dashed(name)))
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(path: &str, fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "site.example", path)
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
        for name in [
            "x-forwarded-host",
            "x-original-url",
            "x-http-method-override",
            "x-wap-profile",
            "x-invented-by-a-framework",
            "x_forwarded_host",
            "client_ip",
        ] {
            assert_ne!(key("/", &[(name, "evil.example")]), plain, "{name}");
        }
        assert_eq!(key("/", &[("accept", "text/html")]), plain);
    }

    #[test]
    fn unusual_requests_have_no_key() {
        let get = request("/", &[]);
        assert!(Key::new(0, b"", &get, true).is_none(), "a GET with a body");
        let long = "x".repeat(MAX_HEAD);
        assert!(key("/", &[("x-long", &long)]).is_none());
        assert!(key("/", &[("cookie", &long)]).is_some());
        let long = format!("/{long}");
        assert!(key(&long, &[]).is_none());
        let post = RequestHead {
            method: Method::Post,
            ..request(&long, &[])
        };
        assert!(Key::new(0, b"", &post, false).is_none());
        let capital = RequestHead {
            authority: "Site.example".into(),
            ..get.clone()
        };
        assert!(Key::new(0, b"", &capital, false).is_none());
        let post = RequestHead {
            method: Method::Post,
            ..capital
        };
        assert_eq!(Key::new(0, b"", &post, false), key("/", &[]));
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
