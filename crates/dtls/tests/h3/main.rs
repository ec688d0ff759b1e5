//! Tests of HTTP/3 over the transport `dtls`, on sockets of this machine.

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

#[path = "../../../tandem/tests/suite/provided_h3.rs"]
mod h3;

use h3::{
    certificates, file_origin, harness, name_record, pairs, paths, provided, provided_lives,
    provided_ways,
};
use tandem::transport::registry::Transports;
use tandem_dtls::DtlsProvider;

/// The name of the transport, and the scheme of its endpoints.
const NAME: &str = "dtls-h3";
const SCHEME: &str = "h3+dtls";

fn transports() -> Transports {
    provided::with_provider(DtlsProvider::default())
}
