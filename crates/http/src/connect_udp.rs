//! CONNECT-UDP (RFC 9298): the request for a tunnel of UDP datagrams, and the capsules that carry
//! them ([`CapsuleReader`], [`put_datagram`]).
//!
//! ```text
//!  :method = CONNECT   :protocol = connect-udp   :path = /.well-known/masque/udp/HOST/PORT/
//!  body, both ways: DATAGRAM capsules (RFC 9297), each with context ID 0 and one UDP payload
//! ```

mod capsule;

pub use capsule::{CapsuleReader, MAX_PAYLOAD, MalformedCapsule, put_datagram};

use std::net::Ipv6Addr;

use crate::Fields;
use crate::h1::Authority;
use crate::message::{Method, RequestHead, Scheme};

/// The `:protocol` of the request (RFC 9298 section 3.4).
pub const PROTOCOL: &str = "connect-udp";

/// The field that tells that a body consists of capsules (RFC 9297 section 3.4), and its value.
pub const CAPSULE_PROTOCOL: (&str, &str) = ("capsule-protocol", "?1");

/// The beginning of the path in the default template (RFC 9298 section 2).
const PREFIX: &str = "/.well-known/masque/udp/";

/// Returns the request for datagrams to a host and port. An IPv6 address has no brackets.
///
/// The authority names the target, not the gateway. Stages choose the route of a request by it, and
/// the gateway reads the path only.
pub fn request(host: &str, port: u16) -> RequestHead {
    let mut head = RequestHead {
        method: Method::Connect,
        protocol: Some(PROTOCOL.to_owned()),
        ..RequestHead::get(Scheme::Https, "", "")
    };
    set_target(&mut head, host, port);
    let (name, value) = CAPSULE_PROTOCOL;
    head.fields.push(name, value);
    head
}

/// Makes the authority of a program's request name the target in its path, in place of the proxy
/// (RFC 9298 section 3). Also gives the path the form of [`request`], so that both ends read the
/// same target. Returns false if the path names none.
pub fn name_target(head: &mut RequestHead) -> bool {
    let target = target(&head.path);
    if let Some((host, port)) = &target {
        set_target(head, host, *port);
    }
    target.is_some()
}

fn set_target(head: &mut RequestHead, host: &str, port: u16) {
    head.authority = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    head.path = format!("{PREFIX}{}/{port}/", host.replace(':', "%3A"));
}

/// Returns true for a request of this protocol.
pub fn is_request(head: &RequestHead) -> bool {
    let protocol = head.protocol.as_deref();
    head.is_connect() && protocol.is_some_and(|it| it.eq_ignore_ascii_case(PROTOCOL))
}

/// Returns true if the fields of a message tell that its body consists of capsules (RFC 9297
/// section 3.4).
pub fn has_capsules(fields: &Fields) -> bool {
    let (name, value) = CAPSULE_PROTOCOL;
    let found = fields
        .get(name)
        .and_then(|it| it.split(|byte| *byte == b';').next());
    found.is_some_and(|it| it.trim_ascii() == value.as_bytes())
}

/// Returns the host and port that the path of a request names. An IPv6 address has no brackets.
/// Returns `None` for a path of another form, and for a host or port that cannot be.
pub fn target(path: &str) -> Option<(String, u16)> {
    let rest = path.strip_prefix(PREFIX)?;
    let (host, port) = rest.strip_suffix('/').unwrap_or(rest).split_once('/')?;
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = host.replace("%3A", ":").replace("%3a", ":");
    if host.contains(':') {
        let address: Ipv6Addr = host.parse().ok()?;
        return Some((address.to_string(), port));
    }
    let authority = Authority::parse(host.as_bytes())?;
    let is_name = authority.port.is_none() && authority.host == host && !host.starts_with('[');
    is_name.then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_and_target_agree() {
        for (host, port, path) in [
            ("a.test", 53, "/.well-known/masque/udp/a.test/53/"),
            ("192.0.2.1", 443, "/.well-known/masque/udp/192.0.2.1/443/"),
            (
                "2001:db8::1",
                65535,
                "/.well-known/masque/udp/2001%3Adb8%3A%3A1/65535/",
            ),
        ] {
            let head = request(host, port);
            assert!(is_request(&head));
            assert_eq!(head.path, path);
            assert_eq!(target(&head.path), Some((host.to_owned(), port)));
        }
        assert_eq!(request("::1", 1).authority, "[::1]:1");
    }

    #[test]
    fn name_target_replaces_the_authority_of_the_proxy() {
        for (path, authority, named) in [
            ("A.Test/53", "a.test:53", "a.test/53/"),
            ("2001:DB8::1/9/", "[2001:db8::1]:9", "2001%3Adb8%3A%3A1/9/"),
        ] {
            let mut head = request("proxy.test", 443);
            head.path = format!("{PREFIX}{path}");
            assert!(name_target(&mut head), "{path}");
            let named = (authority.to_owned(), format!("{PREFIX}{named}"));
            assert_eq!((head.authority, head.path), named);
        }
        let mut head = request("proxy.test", 443);
        head.path = "/masque?h=a.test&p=53".to_owned();
        assert!(!name_target(&mut head));
        assert_eq!(head.authority, "proxy.test:443");
    }

    #[test]
    fn target_refuses_other_paths() {
        for path in [
            "/",
            "/.well-known/masque/udp/",
            "/.well-known/masque/udp/a.test",
            "/.well-known/masque/udp/a.test/",
            "/.well-known/masque/udp//53/",
            "/.well-known/masque/udp/a.test/0/",
            "/.well-known/masque/udp/a.test/65536/",
            "/.well-known/masque/udp/a.test/+53/",
            "/.well-known/masque/udp/a.test/53/more/",
            "/.well-known/masque/udp/a.test:1/53/",
            "/.well-known/masque/udp/a%2Ftest/53/",
            "/.well-known/masque/udp/user@a.test/53/",
            "/.well-known/masque/udp/[::1]/53/",
            "/.well-known/masque/udp/fe80%3A%3A1%25eth0/53/",
            "/.well-known/masque/ip/a.test/53/",
        ] {
            assert_eq!(target(path), None, "{path}");
        }
        let upper = target("/.well-known/masque/udp/A.Test/53");
        assert_eq!(upper, Some(("a.test".to_owned(), 53)));
    }
}
