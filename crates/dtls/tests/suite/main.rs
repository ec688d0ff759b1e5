//! Tests of the transport `dtls`: associations over a network in virtual time, and the pair over
//! sockets of this machine.

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

mod associations;
#[path = "../../../tandem/tests/suite/certificates.rs"]
mod certificates;
#[expect(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../tandem/tests/suite/file_origin.rs"]
mod file_origin;
mod floods;
#[expect(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../tandem/tests/suite/harness.rs"]
mod harness;
mod identities;
#[path = "../../../tandem/tests/suite/name_record.rs"]
mod name_record;
mod network;
mod pair;
#[path = "../../../tandem/tests/suite/provided_paths.rs"]
mod paths;
#[path = "../../../tandem/tests/suite/provided.rs"]
mod provided;
#[path = "../../../tandem/tests/suite/provided_downloads.rs"]
mod provided_downloads;
#[path = "../../../tandem/tests/suite/provided_lives.rs"]
mod provided_lives;
#[path = "../../../tandem/tests/suite/provided_scenes.rs"]
mod provided_scenes;
#[path = "../../../tandem/tests/suite/provided_streams.rs"]
mod provided_streams;
#[path = "../../../tandem/tests/suite/provided_ways.rs"]
mod provided_ways;
mod refusals;
mod repeats;
mod returning;
#[expect(dead_code, reason = "the tests of early data use the rest")]
#[path = "../../../quic/tests/suite/slow_path.rs"]
mod slow_path;
mod streams;
mod translator;

use tandem::transport::registry::Transports;
use tandem_dtls::DtlsProvider;

/// The name of the transport, and the scheme of its endpoints.
const NAME: &str = "dtls";
const SCHEME: &str = "http+dtls";

fn transports() -> Transports {
    provided::with_provider(DtlsProvider::default())
}
