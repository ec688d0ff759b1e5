//! The cryptography of unlinkable submissions, without I/O.
//!
//! ```text
//!  issuer ◀──blinded──▶ client ──encapsulated──▶ relay ──encapsulated──▶ gateway
//!  knows the account    spends tokens            knows the address      knows the token and the data
//! ```
//!
//! - [`challenge`] and [`token`]: the formats of Privacy Pass with tokens of type 2, which are
//!   blind RSA signatures (RFC 9577, RFC 9578).
//! - [`key`], [`directory`] and [`epoch`]: the issuer's public keys, and the times of their use.
//! - [`issuance`]: blinding at the client, and signatures at the issuer (RFC 9474).
//! - [`redemption`]: the checks of a token at the gateway.
//! - [`oblivious`]: encapsulated requests and responses (RFC 9458).
//! - [`replays`]: the requests that a gateway has received.
//! - [`message`]: binary HTTP messages of uniform sizes (RFC 9292).
//!
//! The crate opens no socket and reads no clock. The operating system provides random numbers.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod challenge;
pub mod directory;
pub mod epoch;
pub mod issuance;
pub mod key;
pub mod message;
pub mod oblivious;
mod reader;
pub mod redemption;
pub mod replays;
pub mod token;

/// Returns the SHA-256 hash of the concatenated parts.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}
