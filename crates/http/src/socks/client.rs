//! The client's half: everything in one flight, then three replies. RFC 1928 sections 3 to 6, RFC
//! 1929.
//!
//! The client offers only one method, so none of its messages depends on a reply. A connection
//! through SOCKS adds no round trip if the first bytes of the stream follow at once.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{AUTH_VERSION, DOMAIN, IPV4, IPV6, NO_AUTH, Reply, USER_PASSWORD, VERSION};

/// The length of a greeting with one method.
const GREETING: usize = 3;

/// The client's half of a SOCKS5 connection until the stream begins.
pub struct Client {
    flight: Vec<u8>,
    method: u8,
    state: State,
    /// Bytes of the reply being read.
    reply: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Method,
    Credentials,
    Reply,
    Done,
    Failed(SocksError),
}

/// How far a [`Client`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All input is used; more replies are to come.
    Pending,
    /// The stream is open: the bytes after `consumed` in this input belong to it.
    Done {
        /// Bytes of this input that were replies.
        consumed: usize,
    },
}

/// Why there is no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocksError {
    /// Host, user or password has more than 255 bytes, or the host is empty.
    #[error("host, user or password is longer than SOCKS can say")]
    TooLong,
    /// The server does not take the method that was offered, or chose another one.
    #[error("the SOCKS server does not take this way of authentication")]
    MethodRefused,
    /// The server refuses user and password.
    #[error("the SOCKS server refuses user and password")]
    AuthRefused,
    /// The server answers the request with a failure.
    #[error("SOCKS: {0}")]
    Refused(Reply),
    /// The answer is not SOCKS version 5.
    #[error("the answer is not SOCKS version 5")]
    Malformed,
}

/// Target and credentials are private.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A CONNECT to `host` (name or address, IPv6 with or without brackets) and `port`. With
    /// `credentials` (user, password) only method 2 is offered, without only method 0. Empty users
    /// and passwords are sent as they are, though RFC 1929 has no room for them: tor takes them.
    pub fn new(
        host: &str,
        port: u16,
        credentials: Option<(&[u8], &[u8])>,
    ) -> Result<Self, SocksError> {
        let mut flight = Vec::with_capacity(32 + host.len());
        let method = if credentials.is_some() {
            USER_PASSWORD
        } else {
            NO_AUTH
        };
        flight.extend([VERSION, 1, method]);
        if let Some((user, password)) = credentials {
            flight.push(AUTH_VERSION);
            put_counted(&mut flight, user)?;
            put_counted(&mut flight, password)?;
        }
        flight.extend([VERSION, 1, 0]);
        put_host(&mut flight, host)?;
        flight.extend(port.to_be_bytes());
        Ok(Self {
            flight,
            method,
            state: State::Method,
            reply: Vec::new(),
        })
    }

    /// Returns greeting, credentials and request: the whole handshake. The stream's bytes may
    /// follow at once.
    pub fn first_flight(&self) -> Vec<u8> {
        self.flight.clone()
    }

    /// Returns the greeting alone, which begins the flight. A server answers it with the method.
    pub fn greeting(&self) -> &[u8] {
        &self.flight[..GREETING]
    }

    /// Returns true once the server has agreed to the method and the credentials. Only the reply
    /// to the request is missing, which needs a connection.
    pub fn is_agreed(&self) -> bool {
        matches!(self.state, State::Reply | State::Done)
    }

    /// Bytes from the server, cut anywhere.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<Progress, SocksError> {
        let mut consumed = 0;
        loop {
            let wanted = match self.state {
                State::Method | State::Credentials => 2,
                State::Reply => self.reply_len(),
                State::Done => return Ok(Progress::Done { consumed }),
                State::Failed(error) => return Err(error),
            };
            let missing = wanted - self.reply.len();
            let piece = &bytes[consumed..bytes.len().min(consumed + missing)];
            self.reply.extend_from_slice(piece);
            consumed += piece.len();
            self.skip_lost_method();
            // The first byte reveals a wrong version; the rest of a reply may never arrive from a
            // server of another protocol.
            let next = match self.check_start() {
                Ok(()) if piece.len() < missing => return Ok(Progress::Pending),
                Ok(()) => self.take_reply(),
                Err(error) => Err(error),
            };
            self.state = next.unwrap_or_else(State::Failed);
        }
    }

    /// Returns the length of the request's reply in bytes, as far as it is known. It depends on the
    /// address type: tor sends an IPv6 address on a unix socket and an IPv4 one on TCP.
    fn reply_len(&self) -> usize {
        match (self.reply.get(3), self.reply.get(4)) {
            (None, _) => 4,
            (Some(&IPV4), _) => 10,
            (Some(&IPV6), _) => 22,
            (Some(_), None) => 5,
            (Some(_), Some(&len)) => 7 + usize::from(len),
        }
    }

    /// Skips the method reply that Tor 0.4.9 omits. It replies only to the last of several messages
    /// that arrive together: greeting and credentials in one read get a reply to the credentials
    /// alone. The first byte tells the two replies apart.
    fn skip_lost_method(&mut self) {
        if self.state == State::Method
            && self.method == USER_PASSWORD
            && self.reply.first() == Some(&AUTH_VERSION)
        {
            self.state = State::Credentials;
        }
    }

    fn check_start(&self) -> Result<(), SocksError> {
        let version = if self.state == State::Credentials {
            AUTH_VERSION
        } else {
            VERSION
        };
        match self.reply.first() {
            Some(&first) if first != version => Err(SocksError::Malformed),
            _ => Ok(()),
        }
    }

    /// Parses a reply, or the part of it that determines its length.
    fn take_reply(&mut self) -> Result<State, SocksError> {
        let code = self.reply[1];
        let next = match self.state {
            State::Method if code == self.method && code == USER_PASSWORD => State::Credentials,
            State::Method if code == self.method => State::Reply,
            // It accepts none, or chose one that was not offered.
            State::Method => return Err(SocksError::MethodRefused),
            State::Credentials if code == 0 => State::Reply,
            State::Credentials => return Err(SocksError::AuthRefused),
            // Some servers close right after the code of a failure; the rest of the reply carries
            // no information.
            State::Reply if code != 0 => return Err(SocksError::Refused(Reply::from(code))),
            State::Reply if !matches!(self.reply[3], IPV4 | DOMAIN | IPV6) => {
                return Err(SocksError::Malformed);
            }
            State::Reply if self.reply.len() < self.reply_len() => return Ok(State::Reply),
            State::Reply => State::Done,
            state @ (State::Done | State::Failed(_)) => state,
        };
        self.reply = Vec::new();
        Ok(next)
    }
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), SocksError> {
    out.push(u8::try_from(bytes.len()).map_err(|_| SocksError::TooLong)?);
    out.extend_from_slice(bytes);
    Ok(())
}

fn put_host(out: &mut Vec<u8>, host: &str) -> Result<(), SocksError> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        out.push(IPV4);
        out.extend(address.octets());
    } else if let Ok(address) = bare.parse::<Ipv6Addr>() {
        out.push(IPV6);
        out.extend(address.octets());
    } else if host.is_empty() {
        return Err(SocksError::TooLong);
    } else {
        out.push(DOMAIN);
        put_counted(out, host.as_bytes())?;
    }
    Ok(())
}
