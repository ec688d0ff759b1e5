//! Tests of the transport `quic` over loopback, with sessions of HTTP/3.

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

#[path = "../../../tandem/tests/suite/carrying.rs"]
mod carrying;
#[path = "../../../tandem/tests/suite/certificates.rs"]
mod certificates;
#[expect(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../tandem/tests/suite/harness.rs"]
mod harness;
mod hostile;
mod identities;
mod lives;
mod pairs;
#[path = "../../../tandem/tests/suite/push_matrix.rs"]
mod push_matrix;
mod refusals;
mod streams;
