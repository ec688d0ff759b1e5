//! The URL that configures a client: `tandem://HOST:PORT?ip=…&ca=…&token=…`. `tandem share` prints
//! it, and `tandem init --from` reads it.
//!
//! The query has the form of `application/x-www-form-urlencoded`. The keys `session` and
//! `transport` are absent for `h2` and `tls`. The value of `ca` is one certificate in DER, in the
//! URL-safe alphabet of base64 without padding (RFC 4648 section 5).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use url::form_urlencoded;

use super::check_secret;
use crate::endpoint::{Endpoint, Usage, is_onion, split_authority};
use crate::transport::tor::Exit;

/// The scheme with its separator.
const SCHEME: &str = "tandem://";

/// The maximum length of a URL in bytes. A QR code holds at most 2,953 bytes.
pub const MAX_LENGTH: usize = 8192;

/// The options of an endpoint that a URL may carry as they are.
const PLAIN: [&str; 4] = ["exit", "ip", "resolve", "sni"];

/// The file that a certificate of the URL is stored in, relative to the configuration file.
pub const CA_FILE: &str = "gateway.pem";

/// The settings that a URL carries.
#[derive(Clone, PartialEq, Eq)]
pub struct ShareUrl {
    /// The gateway, without options that name files.
    gateway: Endpoint,
    token: Option<String>,
    ca: Option<Vec<u8>>,
    /// The client that shared the gateway reaches it through Tor.
    is_through_tor: bool,
}

/// The reason for which a text is not such a URL, or a gateway cannot be shared. It never contains
/// the text, which may hold a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tandem:// URL: {0}")]
pub struct BadShareUrl(String);

fn bad(problem: impl ToString) -> BadShareUrl {
    BadShareUrl(problem.to_string())
}

impl ShareUrl {
    /// Makes the URL for a client's gateway. The certificate `ca` is DER and replaces the option
    /// `ca=FILE` of `gateway`.
    ///
    /// # Errors
    /// Fails if the gateway has options that only work on this machine, or if a value is invalid.
    pub fn new(
        gateway: &Endpoint,
        token: Option<String>,
        ca: Option<Vec<u8>>,
    ) -> Result<Self, BadShareUrl> {
        if gateway.option("key").is_some() {
            return Err(bad(
                "the gateway admits this client by its certificate, and a private key is never shared",
            ));
        }
        let known = [&PLAIN[..], &["ca", "own"]].concat();
        let options = gateway.options(&known).map_err(bad)?;
        // A gateway of this user is not the receiver's own.
        let options = options
            .iter()
            .filter(|(key, _)| *key != "ca" && *key != "own");
        let options = options.map(|(key, value)| (key.as_str(), value.as_str()));
        let name = [gateway.session.as_str(), &gateway.transport];
        let url = Self::checked(name, &gateway.authority(), options, token, ca)?;
        // The caller may still add Tor to the URL.
        url.clone().through_tor(true).bounded()?;
        Ok(url)
    }

    fn checked<'a>(
        [session, transport]: [&str; 2],
        authority: &str,
        options: impl Iterator<Item = (&'a str, &'a str)>,
        token: Option<String>,
        ca: Option<Vec<u8>>,
    ) -> Result<Self, BadShareUrl> {
        let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
        if !is_name(session) || !is_name(transport) {
            return Err(bad("the session or the transport has no valid name"));
        }
        let mut text = format!("{session}+{transport}://{authority}");
        for (i, (key, value)) in options.enumerate() {
            check_option(key, value)?;
            text.push(if i == 0 { '?' } else { '&' });
            text.push_str(&format!("{key}={value}"));
        }
        if let Some(token) = &token {
            check_secret(token).map_err(|problem| bad(format!("token: {problem}")))?;
        }
        if let Some(ca) = &ca {
            check_certificate(ca)?;
        }
        let gateway = Usage::Gateway.parse(&text).map_err(bad)?;
        Ok(Self {
            gateway,
            token,
            ca,
            is_through_tor: false,
        })
    }

    /// Refuses a URL if [`FromStr`] would refuse its text for the length.
    fn bounded(self) -> Result<Self, BadShareUrl> {
        check_length(&self.to_string())?;
        Ok(self)
    }

    /// Sets whether clients reach the gateway through Tor.
    #[must_use]
    pub fn through_tor(mut self, is_through_tor: bool) -> Self {
        self.is_through_tor = is_through_tor;
        self
    }

    /// Returns whether a client needs Tor: the URL says so, or it has no address for the gateway.
    pub fn needs_tor(&self) -> bool {
        let gateway = &self.gateway;
        let has_address = gateway.ip().is_some()
            || ["ip", "resolve"]
                .iter()
                .any(|key| gateway.option(key).is_some());
        self.is_through_tor
            || !has_address
            || is_onion(&gateway.host)
            || gateway.option("exit").is_some()
    }

    /// Returns the gateway's endpoint. With a certificate, the option `ca` names [`CA_FILE`].
    ///
    /// # Errors
    /// Fails if the transport of the URL has no certificates.
    pub fn endpoint(&self) -> Result<Endpoint, BadShareUrl> {
        if self.ca.is_none() {
            return Ok(self.gateway.clone());
        }
        let text = self.gateway.to_string();
        let separator = if text.contains('?') { '&' } else { '?' };
        let with_ca = format!("{text}{separator}ca={CA_FILE}");
        Usage::Gateway.parse(&with_ca).map_err(bad)
    }

    /// Returns the access token.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Returns the certificate of the gateway or its authority, in DER.
    pub fn ca(&self) -> Option<&[u8]> {
        self.ca.as_deref()
    }
}

/// Checks an option of the gateway. No value may contain a separator of endpoints.
fn check_option(key: &str, value: &str) -> Result<(), BadShareUrl> {
    let is_good = match key {
        "ip" => value.parse::<IpAddr>().is_ok(),
        "resolve" => value == "system",
        "exit" => value.parse::<Exit>().is_ok(),
        "sni" => !value.contains(':') && split_authority(value, Some(1)).is_ok(),
        _ => return Err(bad(format!("unknown key {key:?}"))),
    };
    is_good
        .then_some(())
        .ok_or_else(|| bad(format!("the value of {key:?} is invalid")))
}

fn check_length(text: &str) -> Result<(), BadShareUrl> {
    if text.len() > MAX_LENGTH {
        return Err(bad(format!("it is longer than {MAX_LENGTH} bytes")));
    }
    Ok(())
}

fn check_certificate(der: &[u8]) -> Result<(), BadShareUrl> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], _)) => Ok(()),
        _ => Err(bad("the value of \"ca\" is no certificate")),
    }
}

impl FromStr for ShareUrl {
    type Err = BadShareUrl;

    fn from_str(text: &str) -> Result<Self, BadShareUrl> {
        check_length(text)?;
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| bad("it begins with tandem://HOST:PORT"))?;
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        split_authority(authority, None).map_err(bad)?;
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let (mut session, mut transport) = ("h2", "tls");
        let (mut token, mut ca, mut options) = (None, None, Vec::new());
        let mut is_through_tor = false;
        for (i, (key, value)) in pairs.iter().enumerate() {
            if pairs[..i].iter().any(|(earlier, _)| earlier == key) {
                return Err(bad(format!("{key:?} is given twice")));
            }
            match &**key {
                "session" => session = value,
                "transport" => transport = value,
                "token" => token = Some(value.clone().into_owned()),
                "ca" => {
                    let der = URL_SAFE_NO_PAD.decode(&**value);
                    ca = Some(der.map_err(|_| bad("the value of \"ca\" is not base64url"))?);
                }
                "via" if *value == "tor" => is_through_tor = true,
                key => options.push((key, &**value)),
            }
        }
        let name = [session, transport];
        let url = Self::checked(name, authority, options.into_iter(), token, ca)?;
        // Escapes can make the URL's own text longer than `text`.
        url.through_tor(is_through_tor).bounded()
    }
}

impl fmt::Display for ShareUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = &self.gateway;
        let mut query = form_urlencoded::Serializer::new(String::new());
        let session = gateway.session.as_str();
        if session != "h2" {
            query.append_pair("session", session);
        }
        if gateway.transport != "tls" {
            query.append_pair("transport", &gateway.transport);
        }
        for key in PLAIN {
            if let Some(value) = gateway.option(key) {
                query.append_pair(key, value);
            }
        }
        if self.is_through_tor {
            query.append_pair("via", "tor");
        }
        if let Some(ca) = &self.ca {
            query.append_pair("ca", &URL_SAFE_NO_PAD.encode(ca));
        }
        if let Some(token) = &self.token {
            query.append_pair("token", token);
        }
        let query = query.finish();
        let separator = if query.is_empty() { "" } else { "?" };
        write!(f, "{SCHEME}{}{separator}{query}", gateway.authority())
    }
}

/// Hides the token, unlike the display.
impl fmt::Debug for ShareUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareUrl")
            .field("gateway", &self.gateway.to_string())
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("ca", &self.ca.as_ref().map(Vec::len))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::tls::self_signed::self_signed;

    const TOKEN: &str = "correct+horse&battery=staple%#?";

    fn certificate() -> Vec<u8> {
        let made = self_signed("gw.example", std::time::SystemTime::now()).expect("a certificate");
        made.der
    }

    fn gateway(text: &str) -> Endpoint {
        Usage::Gateway.parse(text).expect("an endpoint")
    }

    #[test]
    fn share_url_parses_its_own_text() {
        let ca = certificate();
        for (endpoint, token, ca) in [
            (
                "h2+tls://gw.example:443?ip=203.0.113.5",
                Some(TOKEN),
                Some(ca),
            ),
            ("h2+tls://[2001:db8::1]:443?sni=gw.example", None, None),
            ("spdy3.1+tcp://example.onion:9980", None, None),
            ("h2+tcp://192.0.2.80:9980?exit=auto", None, None),
        ] {
            let is_through_tor = ca.is_some();
            let url = ShareUrl::new(&gateway(endpoint), token.map(str::to_owned), ca);
            let url = url.expect("a URL").through_tor(is_through_tor);
            let text = url.to_string();
            assert_eq!(text.parse(), Ok(url.clone()), "{text}");
            assert!(
                text.len() < 1000,
                "a QR code of this length can be read: {text}"
            );
            let read = url.endpoint().expect("an endpoint");
            let ca = url.ca().map(|_| "ca=gateway.pem");
            assert_eq!(read.option("ca"), ca.map(|_| CA_FILE));
            assert_eq!(read.authority(), gateway(endpoint).authority());
        }
        let onion = "tandem://example.onion:9980?transport=tcp";
        let url: ShareUrl = onion.parse().expect("a URL");
        let endpoint = url.endpoint().expect("an endpoint");
        assert_eq!(endpoint.to_string(), "h2+tcp://example.onion:9980");
    }

    #[test]
    fn share_url_needs_tor_unless_it_has_an_address() {
        for (text, expected) in [
            ("tandem://gw.example:443?ip=203.0.113.5", false),
            ("tandem://gw.example:443?resolve=system", false),
            ("tandem://203.0.113.5:443", false),
            ("tandem://[2001:db8::1]:443", false),
            ("tandem://gw.example:443?ip=203.0.113.5&via=tor", true),
            ("tandem://gw.example:443", true),
            ("tandem://a.onion:443?transport=tcp&ip=203.0.113.5", true),
            ("tandem://192.0.2.80:9980?transport=tcp&exit=auto", true),
        ] {
            let url: ShareUrl = text.parse().expect("a URL");
            assert_eq!(url.needs_tor(), expected, "{text}");
        }
        assert!("tandem://a:1?via=socks".parse::<ShareUrl>().is_err());
    }

    #[test]
    fn share_url_of_local_files_is_refused() {
        for (endpoint, part) in [
            ("h2+tls://gw.example:443?cert=a&key=b", "private key"),
            ("h2+tls://gw.example:443?other=b", "unknown option"),
        ] {
            let error = ShareUrl::new(&gateway(endpoint), None, None).expect_err("refused");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn share_url_errors_name_the_key_only() {
        for (text, part) in [
            ("https://gw.example:443", "begins with tandem://"),
            ("tandem://gw.example", "port is missing"),
            (
                "tandem://gw.example:443?cert=/etc/passwd",
                "unknown key \"cert\"",
            ),
            ("tandem://gw.example:443?ip=1&ip=2", "twice"),
            (
                "tandem://gw.example:443?ip=secret-secret",
                "\"ip\" is invalid",
            ),
            (
                "tandem://gw.example:443?sni=a%26ca%3D/etc/x",
                "\"sni\" is invalid",
            ),
            (
                "tandem://gw.example:443?resolve=x",
                "\"resolve\" is invalid",
            ),
            ("tandem://gw.example:443?token=secret", "16 visible"),
            ("tandem://gw.example:443?ca=%2B", "base64url"),
            ("tandem://gw.example:443?ca=AAAA", "no certificate"),
            ("tandem://gw.example:443?session=http", "no session"),
            (
                "tandem://gw.example:443?transport=t.x",
                "no name of a transport",
            ),
            ("tandem://gw.example:443?transport=t%26x", "no valid name"),
            (
                "tandem://gw.example:443?session=h2%2Btcp://evil:1?ca",
                "no valid name",
            ),
        ] {
            let error = text.parse::<ShareUrl>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let long = format!("tandem://gw.example:443?x={}", "a".repeat(MAX_LENGTH));
        assert!(long.parse::<ShareUrl>().is_err());
        let url: ShareUrl = format!("tandem://a:1?token={}", "s".repeat(16))
            .parse()
            .expect("a URL");
        assert!(!format!("{url:?}").contains("sss"));
    }

    #[test]
    fn share_url_is_refused_if_escapes_make_it_long() {
        let token = "/".repeat(MAX_LENGTH / 2);
        let text = format!("tandem://gw.example:443?token={token}");
        let error = text.parse::<ShareUrl>().expect_err("refused").to_string();
        assert!(error.contains("longer than"), "{error}");
        let endpoint = gateway("h2+tls://gw.example:443");
        assert!(ShareUrl::new(&endpoint, Some(token), None).is_err());
    }

    proptest! {
        #[test]
        fn share_url_round_trips(
            host in "[a-z0-9]{1,20}(\\.[a-z0-9]{1,20}){0,3}",
            port: u16,
            transport in "[a-z]{1,8}",
            ip: Option<IpAddr>,
            token in proptest::option::of("[!-~]{16,64}"),
        ) {
            let ip = ip.map_or_else(String::new, |ip| format!("?ip={ip}"));
            let endpoint = gateway(&format!("h2+{transport}://{host}:{port}{ip}"));
            let url = ShareUrl::new(&endpoint, token.clone(), None).expect("a URL");
            let read: ShareUrl = url.to_string().parse().expect("the same URL");
            prop_assert_eq!(&read, &url);
            prop_assert_eq!(read.token(), token.as_deref());
            prop_assert_eq!(read.endpoint(), Ok(endpoint));
        }

        #[test]
        fn share_url_of_any_text_is_stable(text in "(tandem://)?[ -~]{0,80}") {
            if let Ok(url) = text.parse::<ShareUrl>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
