//! Where exchanges leave: over a session to a gateway ([`gateways`]), or to the origins themselves ([`origin`], which
//! asks [`policy`] before it dials).

pub mod gateways;
pub mod origin;
pub mod policy;
