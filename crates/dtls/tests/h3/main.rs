//! Tests of HTTP/3 over the transport `dtls`, on sockets of this machine.

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
#[path = "../../../tandem/tests/suite/provided_lives.rs"]
mod lives;
#[path = "../../../tandem/tests/suite/provided_pairs.rs"]
mod pairs;
#[path = "../../../tandem/tests/suite/provided_paths.rs"]
mod paths;
#[path = "../../../tandem/tests/suite/provided.rs"]
mod provided;
#[path = "../../../tandem/tests/suite/provided_scenes.rs"]
mod provided_scenes;
#[path = "../../../tandem/tests/suite/push_matrix.rs"]
mod push_matrix;
#[path = "../../../tandem/tests/suite/provided_streams.rs"]
mod streams;
#[path = "../../../tandem/tests/suite/provided_ways.rs"]
mod ways;

use tandem::transport::registry::Transports;
use tandem_dtls::DtlsProvider;

/// The name of the transport, and the scheme of its endpoints.
const NAME: &str = "dtls-h3";
const SCHEME: &str = "h3+dtls";

fn transports() -> Transports {
    let mut transports = Transports::default();
    transports.add(DtlsProvider::default());
    transports
}
