//! Endpoints in the form that users write: `SESSION+TRANSPORT://HOST:PORT?key=value`, for listening
//! and for dialling.
//!
//! `http://…` and `socks5://…` mean their session over plain TCP. The transport checks the options
//! after `?` with [`Endpoint::options`], which rejects unknown ones.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

pub use tandem_http::onion::{is_onion, is_same_onion, onion_service};

use crate::textual::textual;

textual!(Endpoint Via);

/// The session protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionKind {
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    H2,
    /// HTTP/3.
    H3,
    /// SPDY/3.
    Spdy3,
    /// SPDY/3.1.
    Spdy31,
    /// SOCKS5, for listening only.
    Socks5,
}

impl SessionKind {
    const ALL: [(&'static str, Self); 6] = [
        ("http", Self::Http),
        ("h2", Self::H2),
        ("h3", Self::H3),
        ("spdy3", Self::Spdy3),
        ("spdy3.1", Self::Spdy31),
        ("socks5", Self::Socks5),
    ];

    /// Returns the name in an endpoint.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::H2 => "h2",
            Self::H3 => "h3",
            Self::Spdy3 => "spdy3",
            Self::Spdy31 => "spdy3.1",
            Self::Socks5 => "socks5",
        }
    }

    /// Returns the protocol's name in TLS (ALPN, RFC 7301).
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http | Self::Socks5 => b"http/1.1",
            Self::H2 => b"h2",
            Self::H3 => b"h3",
            Self::Spdy3 => b"spdy/3",
            Self::Spdy31 => b"spdy/3.1",
        }
    }
}

/// The use of an endpoint, which decides on the sessions that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The gateway that a client dials.
    Gateway,
    /// A listener of a client.
    ClientListener,
    /// A listener of a gateway or a bridge.
    GatewayListener,
    /// The server behind a bridge.
    Server,
}

impl Usage {
    const fn sessions(self) -> &'static [SessionKind] {
        match self {
            Self::Gateway => &[
                SessionKind::H2,
                SessionKind::H3,
                SessionKind::Spdy3,
                SessionKind::Spdy31,
                SessionKind::Http,
            ],
            Self::ClientListener => &[SessionKind::Http, SessionKind::H2, SessionKind::Socks5],
            Self::GatewayListener | Self::Server => &[
                SessionKind::H2,
                SessionKind::H3,
                SessionKind::Spdy3,
                SessionKind::Spdy31,
                SessionKind::Http,
            ],
        }
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Gateway => "h2+tls://HOST:443",
            Self::ClientListener => "http://127.0.0.1:8118",
            Self::GatewayListener => "h2+tls://0.0.0.0:443?cert=FILE&key=FILE",
            Self::Server => "h2+tls://HOST:443",
        }
    }

    /// Parses an endpoint for this use. The error lists only the forms that are possible here.
    pub fn parse(self, text: &str) -> Result<Endpoint, BadEndpoint> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        // The URL may contain a token, which no error shows.
        if scheme == Some("tandem") {
            let problem = "this is a URL of `tandem share`: `tandem init --from URL` sets the \
                           client up with it";
            return Err(BadEndpoint::new("tandem://…", problem));
        }
        let session = scheme.map(|scheme| scheme.split('+').next().unwrap_or(scheme));
        // To a gateway, HTTP/1.1 needs a transport with many streams.
        let one_stream = matches!(scheme, Some("http" | "http+tcp" | "http+tls"));
        let has_streams = scheme.is_some_and(|text| text.starts_with("http+")) && !one_stream;
        let sessions = self
            .sessions()
            .iter()
            .filter(|kind| self != Self::Gateway || **kind != SessionKind::Http || has_streams);
        let possible = sessions.map(|kind| kind.as_str());
        match session {
            Some(session) if !possible.clone().any(|name| name == session) => {
                let possible: Vec<_> = possible.collect();
                Err(BadEndpoint::new(
                    text,
                    format!(
                        "{session:?} is no session that can be used here; it may be {}, such as {}",
                        possible.join(", "),
                        self.example()
                    ),
                ))
            }
            _ => text.parse(),
        }
    }

    /// Reads a list of such endpoints from a configuration file.
    pub fn read_list<'de, D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Vec<Endpoint>, D::Error> {
        Vec::<String>::deserialize(deserializer)?
            .iter()
            .map(|text| self.parse(text).map_err(serde::de::Error::custom))
            .collect()
    }
}

/// A parsed endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The session protocol.
    pub session: SessionKind,
    /// The name of the transport. A registry holds the names that exist.
    pub transport: String,
    /// The host name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    options: BTreeMap<String, String>,
}

/// The reason for which a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {text:?}: {problem}")]
pub struct BadEndpoint {
    text: String,
    problem: String,
}

impl BadEndpoint {
    pub(crate) fn new(text: &str, problem: impl Into<String>) -> Self {
        // A user with a password stands before the host.
        let text = match text.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => text.into(),
        };
        Self {
            text,
            problem: problem.into(),
        }
    }
}

impl Endpoint {
    /// Returns the host's address if it is a literal or `localhost`, so that no name needs to be
    /// resolved.
    pub fn ip(&self) -> Option<IpAddr> {
        literal_ip(&self.host)
    }

    /// Returns the socket address, if no name needs to be resolved.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        self.ip().map(|ip| SocketAddr::new(ip, self.port))
    }

    /// Returns the scheme, such as `h2+tls`.
    pub fn scheme(&self) -> String {
        let session = self.session.as_str();
        if self.transport == "tcp" && self.session != SessionKind::H2 {
            session.to_owned()
        } else {
            format!("{session}+{}", self.transport)
        }
    }

    /// Returns `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        join_authority(&self.host, self.port)
    }

    /// Returns the options. Any option outside `known` is an error.
    pub fn options(&self, known: &[&str]) -> Result<&BTreeMap<String, String>, BadEndpoint> {
        match self
            .options
            .keys()
            .find(|key| !known.contains(&key.as_str()))
        {
            None => Ok(&self.options),
            Some(key) => Err(self.bad(format!(
                "unknown option {key:?}; it may be one of: {}",
                if known.is_empty() {
                    "none".into()
                } else {
                    known.join(", ")
                }
            ))),
        }
    }

    /// Creates an endpoint without options.
    pub fn new(session: SessionKind, transport: &str, host: &str, port: u16) -> Self {
        Self {
            session,
            transport: transport.to_owned(),
            host: host.to_owned(),
            port,
            options: BTreeMap::new(),
        }
    }

    /// Returns the endpoint with one more option, or another value of it.
    #[must_use]
    pub fn with_option(mut self, key: &str, value: &str) -> Self {
        self.options.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Returns the error for a problem with this endpoint.
    pub fn bad(&self, problem: impl Into<String>) -> BadEndpoint {
        BadEndpoint::new(&self.to_string(), problem)
    }

    /// Returns the files of certificate and key that a listener needs.
    pub fn certificate_files(&self) -> Result<(&str, &str), BadEndpoint> {
        let files = self.option("cert").zip(self.option("key"));
        files.ok_or_else(|| self.bad(format!("{} needs ?cert=FILE&key=FILE", self.transport)))
    }

    /// Returns the files of certificate and key that a dialling end may have.
    pub fn identity_files(&self) -> Result<Option<(&str, &str)>, BadEndpoint> {
        match (self.option("cert"), self.option("key")) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            _ => Err(self.bad("cert and key go together")),
        }
    }

    /// Returns the value of one option.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }
}

/// Returns the address of `host`, if it is a literal or `localhost`. The latter never needs a
/// resolver (RFC 6761 section 6.3).
pub fn literal_ip(host: &str) -> Option<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()
}

/// Returns `host:port`, with brackets around an IPv6 address.
pub fn join_authority(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Splits `host:port` or `host` into host and port.
///
/// An IPv6 address stands in brackets. It is returned without them in its canonical form (RFC
/// 5952), so that two spellings of one address compare equal. A name is returned in lower case.
pub fn split_authority(
    text: &str,
    default_port: Option<u16>,
) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => split_bracketed(rest)?,
        None if text.contains('@') => return Err("a user and a password cannot stand here"),
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err("an IPv6 address must stand in brackets");
            }
            Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
            None => (text.to_ascii_lowercase(), None),
        },
    };
    if host.is_empty() || host.len() > 255 {
        return Err("the host is missing or too long");
    }
    if !host.is_ascii() {
        return Err("write the name in its form of ASCII, which begins with xn--");
    }
    if !host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':' | b'~' | b'%'))
    {
        return Err("the host has a character that no host name has");
    }
    if port.is_some_and(|port| port.contains('/')) {
        return Err("a path cannot stand after the port");
    }
    let port = match port {
        None => default_port.ok_or("the port is missing")?,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => port
            .parse()
            .map_err(|_| "the port is no number from 0 to 65535")?,
        Some(_) => return Err("the port is no number from 0 to 65535"),
    };
    Ok((host, port))
}

/// Splits the text after `[` into the address and the port behind it.
fn split_bracketed(rest: &str) -> Result<(String, Option<&str>), &'static str> {
    let (host, after) = rest
        .split_once(']')
        .ok_or("the bracket of the address is not closed")?;
    let address: std::net::Ipv6Addr = host
        .parse()
        .map_err(|_| "the text in brackets is no IPv6 address")?;
    let port = match after {
        "" => None,
        after => Some(after.strip_prefix(':').ok_or("text after the bracket")?),
    };
    Ok((address.to_string(), port))
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |problem: String| BadEndpoint::new(text, problem);
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| bad("write SESSION+TRANSPORT://HOST:PORT".into()))?;
        let (session, transport) = scheme.split_once('+').unwrap_or((scheme, "tcp"));
        let session = SessionKind::ALL
            .iter()
            .find(|(name, _)| *name == session)
            .map(|(_, kind)| *kind)
            .ok_or_else(|| {
                bad(format!(
                    "unknown session {session:?}; it may be {}",
                    SessionKind::ALL.map(|(name, _)| name).join(", ")
                ))
            })?;
        if transport.is_empty() || !transport.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(bad(format!(
                "{transport:?} is no name of a transport, such as tcp or tls"
            )));
        }
        let (authority, query) = rest
            .split_once('?')
            .map_or((rest, None), |(a, q)| (a, Some(q)));
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) =
            split_authority(authority, None).map_err(|problem| bad(problem.into()))?;
        let mut options = BTreeMap::new();
        for pair in query
            .into_iter()
            .flat_map(|q| q.split('&'))
            .filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| bad(format!("option {pair:?} has no value")))?;
            if options.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(bad(format!("option {key:?} is given twice")));
            }
        }
        Ok(Self {
            session,
            transport: transport.to_owned(),
            host,
            port,
            options,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())?;
        for (i, (key, value)) in self.options.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// The way from the client to its gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// A SOCKS5 proxy, such as Tor's SocksPort.
    Socks(SocketAddr),
    /// Tor's control port, which names the SOCKS port and can find gateways at exits.
    TorPort(SocketAddr),
    /// Tor's control socket.
    TorSocket(std::path::PathBuf),
}

impl FromStr for Via {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |problem: &str| BadEndpoint::new(text, problem);
        let address = |rest: &str| -> Result<SocketAddr, BadEndpoint> {
            let (host, port) =
                split_authority(rest.strip_suffix('/').unwrap_or(rest), None).map_err(bad)?;
            let ip = literal_ip(&host)
                .ok_or_else(|| bad("give an address, not a name: the client resolves none"))?;
            Ok(SocketAddr::new(ip, port))
        };
        match text.split_once("://") {
            Some(("socks5" | "socks5h", rest)) => address(rest).map(Self::Socks),
            Some(("tor", path)) if path.starts_with('/') => Ok(Self::TorSocket(path.into())),
            Some(("tor", rest)) => address(rest).map(Self::TorPort),
            _ => Err(bad(
                "write socks5://ADDRESS:PORT, tor://ADDRESS:PORT or tor:///PATH",
            )),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socks(address) => write!(f, "socks5://{address}"),
            Self::TorPort(address) => write!(f, "tor://{address}"),
            Self::TorSocket(path) => write!(f, "tor://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_parses_its_own_text() {
        for text in [
            "http://127.0.0.1:8118",
            "h2+tls://gw.example:443",
            "h2+tcp://192.0.2.80:9980?exit=auto",
            "socks5://[::1]:9150",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
        let endpoint: Endpoint = "h2+tcp://192.0.2.80:9980?exit=auto".parse().unwrap();
        assert_eq!(endpoint.option("exit"), Some("auto"));
        assert!(
            endpoint
                .options(&["cert"])
                .unwrap_err()
                .to_string()
                .contains("unknown option \"exit\"")
        );
    }

    #[test]
    fn endpoint_errors_name_the_problem() {
        for (text, part) in [
            ("gw.example:443", "SESSION+TRANSPORT"),
            ("h4+tls://x:1", "unknown session"),
            ("h2+://x:1", "no name of a transport"),
            ("h2+s/c://x:1", "no name of a transport"),
            ("h2://x", "port is missing"),
            ("h2://x:99999", "port is no number"),
            ("h2://::1:80", "brackets"),
            ("h2://x y:80", "character"),
            ("h2://b\u{fc}cher.example:80", "xn--"),
            ("h2://user:secret@x:80", "a user and a password"),
            ("h2://x:80/path", "a path cannot"),
            ("h2://x:80?a", "no value"),
            ("h2://x:80?a=1&a=2", "twice"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn split_authority_gives_one_spelling_of_an_address() {
        let host = |text: &str| split_authority(text, Some(80)).expect("an authority").0;
        assert_eq!(host("[::ffff:7f00:1]"), host("[::FFFF:127.0.0.1]:80"));
        assert_eq!(host("[2001:DB8:0::1]"), "2001:db8::1");
        assert_ne!(host("[::ffff:7f00:1]"), host("127.0.0.1"));
    }

    #[test]
    fn endpoint_use_lists_only_its_sessions() {
        let error = Usage::Gateway.parse("https://gw.example").unwrap_err();
        let words = error.to_string();
        assert!(words.contains("it may be h2, h3, spdy3, spdy3.1, such as h2+tls://HOST:443"));
        assert!(
            !words.contains("socks5") && !words.contains("http,"),
            "{words}"
        );
        let shared = Usage::Gateway
            .parse("tandem://gw.example:443?token=s3cret")
            .unwrap_err();
        let words = shared.to_string();
        assert!(
            words.contains("`tandem init --from URL`") && !words.contains("s3cret"),
            "{words}"
        );
        for (text, valid) in [
            ("http://gw.example:80", false),
            ("http+tls://gw.example:443", false),
            ("http+dtls://gw.example:443", true),
        ] {
            assert_eq!(Usage::Gateway.parse(text).is_ok(), valid, "{text}");
        }
        assert!(Usage::Gateway.parse("h2+tls://gw.example:443").is_ok());
        assert!(Usage::ClientListener.parse("spdy3://127.0.0.1:1").is_err());
        assert!(Usage::ClientListener.parse("h2+tls://127.0.0.1:1").is_ok());
        assert!(Usage::GatewayListener.parse("http://127.0.0.1:1").is_ok());
    }

    #[test]
    fn via_rejects_host_names() {
        assert_eq!(
            "socks5://127.0.0.1:9050".parse::<Via>().unwrap(),
            Via::Socks("127.0.0.1:9050".parse().unwrap())
        );
        assert_eq!(
            "tor:///run/tor/control".parse::<Via>().unwrap(),
            Via::TorSocket("/run/tor/control".into())
        );
        assert!(
            "socks5://proxy.example:9050"
                .parse::<Via>()
                .unwrap_err()
                .to_string()
                .contains("not a name")
        );
    }
}
