//! The end towards origins of a gateway and of a bridge: the destinations, the authorities and the
//! limits.

use std::time::Duration;

use super::units::Span;
use super::{ConfigError, positive};
use crate::back::origin::Limits;
use crate::back::policy::{AddressFamily, AllowDest, Policy, PolicyOf};

/// The options of the end towards origins. The roles have separate defaults for the numbers of
/// connections.
pub(super) struct OriginsOptions {
    pub(super) allow_dest: Vec<AllowDest>,
    pub(super) allow_port: Vec<u16>,
    pub(super) origin_ca: Option<String>,
    /// The maximum number of connections to one origin for one session.
    pub(super) per_origin: usize,
    /// The maximum number of connections to all origins for one session.
    pub(super) per_session: usize,
    /// The maximum number of exchanges that last, if the user gives one.
    pub(super) lasting: Option<usize>,
    pub(super) response_timeout: Option<Span>,
}

/// The checked configuration of the end towards origins.
#[derive(Clone, Debug)]
pub struct OriginsConfig {
    /// The destinations that the role may connect to.
    pub policy: Policy,
    /// The PEM file of the authorities for origins.
    pub ca: Option<String>,
    /// The limits of a session's connections to origins.
    pub limits: Limits,
    /// The time limit for an origin's response.
    pub response_timeout: Duration,
}

impl OriginsOptions {
    /// Checks the options of a role with at most `max_connections` from clients.
    pub(super) fn typed(self, max_connections: usize) -> Result<OriginsConfig, ConfigError> {
        let lasting = self
            .lasting
            .unwrap_or_else(|| max_connections.saturating_mul(2));
        Ok(OriginsConfig {
            policy: Policy {
                of: PolicyOf::Gateway,
                family: AddressFamily::Any,
                allow: self.allow_dest,
                ports: match self.allow_port.is_empty() {
                    true => vec![80, 443],
                    false => self.allow_port,
                },
            },
            ca: self.origin_ca,
            limits: Limits {
                per_origin: self.per_origin,
                per_session: self.per_session,
                lasting: lasting.max(max_connections),
            },
            response_timeout: positive(
                "response-timeout",
                self.response_timeout,
                Duration::from_secs(60),
            )?,
        })
    }
}
