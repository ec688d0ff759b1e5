//! The error that ends an exchange: the kind of failure, the side at fault, and the decision
//! whether the request may be sent again.
//!
//! Every layer creates these errors. `front` turns them into a status code, a `Proxy-Status` field
//! (RFC 9209) and an error page. `back` retries requests by them, and logs why a gateway does not
//! respond. `tls` describes the failures of TLS.

mod tls;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use tandem_http::{Method, Reason};

pub(crate) use self::tls::BAD_CERTIFICATE;

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The other end refused the connection.
    ConnectionRefused,
    /// No response arrived in time.
    Timeout,
    /// The other end cannot be reached.
    Unreachable,
    /// The name could not be resolved.
    Dns,
    /// The other end broke the protocol.
    Protocol,
    /// The other end requires HTTP/1.1.
    Http11Required,
    /// The connection ended before the message did.
    Truncated,
    /// The exchange or connection was reset.
    Reset,
    /// The destination leads back to this proxy.
    Loop,
    /// Policy forbids the destination.
    Forbidden,
    /// The request names a host that this server does not serve.
    Misdirected,
    /// The access token or certificate is missing or not valid.
    Unauthorized,
    /// The request is malformed.
    BadRequest,
    /// The request asks for a protocol that this program does not pass on.
    Unsupported,
    /// A head or body is larger than allowed.
    TooLarge,
    /// A limit of concurrent work is reached.
    Busy,
    /// The session has no free stream, or accepts no new ones. Another session may have one.
    Full,
    /// TLS failed.
    Tls,
    /// The proxy itself failed.
    Internal,
}

/// The side at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The program that sent the request, such as a browser.
    Client,
    /// The gateway, or the path to it.
    Peer,
    /// The proxy on the way to the gateway (`via`), such as Tor.
    Via,
    /// The origin server.
    Origin,
    /// This program.
    Local,
}

impl Side {
    /// Returns true if the gateway was not reached, by its own fault or that of the proxy on the
    /// way.
    pub const fn is_before_origin(self) -> bool {
        matches!(self, Self::Peer | Self::Via)
    }
}

/// The decision whether the request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The request may have been processed and must not be repeated.
    Never,
    /// The request may have been processed. Only an idempotent one may be repeated.
    IfIdempotent,
    /// The request was certainly not processed.
    Safe,
}

impl Retry {
    /// Returns true if a request with this method may be sent again.
    pub fn permits(self, method: &Method) -> bool {
        match self {
            Self::Safe => true,
            Self::IfIdempotent => method.is_idempotent(),
            Self::Never => false,
        }
    }
}

/// The reason why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub kind: Kind,
    /// The side at fault.
    pub side: Side,
    /// The decision about sending the request again.
    pub retry: Retry,
    /// An explanation for people. It never contains a URL, host name or field value.
    pub detail: Cow<'static, str>,
    /// The address that failed. Only the local log may show it, never a page.
    pub address: Option<Arc<str>>,
}

impl Error {
    /// Creates an error that forbids sending the request again.
    pub fn new(kind: Kind, side: Side, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            side,
            retry: Retry::Never,
            detail: detail.into(),
            address: None,
        }
    }

    /// Replaces the decision about sending the request again.
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Adds the address that failed, for the local log.
    pub fn with_address(mut self, address: impl fmt::Display) -> Self {
        self.address = Some(address.to_string().into());
        self
    }

    /// Replaces the side at fault. A layer knows the other end of its connection, but the layer
    /// below does not.
    pub fn at(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Returns the typed error that a transport has wrapped.
    fn wrapped(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Converts an error of a path that carried a request. A typed error of the transport knows
    /// whether the request left, and other errors get `retry`.
    pub fn io_of_request(error: &std::io::Error, side: Side, retry: Retry) -> Self {
        match Self::wrapped(error) {
            Some(typed) => typed.clone(),
            None => Self::io(error, side).with_retry(retry),
        }
    }

    /// Classifies an I/O error on a connection to `side`.
    pub fn io(error: &std::io::Error, side: Side) -> Self {
        use std::io::ErrorKind as K;
        if let Some(inner) = Self::wrapped(error) {
            return inner.clone();
        }
        if let Some(inner) = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        {
            return Self::new(Kind::Tls, side, tls::explain(inner, side))
                .with_retry(Retry::IfIdempotent);
        }
        let kind = match error.kind() {
            K::ConnectionRefused => Kind::ConnectionRefused,
            K::TimedOut => Kind::Timeout,
            K::HostUnreachable | K::NetworkUnreachable | K::AddrNotAvailable | K::NetworkDown => {
                Kind::Unreachable
            }
            K::UnexpectedEof => Kind::Truncated,
            K::InvalidData => Kind::Tls,
            _ => Kind::Reset,
        };
        let detail = match kind {
            Kind::ConnectionRefused => "connection refused".into(),
            Kind::Truncated => "the connection was closed".into(),
            _ => error.to_string(),
        };
        Self::new(kind, side, detail).with_retry(Retry::IfIdempotent)
    }

    /// Wraps the error into an I/O error, for layers below an `AsyncRead`.
    pub fn into_io(self) -> std::io::Error {
        let kind = match self.kind {
            Kind::ConnectionRefused => std::io::ErrorKind::ConnectionRefused,
            Kind::Timeout => std::io::ErrorKind::TimedOut,
            Kind::Unreachable => std::io::ErrorKind::HostUnreachable,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, self)
    }

    /// Returns the status code for a client that waits for a head (RFC 9110 section 15).
    pub const fn status(&self) -> u16 {
        match (self.kind, self.side) {
            (Kind::BadRequest, _) | (Kind::Truncated, Side::Client) => 400,
            (Kind::Forbidden, _) => 403,
            (Kind::Misdirected, _) => 421,
            (Kind::Unauthorized, _) => 407,
            (Kind::TooLarge, Side::Client) => 431,
            (Kind::Timeout, _) => 504,
            (Kind::Busy | Kind::Full, _) => 503,
            (Kind::Internal, _) => 500,
            (Kind::Unsupported, _) => 501,
            _ => 502,
        }
    }

    /// Returns the error type of a `Proxy-Status` field (RFC 9209 section 2.3).
    pub const fn proxy_status(&self) -> &'static str {
        match self.kind {
            Kind::ConnectionRefused => "connection_refused",
            Kind::Timeout => "connection_timeout",
            Kind::Unreachable => "destination_unavailable",
            Kind::Dns => "dns_error",
            Kind::Protocol | Kind::Http11Required => "http_protocol_error",
            Kind::Truncated => "http_response_incomplete",
            Kind::Reset => "connection_terminated",
            Kind::Loop => "proxy_loop_detected",
            Kind::Forbidden => "destination_ip_prohibited",
            Kind::Unauthorized | Kind::Misdirected => "http_request_denied",
            Kind::BadRequest | Kind::Unsupported | Kind::TooLarge => "http_request_error",
            Kind::Busy | Kind::Full => "connection_limit_reached",
            Kind::Tls => "tls_protocol_error",
            Kind::Internal => "proxy_internal_error",
        }
    }

    /// Returns the reason for resetting a peer's stream.
    pub const fn reason(&self) -> Reason {
        match self.kind {
            Kind::Busy | Kind::Full => Reason::Refused,
            Kind::BadRequest => Reason::Protocol,
            Kind::Http11Required => Reason::Http11Required,
            Kind::ConnectionRefused
            | Kind::Unreachable
            | Kind::Dns
            | Kind::Loop
            | Kind::Forbidden => Reason::Connect,
            _ => match self.side {
                Side::Client => Reason::Cancel,
                _ => Reason::Internal,
            },
        }
    }
}

impl Error {
    /// Names the side at fault, where this program is `this`.
    const fn culprit(&self, this: &'static str) -> &'static str {
        match self.side {
            Side::Client => "client",
            Side::Peer => "gateway",
            Side::Via => "proxy on the way to the gateway",
            Side::Origin => "origin",
            Side::Local => this,
        }
    }

    /// Describes the error for a reader at the other end, to whom this program is `this`, such as
    /// `gateway`.
    pub fn seen_from_afar(&self, this: &'static str) -> String {
        format!("{}: {}", self.culprit(this), self.detail)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.culprit("this proxy"), self.detail)
    }
}

impl std::error::Error for Error {}
