//! The settings of associations: those of DTLS and those of the tunnel.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dimpl::Config as DtlsConfig;
use tandem_tunnel::Config as TunnelConfig;

use crate::crypto;
use crate::envelope::{DATA_HEADER, LARGEST};
use crate::repeats::Repeats;

/// The size of the handshake's datagrams, which fit every path.
const HANDSHAKE_MTU: usize = 1200;
/// The records that wait for the driver at most.
const MAX_RECORDS: usize = 64;
/// The size in bytes of the buffer for the output of DTLS. The certificates of a peer must fit, and
/// dimpl accepts a message of at most 50 records, which are smaller than the datagrams.
pub(crate) const SCRATCH: usize = 50 * LARGEST;

/// The streams of a gateway to which a client gives the first receive window in advance. On a path
/// of 20 Mbit/s and 400 ms, as many pushes of 16 KiB leave within a round trip. Their windows take
/// 15 MiB of the pool, which leaves its other streams 49 MiB.
const OFFERED_STREAMS: u32 = 64;
/// The first receive window of a response in bytes, while few responses are under way: the product
/// of 20 Mbit/s and 400 ms.
const RESPONSE_WINDOW: u64 = 1 << 20;

/// The settings that associations share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings of DTLS.
    pub(crate) repeats: Repeats,
    /// The settings of the tunnel.
    pub tunnel: TunnelConfig,
    /// The buffer for the output of DTLS, which the associations of a thread share.
    pub(crate) scratch: Rc<RefCell<Vec<u8>>>,
}

impl Settings {
    /// Creates the settings from those of the tunnel and the time for the handshake. A gateway
    /// requests certificates of its clients if `client_certificates` is true.
    ///
    /// # Errors
    /// Returns the text of the error if dimpl does not accept them.
    pub fn new(
        tunnel: TunnelConfig,
        timeout: Duration,
        client_certificates: bool,
    ) -> Result<Self, String> {
        let make = move |time, repetitions| {
            DtlsConfig::builder()
                .with_crypto_provider(crypto::provider())
                .dtls12_cipher_suites(&[])
                .mtu(HANDSHAKE_MTU - DATA_HEADER - 17)
                .max_queue_rx(MAX_RECORDS)
                .max_queue_tx(MAX_RECORDS)
                .handshake_timeout(timeout)
                .flight_start_rto(time)
                .flight_retries(repetitions)
                // The envelope has a cookie, which needs no state.
                .use_server_cookie(false)
                .require_client_certificate(client_certificates)
                .build()
                .map_err(|error| error.to_string())
        };
        Ok(Self {
            repeats: Repeats::new(Rc::new(make))?,
            tunnel,
            scratch: Rc::new(RefCell::new(vec![0; SCRATCH])),
        })
    }

    /// Bounds the receive windows of streams, in bytes.
    pub fn with_stream_window(mut self, window: u32) -> Self {
        let tunnel = &mut self.tunnel;
        let window = u64::from(window).max(tunnel.initial_credit);
        tunnel.max_window = tunnel.max_window.min(window);
        self
    }

    /// Gives the streams that the peer opens their first receive window in advance. It is for
    /// clients, whose gateways open streams with long content: pushes.
    pub fn with_offers(mut self) -> Self {
        self.tunnel.offered_streams = OFFERED_STREAMS;
        self
    }

    /// Gives the streams that this end opens a wide receive window. It is for clients, whose
    /// streams have responses.
    pub fn with_wide_responses(mut self) -> Self {
        self.tunnel.own_window = RESPONSE_WINDOW;
        self
    }

    /// Limits what a peer may send on a new stream to the credit that both ends know. A client that
    /// has not shown its token yet could fill a wider window.
    pub fn without_first_window(mut self) -> Self {
        self.tunnel.first_window = 0;
        self
    }
}
