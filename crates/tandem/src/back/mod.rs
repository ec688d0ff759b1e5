//! Where exchanges leave: over a session to a gateway ([`gateways`]), or to the origins themselves
//! ([`origin`], which asks [`policy`] before it dials and `places` how many may). [`announce`] tells the log whether gateways answer, `failures` remembers which tunnels
//! failed.

pub mod announce;
mod failures;
pub mod gateways;
pub mod origin;
mod places;
pub mod policy;
