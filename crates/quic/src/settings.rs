//! The parameters of connections.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, NoneTokenStore, ServerConfig, TransportConfig, VarInt};
use rustls::client::Resumption;
use tandem::endpoint::{BadEndpoint, Endpoint};
use tandem::renewal::Renewals;
use tandem::transport::registry::{ListenContext, TransportError};
use tandem::transport::tls::files::private_key;
use tandem::transport::tls::identity::Identity;
use tandem::transport::tls::{ClientCertificates, ClientTls, TlsError, acceptor};
use tandem_tunnel::Algorithm;

use crate::congestion::Factory;
use crate::issued::Issued;
use crate::resets::Resets;
use crate::tickets::Tickets;
use crate::window::{CLIENT, NEWCOMER, STREAM_WINDOW};

/// The bytes that a connection may hold for sending at its beginning. The carrier adapts the
/// number to the congestion window.
const SEND_WINDOW: u64 = 256 << 10;
/// The unidirectional streams of a client: control, QPACK, and some of an unknown type.
const CLIENT_UNI_STREAMS: u32 = 16;
/// The unidirectional streams of a gateway, which carry pushes.
const GATEWAY_UNI_STREAMS: u32 = 1024;
/// The bytes of datagrams that a connection holds until the session reads them.
const DATAGRAMS_UNREAD: usize = 256 << 10;
/// The bytes of datagrams that wait in a connection. They leave before the bytes of streams.
pub(crate) const DATAGRAMS_UNSENT: usize = 8 << 10;
/// The time of silence after which a client's probe keeps bindings of address translators open.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// The time without a datagram after which a connection is lost, in milliseconds.
const IDLE: u32 = 50_000;
/// The round trip to assume at the beginning, if it is not known (RFC 9002 section 6.2.2).
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(333);

/// The option of an endpoint that chooses the congestion control.
pub(crate) const CONGESTION: &str = "congestion";

/// Returns the congestion control. `congestion` is that of TCP, and the default here.
fn algorithm(endpoint: &Endpoint, congestion: &str) -> Result<Algorithm, BadEndpoint> {
    Ok(match endpoint.option(CONGESTION) {
        Some("cubic") => Algorithm::Cubic,
        Some("bbr") => Algorithm::Bbr,
        None if congestion == "cubic" => Algorithm::Cubic,
        None => Algorithm::Bbr,
        Some(_) => return Err(endpoint.bad("congestion= may be cubic or bbr")),
    })
}

/// Returns the parameters that both ends share.
fn transport(algorithm: Algorithm) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CLIENT.base))
        .send_window(SEND_WINDOW)
        .max_idle_timeout(Some(VarInt::from_u32(IDLE).into()))
        .datagram_receive_buffer_size(Some(DATAGRAMS_UNREAD))
        .datagram_send_buffer_size(DATAGRAMS_UNSENT)
        // The spin bit would show the round trip to everyone on the path.
        .allow_spin(false)
        .congestion_controller_factory(Arc::new(Factory(algorithm)));
    config
}

/// Checks the options without access to files.
pub(crate) fn check(endpoint: &Endpoint) -> Result<(), BadEndpoint> {
    algorithm(endpoint, "").map(drop)
}

/// Returns the round trip to assume at the beginning, if an earlier connection has measured this
/// one (RFC 9002 section 6.2.2). The first packets are repeated after three times the result. This
/// time is four times the earlier round trip, with 30 ms for computations. It is at least 200 ms,
/// and at most the second of an unknown round trip.
fn assumed(round_trip: Duration) -> Duration {
    let third = (round_trip.saturating_mul(4)).saturating_add(Duration::from_millis(30)) / 3;
    third.clamp(Duration::from_millis(67), UNKNOWN_ROUND_TRIP)
}

/// Makes the parameters of a connection from the round trip to assume.
type MakeTransport = dyn Fn(Duration) -> Arc<TransportConfig>;

/// The parameters of a client.
pub(crate) struct ClientSettings {
    tls: Arc<rustls::ClientConfig>,
    transport: Box<MakeTransport>,
    /// The parameters of a connection without tickets.
    plain: ClientConfig,
    /// True if the client has a certificate, which early data would not show.
    pub(crate) has_certificate: bool,
}

impl ClientSettings {
    /// Returns the parameters of a connection that shows none of the tickets and gets none.
    pub(crate) fn plain(&self) -> ClientConfig {
        self.plain.clone()
    }

    /// Returns the parameters of a connection that may send early data.
    pub(crate) fn with(&self, tickets: &Arc<Tickets>) -> ClientConfig {
        let mut tls = rustls::ClientConfig::clone(&self.tls);
        tls.resumption = Resumption::store(Arc::clone(tickets) as _);
        tls.enable_early_data = true;
        let Ok(crypto) = QuicClientConfig::try_from(Arc::new(tls)) else {
            return self.plain();
        };
        let mut config = ClientConfig::new(Arc::new(crypto));
        let round_trip = tickets.round_trip().map_or(UNKNOWN_ROUND_TRIP, assumed);
        config
            .transport_config((self.transport)(round_trip))
            .token_store(Arc::clone(tickets) as _);
        config
    }
}

/// Returns the parameters of a client. Its gateway may send `stream_window` bytes of a stream
/// before they are read.
pub(crate) fn client(
    endpoint: &Endpoint,
    congestion: &str,
    stream_window: u32,
    renewals: &Renewals,
) -> Result<ClientSettings, TransportError> {
    let identity = endpoint.identity_files()?;
    let has_certificate = identity.is_some();
    let watched = |(cert, key)| Identity::watch(cert, key, renewals).map(Arc::new);
    let tls = ClientTls {
        ca: endpoint.option("ca").map(str::to_owned),
        identity: identity.map(watched).transpose()?,
        alpn: vec![endpoint.session.alpn().to_vec()],
        unlinkable: true,
    };
    let tls = Arc::clone(tls.connector()?.config());
    let crypto = QuicClientConfig::try_from(Arc::clone(&tls));
    let mut config = ClientConfig::new(Arc::new(crypto.map_err(|_| no_cipher())?));
    let algorithm = algorithm(endpoint, congestion)?;
    let transport = Box::new(move |round_trip| {
        let mut transport = transport(algorithm);
        transport
            .initial_rtt(round_trip)
            .keep_alive_interval(Some(KEEP_ALIVE))
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW.min(stream_window)))
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(GATEWAY_UNI_STREAMS));
        Arc::new(transport)
    });
    config
        .transport_config(transport(UNKNOWN_ROUND_TRIP))
        // A token of the gateway would link the client's sessions.
        .token_store(Arc::new(NoneTokenStore));
    Ok(ClientSettings {
        tls,
        transport,
        plain: config,
        has_certificate,
    })
}

/// Returns the secret of a listener's stateless resets.
pub(crate) fn resets(endpoint: &Endpoint) -> Result<Resets, TransportError> {
    let (_, key) = endpoint.certificate_files()?;
    Ok(Resets::new(private_key(key)?.secret_der()))
}

/// Returns the parameters of a listener whose clients may have `max_streams` requests under way.
/// It accepts early data with the tickets of `issued`.
pub(crate) fn server(
    endpoint: &Endpoint,
    context: ListenContext<'_>,
    issued: Option<&Arc<Issued>>,
) -> Result<ServerConfig, TransportError> {
    let congestion = context.socket.map(|options| options.congestion);
    let mut transport = transport(algorithm(endpoint, &congestion.unwrap_or_default())?);
    let max_streams = context.max_streams;
    let clients = context.client_ca.map(|ca| ClientCertificates {
        ca,
        optional: context.optional_certificate,
    });
    let (cert, key) = endpoint.certificate_files()?;
    let identity = Identity::watch(cert, key, context.renewals)?;
    let tls = acceptor(identity, clients, &[endpoint.session.alpn()])?;
    let mut tls = rustls::ServerConfig::clone(tls.config());
    if let Some(issued) = issued {
        tls.session_storage = issued.tickets(max_streams);
        // QUIC limits the bytes itself (RFC 9001 section 4.6.1).
        tls.max_early_data_size = u32::MAX;
    }
    let crypto = QuicServerConfig::try_from(Arc::new(tls));
    let mut config = ServerConfig::with_crypto(Arc::new(crypto.map_err(|_| no_cipher())?));
    if let Some(issued) = issued {
        issued.add_tokens(&mut config);
    }
    transport
        .receive_window(VarInt::from_u32(NEWCOMER.base))
        .max_concurrent_bidi_streams(VarInt::from_u32(max_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(CLIENT_UNI_STREAMS));
    config.transport_config(Arc::new(transport));
    // A connection that waits to be accepted holds little.
    config
        .max_incoming(256)
        .incoming_buffer_size(32 << 10)
        .incoming_buffer_size_total(4 << 20);
    Ok(config)
}

fn no_cipher() -> TlsError {
    TlsError::Config(rustls::Error::General(
        "the cryptography lacks the cipher of QUIC's first packets".into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_packets_are_repeated_after_some_round_trips() {
        for (round_trip, expected) in [(0, 67), (42, 67), (60, 90), (240, 330), (600, 333)] {
            let assumed = assumed(Duration::from_millis(round_trip)).as_millis();
            assert_eq!(assumed, expected, "{round_trip} ms");
        }
        assert_eq!(assumed(Duration::MAX), UNKNOWN_ROUND_TRIP);
    }
}
