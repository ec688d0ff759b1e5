//! Origins that require HTTP/1.1 (HTTP_1_1_REQUIRED, RFC 9113 section 7), such as servers with
//! logins that belong to a connection. TLS has negotiated HTTP/2 before the origin tells so. The
//! gateway then repeats the request over HTTP/1.1, as browsers do.

use std::time::Duration;

use super::{Origin, PoolKey};
use crate::error::{Error, Kind};
use crate::exchange::Exchange;
use crate::expiring::ExpiringSet;

/// The time for which an origin gets HTTP/1.1 only.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The origins that require HTTP/1.1, for each session of a client.
pub(super) type Http1Origins = ExpiringSet<PoolKey, 1024>;

impl Origin {
    /// Returns whether an exchange needs a connection of HTTP/1.1.
    pub(super) fn needs_http1(&self, exchange: &Exchange, key: &PoolKey) -> bool {
        // A WebSocket needs a separate connection: few origins support extended CONNECT (RFC 8441).
        exchange.request.protocol.is_some() || self.http1_origins.contains(|| key.clone())
    }

    /// Returns whether HTTP/1.1 may help after a failure, because the origin requires it. A bridge
    /// with a fixed protocol speaks no other. An origin that has no HTTP/1.1 gets HTTP/2 again.
    pub(super) fn changes_to_http1(&self, key: &PoolKey, error: &Error) -> bool {
        if error.kind == Kind::Tls {
            self.http1_origins.remove(key);
        }
        let changes = error.kind == Kind::Http11Required && self.protocols.always.is_none();
        if changes {
            self.http1_origins.insert(key.clone(), REMEMBERED);
        }
        changes
    }
}

#[cfg(test)]
mod tests;
