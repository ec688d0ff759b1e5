//! The server's half: greeting, credentials, request. RFC 1928 sections 3 to 6, RFC 1929.
//!
//! ```text
//!  Greeting ──▶ Credentials ──▶ Command ──▶ Answer ──▶ Over
//!      └───────── no method 2 ─────▲
//! ```
//!
//! Any credentials are taken: over Tor they do not let anybody in but keep circuits apart.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{AUTH_VERSION, DOMAIN, IPV4, IPV6, NO_AUTH, NO_METHOD, Reply, USER_PASSWORD, VERSION};
use crate::h1::Authority;

/// The server's half of a SOCKS5 connection until the stream begins.
#[derive(Debug)]
pub struct Server {
    state: ServerState,
    input: Vec<u8>,
    output: Vec<u8>,
    credentials: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerState {
    Greeting,
    Credentials,
    Command,
    Answer,
    Over,
    Failed(BadSocks),
}

/// The client's request.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// The command to run.
    pub command: Command,
    /// User name, when the client authenticated; may be empty.
    pub user: Option<Vec<u8>>,
    /// Password, when the client authenticated; may be empty.
    pub password: Option<Vec<u8>>,
    /// `host:port`; IPv6 addresses in brackets.
    pub target: String,
}

/// Hides the destination and the credentials, which are private.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// Command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Open a stream.
    Connect,
    /// Listen for one.
    Bind,
    /// Relay datagrams.
    UdpAssociate,
    /// X'F0', tor's: look up a name.
    Resolve,
    /// X'F1', tor's: look up an address.
    ResolvePtr,
    /// Anything else.
    Other(u8),
}

/// The reason for which a client is refused. [`Server::poll_output`] holds the reply that it
/// receives first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSocks {
    /// Another version, or no SOCKS at all.
    #[error("not SOCKS version 5")]
    Version,
    /// The client offers neither no authentication nor user and password.
    #[error("no acceptable authentication method")]
    NoMethod,
    /// The credentials are not in the form of RFC 1929.
    #[error("malformed user and password")]
    Credentials,
    /// An address type other than IPv4, name and IPv6.
    #[error("unknown address type")]
    AddressType,
    /// A name that is none.
    #[error("not a valid host name")]
    Host,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// A server that waits for the greeting.
    pub const fn new() -> Self {
        Self {
            state: ServerState::Greeting,
            input: Vec::new(),
            output: Vec::new(),
            credentials: None,
        }
    }

    /// Takes bytes from the client, cut anywhere, and returns the request once it is complete.
    /// Later bytes are kept for [`Server::take_rest`], so stop feeding then. Flush
    /// [`Server::poll_output`] after each call, even after an error.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<Option<Request>, BadSocks> {
        self.input.extend_from_slice(bytes);
        loop {
            let step = match self.state {
                ServerState::Greeting => self.greeting(),
                ServerState::Credentials => self.credentials(),
                ServerState::Command => {
                    return self.command().inspect_err(|bad| self.fail(*bad));
                }
                ServerState::Answer | ServerState::Over => return Ok(None),
                ServerState::Failed(bad) => Err(bad),
            };
            match step {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(bad) => {
                    self.fail(bad);
                    return Err(bad);
                }
            }
        }
    }

    fn fail(&mut self, bad: BadSocks) {
        self.state = ServerState::Failed(bad);
        self.input = Vec::new();
    }

    /// Version, number of methods, methods. True when done.
    fn greeting(&mut self) -> Result<bool, BadSocks> {
        if self
            .input
            .first()
            .is_some_and(|&version| version != VERSION)
        {
            return Err(BadSocks::Version);
        }
        let Some(&count) = self.input.get(1) else {
            return Ok(false);
        };
        let Some(methods) = self.input.get(2..2 + usize::from(count)) else {
            return Ok(false);
        };
        let method = [USER_PASSWORD, NO_AUTH]
            .into_iter()
            .find(|method| methods.contains(method));
        self.output.extend([VERSION, method.unwrap_or(NO_METHOD)]);
        self.state = match method {
            Some(USER_PASSWORD) => ServerState::Credentials,
            Some(_) => ServerState::Command,
            None => return Err(BadSocks::NoMethod),
        };
        self.input.drain(..2 + usize::from(count));
        Ok(true)
    }

    /// Version, length, user, length, password (RFC 1929 section 2). True when done.
    fn credentials(&mut self) -> Result<bool, BadSocks> {
        if self
            .input
            .first()
            .is_some_and(|&version| version != AUTH_VERSION)
        {
            self.output.extend([AUTH_VERSION, 1]);
            return Err(BadSocks::Credentials);
        }
        let Some(user) = counted(&self.input, 1) else {
            return Ok(false);
        };
        let Some(password) = counted(&self.input, 2 + user.len()) else {
            return Ok(false);
        };
        let used = 3 + user.len() + password.len();
        self.credentials = Some((user.to_vec(), password.to_vec()));
        self.input.drain(..used);
        self.output.extend([AUTH_VERSION, 0]);
        self.state = ServerState::Command;
        Ok(true)
    }

    /// Version, command, reserved, address, port.
    fn command(&mut self) -> Result<Option<Request>, BadSocks> {
        if self
            .input
            .first()
            .is_some_and(|&version| version != VERSION)
        {
            self.refuse(Reply::GeneralFailure);
            return Err(BadSocks::Version);
        }
        let (Some(&command), Some(&kind)) = (self.input.get(1), self.input.get(3)) else {
            return Ok(None);
        };
        let address_end = match address_len(kind, self.input.get(4).copied()) {
            Ok(Some(len)) => 4 + len,
            Ok(None) => return Ok(None),
            Err(bad) => {
                self.refuse(Reply::AddressTypeNotSupported);
                return Err(bad);
            }
        };
        let Some(&[high, low]) = self.input.get(address_end..address_end + 2) else {
            return Ok(None);
        };
        let Some(host) = host(kind, &self.input[4..address_end]) else {
            self.refuse(Reply::GeneralFailure);
            return Err(BadSocks::Host);
        };
        self.input.drain(..address_end + 2);
        self.state = ServerState::Answer;
        let (user, password) = self.credentials.take().unzip();
        let target = format!("{host}:{}", u16::from_be_bytes([high, low]));
        Ok(Some(Request {
            command: Command::from(command),
            user,
            password,
            target,
        }))
    }

    fn refuse(&mut self, reply: Reply) {
        self.write(reply, SocketAddr::from(([0; 4], 0)));
    }

    fn write(&mut self, reply: Reply, bound: SocketAddr) {
        self.output.extend([VERSION, reply.code(), 0]);
        match bound.ip() {
            IpAddr::V4(ip) => {
                self.output.push(IPV4);
                self.output.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                self.output.push(IPV6);
                self.output.extend(ip.octets());
            }
        }
        self.output.extend(bound.port().to_be_bytes());
    }

    /// Replies to the request; after [`Reply::Succeeded`] the stream follows. The address in the
    /// reply is 0.0.0.0:0, since the client does not need the real one. Without a pending request,
    /// this does nothing.
    pub fn reply(&mut self, reply: Reply) {
        if self.state == ServerState::Answer {
            self.refuse(reply);
            self.state = ServerState::Over;
        }
    }

    /// Replies to [`Command::UdpAssociate`] that `bound` takes the client's datagrams. Without a
    /// pending request, this does nothing.
    pub fn reply_bound(&mut self, bound: SocketAddr) {
        if self.state == ServerState::Answer {
            self.write(Reply::Succeeded, bound);
            self.state = ServerState::Over;
        }
    }

    /// Appends the bytes to be sent to the client.
    pub fn poll_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// Returns the bytes after the client's request: the first bytes of the stream. The result is
    /// empty before the request is complete.
    pub fn take_rest(&mut self) -> Vec<u8> {
        match self.state {
            ServerState::Answer | ServerState::Over => std::mem::take(&mut self.input),
            _ => Vec::new(),
        }
    }
}

/// The byte string at `at` with its length before it.
fn counted(input: &[u8], at: usize) -> Option<&[u8]> {
    let len = usize::from(*input.get(at)?);
    input.get(at + 1..at + 1 + len)
}

/// Returns the length in bytes of an address of this type, without the port. `first` is its first
/// byte; `None` until a name has it.
pub(super) fn address_len(kind: u8, first: Option<u8>) -> Result<Option<usize>, BadSocks> {
    match kind {
        IPV4 => Ok(Some(4)),
        IPV6 => Ok(Some(16)),
        DOMAIN => Ok(first.map(|len| 1 + usize::from(len))),
        _ => Err(BadSocks::AddressType),
    }
}

/// The host of a request in the form of an authority; `None` when a name is none. An address given
/// as a name counts as an address.
pub(super) fn host(kind: u8, address: &[u8]) -> Option<String> {
    if let Ok(octets) = <[u8; 4]>::try_from(address)
        && kind == IPV4
    {
        return Some(Ipv4Addr::from(octets).to_string());
    }
    if let Ok(octets) = <[u8; 16]>::try_from(address)
        && kind == IPV6
    {
        return Some(format!("[{}]", Ipv6Addr::from(octets)));
    }
    let name = std::str::from_utf8(address.get(1..)?).ok()?;
    let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(name).parse::<Ipv6Addr>() {
        return Some(format!("[{address}]"));
    }
    Authority::parse(name.as_bytes())
        .filter(|a| a.port.is_none())
        .map(|a| a.host.to_owned())
}

impl From<u8> for Command {
    fn from(code: u8) -> Self {
        match code {
            1 => Self::Connect,
            2 => Self::Bind,
            3 => Self::UdpAssociate,
            0xf0 => Self::Resolve,
            0xf1 => Self::ResolvePtr,
            other => Self::Other(other),
        }
    }
}
