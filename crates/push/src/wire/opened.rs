//! The list of hosts whose HTTPS the client opens and lets this gateway fetch.
//!
//! The client sends the list with each request for such a host, and a header table of HTTP/2 makes
//! the repetitions short. The gateway pushes no HTTPS of other hosts, since the browser requests
//! those through tunnels that nobody opens. A response from the origin carries the field too, so
//! that the client can distinguish it from a page of the gateway.

/// The name of the field in requests and responses.
pub const OPENED_FIELD: &str = "tandem-opened";

/// The largest number of bytes of a list.
pub const MAX_OPENED_LIST: usize = 2048;

/// A list of host patterns: `NAME` or `*.SUFFIX`, separated by spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenedList(Box<str>);

impl OpenedList {
    /// Reads the value of the field. A value that is too long or not ASCII covers no host.
    pub fn parse(value: &[u8]) -> Self {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let is_valid = text.len() <= MAX_OPENED_LIST && text.is_ascii();
        Self(if is_valid { text } else { "" }.into())
    }

    /// Returns whether this is the list of a field's value.
    pub fn is_of(&self, value: &[u8]) -> bool {
        self.0.as_bytes() == value
    }

    /// Returns whether a pattern covers the host of an authority, which is in lower case.
    pub fn covers(&self, authority: &str) -> bool {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        let mut patterns = self.0.split_ascii_whitespace();
        !host.is_empty()
            && patterns.any(|pattern| match pattern.strip_prefix("*.") {
                None => pattern == host,
                Some(suffix) => host
                    .strip_suffix(suffix)
                    .and_then(|rest| rest.strip_suffix('.'))
                    .is_some_and(|rest| !suffix.is_empty() && !rest.is_empty()),
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn list_covers_names_and_suffixes() {
        let list = OpenedList::parse(b"a.test *.b.test");
        for host in ["a.test", "a.test:8443", "x.b.test", "x.y.b.test:1"] {
            assert!(list.covers(host), "{host}");
        }
        for host in [
            "",
            ":1",
            "x.a.test",
            "b.test",
            ".b.test",
            "xb.test",
            "*.b.test.",
            "a.test.",
            "*",
        ] {
            assert!(!list.covers(host), "{host}");
        }
        assert!(list.is_of(b"a.test *.b.test") && !list.is_of(b"a.test"));
    }

    #[test]
    fn bad_list_covers_no_host() {
        let long = format!("a.test {}", "x".repeat(MAX_OPENED_LIST));
        for value in [&b""[..], b"*", b"*.", b"\xff a.test", long.as_bytes()] {
            assert!(!OpenedList::parse(value).covers("a.test"));
        }
    }

    proptest! {
        #[test]
        fn list_of_any_bytes_covers_at_most_its_names(
            value in proptest::collection::vec(any::<u8>(), 0..200),
            host in "[a-z*.:0-9]{0,20}",
        ) {
            let list = OpenedList::parse(&value);
            if list.covers(&host) {
                let text = String::from_utf8(value).unwrap();
                let name = host.split(':').next().unwrap_or_default();
                let is_named = (0..name.len()).any(|start| text.contains(&name[start..]));
                prop_assert!(is_named);
            }
        }
    }
}
