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
mod refusals;
#[path = "../../../tandem/tests/suite/provided_streams.rs"]
mod streams;
#[path = "../../../tandem/tests/suite/provided_ways.rs"]
mod ways;
mod windows;

use tandem::transport::registry::Transports;
use tandem_quic::QuicProvider;

/// The name of the transport, and the scheme of its endpoints.
const NAME: &str = "quic";
const SCHEME: &str = "h3+quic";

fn transports() -> Transports {
    let mut transports = Transports::default();
    transports.add(QuicProvider::default());
    transports
}
