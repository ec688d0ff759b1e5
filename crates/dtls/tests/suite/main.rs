//! Tests of the transport `dtls`: associations over a network in virtual time, and the pair over
//! sockets of this machine.

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

mod associations;
#[path = "../../../tandem/tests/suite/certificates.rs"]
mod certificates;
mod floods;
#[expect(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../tandem/tests/suite/harness.rs"]
mod harness;
mod identities;
mod network;
mod pair;
mod refusals;
mod translator;
