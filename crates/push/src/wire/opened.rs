//! The list of hosts for which the client opens HTTPS and lets this gateway fetch it.
//!
//! The client sends the list with each request for such a host, and a header table of HTTP/2 makes
//! the repetitions short. The gateway pushes no HTTPS of other hosts, since the browser requests
//! those through tunnels that stay encrypted. A response from the origin carries the field too, so
//! that the client can distinguish it from a page of the gateway.

/// The name of the field in requests and responses.
pub const OPENED_FIELD: &str = "tandem-opened";

/// The largest number of bytes of a list.
pub const MAX_OPENED_LIST: usize = 2048;

/// A list of host patterns, separated by spaces: `NAME` or `*.SUFFIX`.
///
/// A pattern after `!` excludes hosts. The most specific pattern decides, and an exclusion precedes
/// an equal pattern. `:PORT` adds a port; a list without ports covers port 443.
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

    /// Returns whether the list covers an authority of HTTPS. Its host is in lower case.
    pub fn covers(&self, authority: &str) -> bool {
        let Some((host, port)) = split(authority) else {
            return false;
        };
        // The place of the pattern that decides so far, and true if it covers hosts.
        let mut decided: Option<(usize, bool)> = None;
        let (mut has_ports, mut has_port) = (false, false);
        for token in self.0.split_ascii_whitespace() {
            if let Some(listed) = token.strip_prefix(':') {
                has_ports = true;
                has_port |= listed.parse() == Ok(port);
                continue;
            }
            let (pattern, is_covering) = match token.strip_prefix('!') {
                Some(pattern) => (pattern, false),
                None => (token, true),
            };
            let Some(place) = place(pattern, host) else {
                continue;
            };
            if decided.is_none_or(|(best, _)| place > best || (place == best && !is_covering)) {
                decided = Some((place, is_covering));
            }
        }
        let is_port = has_port || (!has_ports && port == HTTPS);
        is_port && decided.is_some_and(|(_, is_covering)| is_covering)
    }
}

/// The port of HTTPS.
const HTTPS: u16 = 443;

/// Returns the host and the port of an authority; `None` without a host or with a bad port.
fn split(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, "")) => (host, HTTPS),
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, port.parse().ok()?)
        }
        _ => (authority, HTTPS),
    };
    (!host.is_empty()).then_some((host, port))
}

/// Returns the place of a pattern that covers a host, in the order from general to specific.
fn place(pattern: &str, host: &str) -> Option<usize> {
    let Some(suffix) = pattern.strip_prefix("*.") else {
        return (pattern == host).then_some(usize::MAX);
    };
    let rest = host.strip_suffix(suffix)?.strip_suffix('.')?;
    (!suffix.is_empty() && !rest.is_empty()).then_some(suffix.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn list_covers_names_and_suffixes() {
        let list = OpenedList::parse(b"a.test *.b.test");
        for host in ["a.test", "a.test:443", "x.b.test", "x.y.b.test:443"] {
            assert!(list.covers(host), "{host}");
        }
        for host in [
            "",
            ":443",
            "a.test:8443",
            "a.test:65536",
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
    fn most_specific_pattern_of_a_list_decides() {
        let text = "*.a.test !mail.a.test !*.b.a.test x.b.a.test c.test !c.test !d.test d.test";
        let list = OpenedList::parse(text.as_bytes());
        for host in ["www.a.test", "x.b.a.test", "b.a.test"] {
            assert!(list.covers(host), "{host}");
        }
        for host in ["mail.a.test", "y.b.a.test", "c.test", "d.test"] {
            assert!(!list.covers(host), "{host}");
        }
    }

    #[test]
    fn ports_of_a_list_replace_the_default() {
        let list = OpenedList::parse(b":8443 a.test :443");
        assert!(list.covers("a.test") && list.covers("a.test:8443"));
        assert!(!list.covers("a.test:8444") && !list.covers("b.test:8443"));
        let list = OpenedList::parse(b"a.test :8443 :x");
        assert!(list.covers("a.test:8443") && !list.covers("a.test"));
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
