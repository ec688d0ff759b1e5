//! One error for everything that can end an exchange: what happened, whose side it was on, whether
//! sending again is safe.
//!
//! Every layer makes these; `front` turns them into a status code, a `Proxy-Status` field (RFC
//! 9209) and a readable page, `back` decides on them whether a request may be sent again.

use std::borrow::Cow;
use std::fmt;

use tandem_http::Reason;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The other end refused the connection.
    ConnectionRefused,
    /// No answer in time.
    Timeout,
    /// No way to the other end.
    Unreachable,
    /// The name could not be resolved.
    Dns,
    /// The other end broke the protocol.
    Protocol,
    /// The connection ended before the message did.
    Truncated,
    /// The exchange or connection was reset.
    Reset,
    /// Policy forbids the destination.
    Forbidden,
    /// The request is for a host that nobody here stands for.
    Misdirected,
    /// No valid access token or certificate.
    Unauthorized,
    /// The request is malformed.
    BadRequest,
    /// A head or body is larger than allowed.
    TooLarge,
    /// A limit of concurrent work is reached.
    Busy,
    /// TLS failed.
    Tls,
    /// The proxy itself failed.
    Internal,
}

/// Whose side the fault was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Who asked: browser or client program.
    Client,
    /// The other proxy, or the path to it.
    Peer,
    /// The origin server.
    Origin,
    /// This program.
    Local,
}

/// Whether the request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// It may have been processed and must not be repeated.
    Never,
    /// It may have been processed: only an idempotent one may be repeated.
    IfIdempotent,
    /// It surely was not processed.
    Safe,
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What happened.
    pub kind: Kind,
    /// Whose side.
    pub side: Side,
    /// Whether to send again.
    pub retry: Retry,
    /// For people; never holds a URL, host name or field value.
    pub detail: Cow<'static, str>,
}

impl Error {
    /// An error that forbids sending again.
    pub fn new(kind: Kind, side: Side, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            side,
            retry: Retry::Never,
            detail: detail.into(),
        }
    }

    /// The same, with another verdict on sending again.
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same failure at another side: a layer knows where its connection leads, the one below
    /// does not.
    pub fn at(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// What an I/O error on a connection to `side` means.
    pub fn io(error: &std::io::Error, side: Side) -> Self {
        use std::io::ErrorKind as K;
        // Transports put a typed error inside: keep its verdict.
        if let Some(inner) = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Self>())
        {
            return inner.clone();
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
        Self {
            kind,
            side,
            retry: Retry::IfIdempotent,
            detail: error.to_string().into(),
        }
    }

    /// The same as an I/O error, for layers below an `AsyncRead`.
    pub fn into_io(self) -> std::io::Error {
        let kind = match self.kind {
            Kind::ConnectionRefused => std::io::ErrorKind::ConnectionRefused,
            Kind::Timeout => std::io::ErrorKind::TimedOut,
            Kind::Unreachable => std::io::ErrorKind::HostUnreachable,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, self)
    }

    /// Status code for a client that waits for a head (RFC 9110 section 15).
    pub const fn status(&self) -> u16 {
        match (self.kind, self.side) {
            (Kind::BadRequest, _) | (Kind::Truncated, Side::Client) => 400,
            (Kind::Forbidden, _) => 403,
            (Kind::Misdirected, _) => 421,
            (Kind::Unauthorized, _) => 407,
            (Kind::TooLarge, Side::Client) => 431,
            (Kind::Timeout, _) => 504,
            (Kind::Busy, _) => 503,
            (Kind::Internal, _) => 500,
            _ => 502,
        }
    }

    /// The error type of a `Proxy-Status` field (RFC 9209 section 2.3).
    pub const fn proxy_status(&self) -> &'static str {
        match self.kind {
            Kind::ConnectionRefused => "connection_refused",
            Kind::Timeout => "connection_timeout",
            Kind::Unreachable => "destination_unavailable",
            Kind::Dns => "dns_error",
            Kind::Protocol => "http_protocol_error",
            Kind::Truncated => "http_response_incomplete",
            Kind::Reset => "connection_terminated",
            Kind::Forbidden => "destination_ip_prohibited",
            Kind::Unauthorized | Kind::Misdirected => "http_request_denied",
            Kind::BadRequest | Kind::TooLarge => "http_request_error",
            Kind::Busy => "connection_limit_reached",
            Kind::Tls => "tls_protocol_error",
            Kind::Internal => "proxy_internal_error",
        }
    }

    /// The reason a peer's stream is reset with.
    pub const fn reason(&self) -> Reason {
        match self.kind {
            Kind::Busy => Reason::Refused,
            Kind::BadRequest => Reason::Protocol,
            Kind::ConnectionRefused | Kind::Unreachable | Kind::Dns | Kind::Forbidden => {
                Reason::Connect
            }
            _ => match self.side {
                Side::Client => Reason::Cancel,
                _ => Reason::Internal,
            },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Client => "client",
            Side::Peer => "path to the other proxy",
            Side::Origin => "origin",
            Side::Local => "this proxy",
        };
        write!(f, "{side}: {}", self.detail)
    }
}

impl std::error::Error for Error {}
