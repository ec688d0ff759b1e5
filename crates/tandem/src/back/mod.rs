//! The end of the pipeline: sessions to a gateway ([`gateways`]), or connections to origins
//! ([`origin`]).
//!
//! [`policy`] decides which addresses an origin may have, and `places` bounds the number of
//! connections. [`announce`] logs whether gateways answer, and `failures` remembers the tunnels
//! that failed.

pub mod announce;
mod failures;
pub mod gateways;
pub mod origin;
mod places;
pub mod policy;
