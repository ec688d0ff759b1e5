//! The names of the roles, which tables of configuration files, pages and responses show.
//!
//! A role writes its name into the `Proxy-Status` field of its own responses (RFC 9209), where the
//! client reads that of a gateway.

use std::fmt;

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// The proxy of the user.
    Client,
    /// The proxy that fetches from origins.
    Gateway,
    /// A gateway that passes requests on to the next hop.
    Relay,
    /// A proxy that translates between versions of HTTP.
    Bridge,
    /// The server that issues tokens.
    Issuer,
}

impl RoleName {
    /// Returns the name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Gateway => "gateway",
            Self::Relay => "relay",
            Self::Bridge => "bridge",
            Self::Issuer => "issuer",
        }
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
