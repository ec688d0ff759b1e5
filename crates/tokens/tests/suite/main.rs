//! Tokens against the vectors of RFC 9474 and RFC 9578, and against other implementations: the
//! crates `privacypass` and `ohttp`.

mod foreign;
mod redeeming;
mod vectors;

use std::sync::LazyLock;

use tandem_tokens::issuance::IssuerKey;

/// A key that the tests share, because its creation takes long.
pub static KEY: LazyLock<IssuerKey> =
    LazyLock::new(|| IssuerKey::generate().expect("random numbers"));
