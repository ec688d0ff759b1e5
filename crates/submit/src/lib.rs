//! Anonymous submissions without I/O. A gateway takes data from clients with rights, gives it a
//! random identifier, and passes it on to a server under its own signature.
//!
//! ```text
//!  client ──data, credential──▶ gateway ──data, identifier, signature──▶ server
//!         ◀─state, answer─────     │     ◀─────────answer──────────────
//!                                 store
//! ```
//!
//! - [`rights`]: the clients, and the amount of data that each may send (the operator's file).
//! - `media_type`: the media type of a submission, which the rights may limit.
//! - [`issuers`] and [`batch`]: the tokens that clients without accounts spend, and the delivery of
//!   their submissions in random order.
//! - [`submission`]: identifiers, keys, states and answers.
//! - [`fields`]: the fields that pass the gateway.
//! - [`signature`], [`digest`], [`directory`]: the signature of the gateway (RFC 9421), the digest
//!   that it covers (RFC 9530), and the document that publishes the gateway's keys.
//! - [`problem`]: the documents that explain a refusal (RFC 9457).
//! - [`store`]: the interface of the stores, and the values that they keep.
//!
//! The crate opens no socket, reads no clock and holds no keys. Hashes and signatures are computed
//! by the caller.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod batch;
pub mod digest;
pub mod directory;
pub mod fields;
pub mod issuers;
mod media_type;
pub mod problem;
pub mod rights;
pub mod signature;
pub mod store;
pub mod submission;
