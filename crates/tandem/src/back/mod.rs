//! The end of the pipeline: sessions to a gateway ([`gateways`]), or connections to origins
//! ([`origin`]).
//!
//! [`policy`] decides which addresses an origin may have. `own_networks` knows the machine's own
//! addresses and networks, and [`own`] the listeners of this process. `lookups` resolves names.
//! `places` limits the connections of a session, and `starts` the exchanges that all sessions start
//! at once.
//! `lasting` limits those that last. `multiplexed` holds the HTTP/2 sessions with origins.
//! [`polite`] limits the connections of a client without a gateway by the measured benefit, and
//! `growth` is its policy. [`opened_origins`] holds the connections of HTTPS that the client opens.
//! [`provided`] dials origins over a transport of many streams. [`announce`] logs whether gateways
//! answer, and `failures` remembers the tunnels that failed. `ways` chooses among several ways to
//! one gateway, and `throttling` decides whether a network throttles those over UDP. [`udp`]
//! carries UDP datagrams.

pub mod announce;
#[cfg(test)]
mod doubles;
mod failures;
pub mod gateways;
pub mod growth;
mod lasting;
mod lookups;
mod multiplexed;
pub mod opened_origins;
pub mod origin;
pub mod own;
mod own_networks;
mod places;
pub mod policy;
pub mod polite;
pub mod provided;
mod starts;
#[cfg(test)]
mod tests_over_paths;
mod throttling;
pub mod udp;
mod ways;
