//! Where exchanges leave: over a session to a gateway ([`gateways`]), or to the origins themselves
//! ([`origin`], which asks [`policy`] before it dials and `places` how many may). [`pushed`] keeps
//! what a gateway sent unasked, for the session it came on; [`reports`] tells it what became of
//! that. [`announce`] tells the log whether gateways answer, `failures` remembers which tunnels
//! failed.

pub mod announce;
mod failures;
pub mod gateways;
pub mod origin;
mod places;
pub mod policy;
pub mod pushed;
pub mod reports;
