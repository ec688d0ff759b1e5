//! Tests of the transport `quic` over loopback, with sessions of HTTP/3.

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

mod datagrams;
mod early;
#[path = "../../../tandem/tests/suite/provided_h3.rs"]
mod h3;
mod hostile;
mod migration;
mod moved;
mod outages;
mod policed;
mod refusals;
mod slow_path;
#[path = "../../../dtls/tests/suite/translator.rs"]
mod translator;
mod unread;
mod windows;

use h3::{
    certificates, file_origin, harness, name_record, pairs, paths, provided, provided_lives,
    provided_ways, tunnel_scenes,
};
use tandem::transport::registry::Transports;
use tandem_quic::QuicProvider;

/// The name of the transport, and the scheme of its endpoints.
const NAME: &str = "quic";
const SCHEME: &str = "h3+quic";

fn transports() -> Transports {
    provided::with_provider(QuicProvider::default())
}
