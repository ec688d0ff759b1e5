//! The announcement of a site's own gateway: a response field, and a document at a well-known path.
//!
//! `docs/src/discovery.md` specifies both. The field is a list of structured fields (RFC 9651
//! section 3.1). The document (RFC 8615) is the value of the field. An announcement concerns the
//! origin of its response only, and names no other host than that origin's.

use std::fmt;
use std::time::Duration;

use sfv::{BareItem, Item, List, ListEntry, Parser};
use tandem_http::{Fields, RequestHead, Scheme};

use crate::endpoint::{Endpoint, SessionKind, is_onion, split_authority};

/// The name of the response field.
pub const FIELD: &str = "session-gateway";

/// The path of the document.
pub const WELL_KNOWN: &str = "/.well-known/session-gateway";

/// The largest announcement in bytes. A longer one is ignored.
pub const MAX_BYTES: usize = 2048;

/// The largest number of members in an announcement. A longer list is ignored.
pub const MAX_MEMBERS: usize = 8;

/// The lifetime of a way without the parameter `ma`.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);

/// The longest lifetime. Longer ones are cut.
pub const MAX_LIFETIME: Duration = Duration::from_secs(86_400);

/// The origin of a response (RFC 6454).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The scheme of the request.
    pub scheme: Scheme,
    /// The host in lower case, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Site {
    /// Returns the origin of a request, if its response may announce a gateway: that of an onion
    /// service, or one with HTTPS. Returns `None` for a tunnel.
    pub fn of(request: &RequestHead) -> Option<Self> {
        let scheme = request.scheme;
        let authority = &request.authority;
        let colon = authority.bytes().rposition(|byte| byte == b':');
        let host = &authority[..colon.unwrap_or(authority.len())];
        // The case of most requests to a reverse gateway: no memory is needed for it.
        if scheme == Scheme::Http && !is_onion(host) {
            return None;
        }
        let may_announce = !request.is_connect() && request.protocol.is_none();
        let authority = split_authority(&request.authority, Some(scheme.default_port()));
        let (host, port) = authority.ok().filter(|_| may_announce)?;
        let site = Self { scheme, host, port };
        site.is_vouched_for().then_some(site)
    }

    /// Returns true if the client knows that a response comes from this origin: by the address of
    /// an onion service, or by a certificate.
    pub fn is_vouched_for(&self) -> bool {
        is_onion(&self.host) || self.scheme == Scheme::Https
    }

    /// Returns true if a session by this way proves that it ends at the site's host.
    fn is_proven_by(&self, way: &Endpoint) -> bool {
        is_onion(&self.host) && self.scheme == Scheme::Http || way.transport != "tcp"
    }
}

/// A way to the gateway of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedWay {
    /// The session protocol, the transport, the host of the site, and a port. It has no options.
    pub endpoint: Endpoint,
    /// The time for which the way may be used, counted from the response.
    pub lifetime: Duration,
}

/// The content of an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// The ways to the gateway, best first; at least one.
    Ways(Vec<AnnouncedWay>),
    /// The site has no gateway any more.
    Clear,
}

/// The reason for which an announcement is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementError {
    /// Neither an onion address nor a certificate vouches for the response.
    #[error("neither an onion address nor a certificate vouches for the site")]
    NotVouchedFor,
    /// The value is not a list of structured fields, or is too large.
    #[error("the value is no list of at most 8 members and 2,048 bytes (RFC 9651 section 3.1)")]
    Malformed,
    /// A member names another host than that of the site.
    #[error("it names a host that is not the host of the site")]
    OtherHost,
    /// No member is a way that can be used.
    #[error("it names no way that can be used")]
    NoWay,
    /// The lifetime of all ways has ended.
    #[error("it has expired")]
    Expired,
}

impl Announcement {
    /// Returns the announcement in the fields of a response of `site`, if there is one. The time
    /// that the response spent in caches (`Age`, RFC 9111 section 5.1) shortens the lifetime.
    pub fn in_response(site: &Site, fields: &Fields) -> Option<Result<Self, AnnouncementError>> {
        let mut values = fields.get_all(FIELD);
        let mut value = values.next()?.to_vec();
        for more in values {
            value.extend_from_slice(b", ");
            value.extend_from_slice(more);
            if value.len() > MAX_BYTES {
                break;
            }
        }
        let age = fields.get("age").map_or(Some(0), |age| {
            std::str::from_utf8(age).ok()?.trim().parse().ok()
        });
        // An age that cannot be read may be any age.
        let age = age.map_or(MAX_LIFETIME, Duration::from_secs);
        Some(Self::parse(site, &value, age))
    }

    /// Returns the announcement of a gateway in front of `site`, which has these listeners. Returns
    /// `None` if none of them proves that it belongs to the site.
    pub fn of_listeners(site: &Site, listeners: &[Endpoint]) -> Option<Self> {
        let proves = |listener: &&Endpoint| match site.scheme {
            // The onion service encrypts, and needs no certificate.
            Scheme::Http => is_onion(&site.host) && listener.transport == "tcp",
            Scheme::Https => site.is_proven_by(listener),
        };
        let way = |listener: &Endpoint| AnnouncedWay {
            endpoint: Endpoint::new(
                listener.session,
                &listener.transport,
                &site.host,
                listener.port,
            ),
            lifetime: MAX_LIFETIME,
        };
        let ways = listeners.iter().filter(proves).map(way);
        let ways = ways.filter(|way| is_supported(&way.endpoint));
        let ways: Vec<_> = ways.take(MAX_MEMBERS).collect();
        (!ways.is_empty()).then_some(Self::Ways(ways))
    }

    /// Parses the value of the field, or the document, in a response of `site` with this `age`.
    ///
    /// # Errors
    /// Returns the reason for which the whole announcement is ignored. Members that are unknown to
    /// this version, and ways that prove no identity, are left out instead.
    pub fn parse(site: &Site, value: &[u8], age: Duration) -> Result<Self, AnnouncementError> {
        if !site.is_vouched_for() {
            return Err(AnnouncementError::NotVouchedFor);
        }
        let value = value.trim_ascii();
        if value.is_empty() || value.len() > MAX_BYTES {
            return Err(AnnouncementError::Malformed);
        }
        let list: List = Parser::new(value)
            .parse()
            .map_err(|_| AnnouncementError::Malformed)?;
        if list.len() > MAX_MEMBERS {
            return Err(AnnouncementError::Malformed);
        }
        let (mut ways, mut has_expired, mut is_cleared) = (Vec::new(), false, false);
        for member in &list {
            let ListEntry::Item(item) = member else {
                continue;
            };
            if matches!(&item.bare_item, BareItem::Token(token) if token.as_str() == "clear") {
                is_cleared = true;
                continue;
            }
            let BareItem::String(text) = &item.bare_item else {
                continue;
            };
            if named_host(text.as_str()).is_some_and(|host| host != site.host) {
                return Err(AnnouncementError::OtherHost);
            }
            let Some(endpoint) = endpoint(text.as_str()) else {
                continue;
            };
            let lifetime = lifetime(item).saturating_sub(age);
            if !is_supported(&endpoint) || !site.is_proven_by(&endpoint) {
                continue;
            }
            if lifetime.is_zero() {
                has_expired = true;
                continue;
            }
            ways.push(AnnouncedWay { endpoint, lifetime });
        }
        if is_cleared {
            return Ok(Self::Clear);
        }
        match (ways.is_empty(), has_expired) {
            (false, _) => Ok(Self::Ways(ways)),
            (true, true) => Err(AnnouncementError::Expired),
            (true, false) => Err(AnnouncementError::NoWay),
        }
    }
}

/// Returns the host in a member with any scheme, even one that this version does not know.
fn named_host(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let (host, _) = split_authority(authority, Some(0)).ok()?;
    Some(host)
}

/// Returns the endpoint of a member that has all parts and no others. Other members are left out.
fn endpoint(text: &str) -> Option<Endpoint> {
    let (scheme, rest) = text.split_once("://")?;
    let is_exact = scheme.contains('+') && !rest.contains(['/', '?', '#', '@']);
    is_exact.then(|| text.parse())?.ok()
}

/// Returns the lifetime of a member (`ma`), or zero if the parameter is no positive integer.
fn lifetime(item: &Item) -> Duration {
    let Some(value) = item.params.get("ma") else {
        return DEFAULT_LIFETIME;
    };
    let BareItem::Integer(seconds) = value else {
        return Duration::ZERO;
    };
    let seconds = u64::try_from(i64::from(*seconds)).unwrap_or(0);
    Duration::from_secs(seconds).min(MAX_LIFETIME)
}

/// Returns true for a session of many streams at a port, without options.
fn is_supported(endpoint: &Endpoint) -> bool {
    matches!(endpoint.session, SessionKind::H2 | SessionKind::H3)
        && endpoint.port != 0
        && endpoint.options(&[]).is_ok()
}

/// Writes the value of the field.
impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Ways(ways) = self else {
            return f.write_str("clear");
        };
        for (index, way) in ways.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let seconds = way.lifetime.as_secs();
            let (session, transport) = (way.endpoint.session.as_str(), &way.endpoint.transport);
            let authority = way.endpoint.authority();
            // An endpoint has neither quotes nor backslashes.
            write!(
                f,
                "{comma}\"{session}+{transport}://{authority}\";ma={seconds}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn site(url: &str) -> Site {
        let (scheme, authority) = url.split_once("://").expect("a URL");
        let scheme = Scheme::parse(scheme.as_bytes()).expect("a scheme");
        let (host, port) =
            split_authority(authority, Some(scheme.default_port())).expect("an authority");
        Site { scheme, host, port }
    }

    fn parse(url: &str, value: &str) -> Result<Announcement, AnnouncementError> {
        Announcement::parse(&site(url), value.as_bytes(), Duration::ZERO)
    }

    fn ways(url: &str, value: &str) -> Vec<(String, u64)> {
        match parse(url, value) {
            Ok(Announcement::Ways(ways)) => {
                let way = |way: &AnnouncedWay| (way.endpoint.to_string(), way.lifetime.as_secs());
                ways.iter().map(way).collect()
            }
            other => panic!("{value}: {other:?}"),
        }
    }

    #[test]
    fn announcement_names_ways_to_the_same_host() {
        let found = ways(
            "http://a.onion",
            r#""h2+tcp://A.onion:9980";ma=600;new=?1, "h2+tls://a.onion:443", (1 2), later"#,
        );
        let expected = [
            ("h2+tcp://a.onion:9980", 600),
            ("h2+tls://a.onion:443", 3600),
        ];
        assert_eq!(found, expected.map(|(way, life)| (way.to_owned(), life)));
        let long = ways(
            "http://a.onion:8080",
            r#""h2+tcp://a.onion:1";ma=999999999"#,
        );
        assert_eq!(long[0].1, MAX_LIFETIME.as_secs());
        for value in ["clear", r#""h2+tcp://a.onion:1", clear"#] {
            assert_eq!(parse("http://a.onion", value), Ok(Announcement::Clear));
        }
    }

    #[test]
    fn announcement_of_another_host_is_refused() {
        use AnnouncementError as E;
        for (url, value, error) in [
            ("http://a.onion", r#""h2+tcp://b.onion:9980""#, E::OtherHost),
            (
                "http://a.onion",
                r#""h2+tcp://x.a.onion:9980""#,
                E::OtherHost,
            ),
            (
                "http://a.onion",
                r#""h2+tcp://a.onion:9980", "h2+tcp://b.onion:9980""#,
                E::OtherHost,
            ),
            (
                "http://a.onion",
                r#""h2+tcp://gw.example:9980""#,
                E::OtherHost,
            ),
            (
                "http://a.example",
                r#""h2+tcp://a.example:9980""#,
                E::NotVouchedFor,
            ),
            (
                "http://a.example",
                r#""h2+tls://a.example:443""#,
                E::NotVouchedFor,
            ),
            (
                "https://a.example",
                r#""h2+tcp://a.example:9980""#,
                E::NoWay,
            ),
            ("https://a.onion", r#""h2+tcp://a.onion:9980""#, E::NoWay),
            ("http://a.onion", r#""h2+tcp://a.onion:0""#, E::NoWay),
            ("http://a.onion", r#""h2+tcp://a.onion""#, E::NoWay),
            (
                "http://a.onion",
                r#""h2+tcp://a.onion:1?exit=auto""#,
                E::NoWay,
            ),
            ("http://a.onion", r#""h2+tcp://a.onion:1?""#, E::NoWay),
            ("http://a.onion", r#""h2+tcp://a.onion:1/""#, E::NoWay),
            ("http://a.onion", r#""h2://a.onion:1""#, E::NoWay),
            (
                "http://a.onion",
                r#"clear, "h2+tcp://b.onion:1""#,
                E::OtherHost,
            ),
            ("http://a.onion", r#""h9+tcp://b.onion:1""#, E::OtherHost),
            ("http://a.onion", r#""new://b.onion/path""#, E::OtherHost),
            ("http://a.onion", r#""socks5://a.onion:1""#, E::NoWay),
            ("http://a.onion", r#""http://a.onion:1""#, E::NoWay),
            ("http://a.onion", r#""h2+tcp://a.onion:1";ma=0"#, E::Expired),
            (
                "http://a.onion",
                r#""h2+tcp://a.onion:1";ma=-5"#,
                E::Expired,
            ),
            (
                "http://a.onion",
                r#""h2+tcp://a.onion:1";ma=long"#,
                E::Expired,
            ),
            ("http://a.onion", "h2+tcp://a.onion:1", E::NoWay),
            ("http://a.onion", r#""h2+tcp://a.onion:1"#, E::Malformed),
            ("http://a.onion", "", E::Malformed),
            ("http://a.onion", "a, b, c, d, e, f, g, h, i", E::Malformed),
        ] {
            assert_eq!(parse(url, value), Err(error), "{url} {value}");
        }
        let long = format!("\"{}\"", "x".repeat(MAX_BYTES));
        assert_eq!(parse("http://a.onion", &long), Err(E::Malformed));
    }

    #[test]
    fn display_names_all_parts_of_a_way() {
        let value = r#""h3+tcp://a.onion:1";ma=5, "h2+tcp://a.onion:2";ma=6"#;
        let parsed = parse("http://a.onion", value).map(|it| it.to_string());
        assert_eq!(parsed.as_deref(), Ok(value));
    }

    #[test]
    fn certificate_vouches_for_ways_over_tls() {
        let found = ways(
            "https://a.example",
            r#""h3+quic://a.example:443", "h2+tcp://a.example:80", "h2+tls://a.example:8443""#,
        );
        let found: Vec<_> = found.iter().map(|(way, _)| way.as_str()).collect();
        assert_eq!(
            found,
            ["h3+quic://a.example:443", "h2+tls://a.example:8443"]
        );
    }

    #[test]
    fn listeners_are_announced_under_the_sites_name() {
        let listeners = [
            "http://127.0.0.1:8080",
            "h2+tcp://127.0.0.1:9980",
            "h2+tls://0.0.0.0:443?cert=a&key=b",
            "h3+quic://0.0.0.0:443?cert=a&key=b",
        ];
        let listeners = listeners.map(|text| text.parse().expect("an endpoint"));
        let of = |url| {
            let announcement = Announcement::of_listeners(&site(url), &listeners);
            announcement.map(|it| it.to_string())
        };
        let onion = "\"h2+tcp://a.onion:9980\";ma=86400";
        assert_eq!(of("http://a.onion").as_deref(), Some(onion));
        let secure = "\"h2+tls://a.example:443\";ma=86400, \"h3+quic://a.example:443\";ma=86400";
        assert_eq!(of("https://a.example").as_deref(), Some(secure));
        assert_eq!(of("http://a.example"), None);
    }

    #[test]
    fn age_of_a_response_shortens_its_announcement() {
        let mut fields: Fields = [(FIELD, "\"h2+tcp://a.onion:1\";ma=60")]
            .into_iter()
            .collect();
        let site = site("http://a.onion");
        let left = |fields: &Fields| match Announcement::in_response(&site, fields) {
            Some(Ok(Announcement::Ways(ways))) => Ok(ways[0].lifetime.as_secs()),
            Some(Err(error)) => Err(error),
            other => panic!("{other:?}"),
        };
        assert_eq!(left(&fields), Ok(60));
        fields.set("age", "20");
        assert_eq!(left(&fields), Ok(40));
        for age in ["60", "100000", "long", "-1"] {
            fields.set("age", age);
            assert_eq!(left(&fields), Err(AnnouncementError::Expired), "{age}");
        }
        assert!(Announcement::in_response(&site, &Fields::new()).is_none());
    }

    #[test]
    fn site_needs_an_onion_or_https() {
        let of = |scheme, authority: &str| Site::of(&RequestHead::get(scheme, authority, "/"));
        assert_eq!(of(Scheme::Http, "A.onion"), Some(site("http://a.onion")));
        assert_eq!(
            of(Scheme::Https, "a.example"),
            Some(site("https://a.example"))
        );
        assert_eq!(of(Scheme::Http, "a.example"), None);
        assert_eq!(of(Scheme::Http, "not a host"), None);
    }

    proptest! {
        #[test]
        fn announcement_survives_or_refuses_any_value(
            value in prop_oneof![
                "\\PC{0,200}",
                "(\"(h2|h3|x)\\+(tcp|tls|quic)://(a|b)\\.onion:[0-9]{1,6}\"(;ma=[0-9-]{0,12})?,? ?){0,10}",
            ],
            age in 0..100_000u64,
        ) {
            let site = site("http://a.onion");
            let parsed = Announcement::parse(&site, value.as_bytes(), Duration::from_secs(age));
            if let Ok(Announcement::Ways(ways)) = &parsed {
                prop_assert!(!ways.is_empty() && ways.len() <= MAX_MEMBERS);
                for way in ways {
                    prop_assert_eq!(&way.endpoint.host, &site.host);
                    prop_assert!(!way.lifetime.is_zero() && way.lifetime <= MAX_LIFETIME);
                }
                let text = parsed.as_ref().map(ToString::to_string).unwrap_or_default();
                let again = Announcement::parse(&site, text.as_bytes(), Duration::ZERO);
                prop_assert_eq!(again, parsed);
            }
        }
    }
}
