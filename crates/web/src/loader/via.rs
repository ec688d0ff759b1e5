//! The way to the origins: straight, through an HTTP proxy or through SOCKS5.

use std::fmt;
use std::str::FromStr;

use tandem_http::h1::Authority;

/// The way to the origins. As text: `direct`, `http://HOST:PORT`,
/// `socks5://[USER[:PASSWORD]@]HOST:PORT`.
#[derive(Clone, PartialEq, Eq)]
pub enum Via {
    /// A direct connection to the authority of each URL; the system resolves its name.
    Direct,
    /// An HTTP proxy, asked in absolute form.
    Http {
        /// `host:port` of the proxy.
        proxy: String,
    },
    /// A SOCKS5 proxy; it resolves the names.
    Socks5 {
        /// `host:port` of the proxy.
        proxy: String,
        /// The user and password.
        credentials: Option<(String, String)>,
    },
}

/// A text that is no [`Via`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a way to the origins (direct, http://HOST:PORT or socks5://[USER[:PASSWORD]@]HOST:PORT): {0:?}"
)]
pub struct BadVia(String);

impl FromStr for Via {
    type Err = BadVia;

    fn from_str(text: &str) -> Result<Self, BadVia> {
        if text == "direct" {
            return Ok(Self::Direct);
        }
        let bad = || BadVia(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let (credentials, proxy) = match rest.rsplit_once('@') {
            Some((credentials, proxy)) => (
                Some(credentials.split_once(':').unwrap_or((credentials, ""))),
                proxy,
            ),
            None => (None, rest),
        };
        let proxy = proxy.strip_suffix('/').unwrap_or(proxy).to_owned();
        Authority::parse(proxy.as_bytes())
            .and_then(|a| a.port)
            .ok_or_else(bad)?;
        let credentials =
            credentials.map(|(user, password)| (user.to_owned(), password.to_owned()));
        match scheme {
            "http" if credentials.is_none() => Ok(Self::Http { proxy }),
            "socks5" | "socks5h" | "socks" => Ok(Self::Socks5 { proxy, credentials }),
            _ => Err(bad()),
        }
    }
}

/// Credentials are private.
impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Http { proxy } => write!(f, "http://{proxy}"),
            Self::Socks5 { proxy, .. } => write!(f, "socks5://{proxy}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_text() {
        let parse = |text: &str| text.parse::<Via>();
        assert_eq!(parse("direct"), Ok(Via::Direct));
        assert_eq!(
            parse("http://127.0.0.1:8118/"),
            Ok(Via::Http {
                proxy: "127.0.0.1:8118".into()
            })
        );
        let socks = |credentials| {
            Ok(Via::Socks5 {
                proxy: "[::1]:9050".into(),
                credentials,
            })
        };
        assert_eq!(parse("socks5://[::1]:9050"), socks(None));
        assert_eq!(
            parse("socks5://u:p@[::1]:9050"),
            socks(Some(("u".into(), "p".into())))
        );
        assert_eq!(
            parse("socks5://u@[::1]:9050"),
            socks(Some(("u".into(), String::new())))
        );
        for bad in [
            "",
            "http://a",
            "ftp://a:1",
            "http://u:p@a:1",
            "socks5://a b:1",
            "a:1",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            format!("{:?}", parse("socks5://u:secret@a:1").expect("valid")),
            "socks5://a:1"
        );
    }
}
