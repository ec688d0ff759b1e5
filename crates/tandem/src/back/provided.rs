//! Origins over a transport of the registry that has many streams, such as QUIC.
//!
//! The gateway's policy decides about the addresses, as it does for TCP. The transport then dials
//! one address at a time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::policy::{Direct, first_to_answer};
use crate::carrier::{Carrier, CarrierFuture, LocalBoxFuture};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::renewal::Renewals;
use crate::transport::registry::{DialContext, TransportError, Transports};
use crate::transport::tcp::SocketOptions;
use crate::transport::{Dial, Target};

/// The number of hosts for which transports are kept.
const MAX_KEPT: usize = 64;

/// Dials origins over a transport of the registry.
pub struct Provided {
    /// Resolves names, and permits or refuses their addresses.
    direct: Rc<Direct>,
    transports: Transports,
    /// The endpoint of an origin. Host and port are those of each target.
    endpoint: Endpoint,
    congestion: String,
    /// The time for a handshake.
    timeout: Duration,
    renewals: Renewals,
    /// The transports that were used last, oldest first. Each has read its certificates.
    kept: RefCell<VecDeque<KeptTransport>>,
}

/// The transport to a port of a host.
struct KeptTransport {
    host: String,
    port: u16,
    transport: Rc<dyn Dial>,
}

impl Provided {
    /// Creates the way to origins with endpoints like `endpoint`, except for host and port.
    pub fn new(
        direct: Rc<Direct>,
        transports: Transports,
        endpoint: Endpoint,
        options: &SocketOptions,
        renewals: Renewals,
    ) -> Self {
        Self {
            direct,
            transports,
            endpoint,
            congestion: options.congestion.clone(),
            timeout: options.connect_timeout,
            renewals,
            kept: RefCell::default(),
        }
    }

    /// Returns the transport to a port of a host. It is created once, since it may read files.
    fn transport(&self, host: &str, port: u16) -> Result<Rc<dyn Dial>, Error> {
        let mut kept = self.kept.borrow_mut();
        let same = |it: &KeptTransport| it.host == host && it.port == port;
        let known = kept.iter().position(same).and_then(|at| kept.remove(at));
        let entry = match known {
            Some(entry) => entry,
            None => KeptTransport {
                host: host.to_owned(),
                port,
                transport: self.create(host, port)?,
            },
        };
        let transport = Rc::clone(&entry.transport);
        kept.push_back(entry);
        if kept.len() > MAX_KEPT {
            kept.pop_front();
        }
        Ok(transport)
    }

    fn create(&self, host: &str, port: u16) -> Result<Rc<dyn Dial>, Error> {
        let mut endpoint = self.endpoint.clone();
        host.clone_into(&mut endpoint.host);
        endpoint.port = port;
        let context = DialContext {
            streams: Rc::clone(&self.direct) as _,
            congestion: self.congestion.clone(),
            stream_window: u32::MAX,
            early_data: false,
            may_move: false,
            timeout: self.timeout,
            renewals: self.renewals.clone(),
        };
        let provider = self.transports.to_dial(&endpoint).map_err(|_| unusable())?;
        let transport = provider.dialling(&endpoint, context);
        transport.map_err(|error| match error {
            TransportError::Endpoint(_) => unusable(),
            TransportError::Tls(_) => {
                let detail = "the files with certificates for origins cannot be read";
                Error::new(Kind::Tls, Side::Local, detail)
            }
        })
    }

    /// Dials the addresses of a target in order until one answers.
    async fn dial_any(
        &self,
        addresses: &[SocketAddr],
        target: &Target,
        isolation: &Isolation,
    ) -> Result<Carrier, Error> {
        let dial = async |address, limit| {
            let target = Target {
                address: Some(address),
                ..target.clone()
            };
            let transport = self.transport(&target.host, target.port)?;
            let dialled = tokio::time::timeout(limit, transport.carrier(&target, isolation));
            dialled.await.unwrap_or_else(|_| Err(silent()))
        };
        let dialled = first_to_answer(addresses, self.timeout, dial).await;
        dialled.map_err(|error| match error.side {
            Side::Peer => error.at(Side::Origin),
            _ => error,
        })
    }
}

/// Returns the error for a host that the transport cannot dial. The text omits the destination,
/// because it is private to a user.
fn unusable() -> Error {
    let detail = "the transport cannot dial that host: its name cannot stand in a certificate";
    Error::new(Kind::Tls, Side::Origin, detail)
}

/// Returns the error for an address that does not answer in time.
fn silent() -> Error {
    let detail = "no answer to the handshake in time";
    Error::new(Kind::Timeout, Side::Origin, detail).with_retry(Retry::Safe)
}

impl Dial for Provided {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { self.carrier(target, isolation).await?.into_bytes() })
    }

    fn carrier<'a>(&'a self, target: &'a Target, isolation: &'a Isolation) -> CarrierFuture<'a> {
        Box::pin(async move {
            let provider = self
                .transports
                .to_dial(&self.endpoint)
                .map_err(|_| unusable())?;
            let (protocol, session) = (provider.protocol(), isolation.connection());
            let addresses = self.direct.addresses(protocol, session, target).await?;
            let carrier = self.dial_any(&addresses, target, isolation).await?;
            METRICS.origin_connections.add(1);
            Ok(carrier)
        })
    }
}

/// The transport to origins of the scheme `http` for a protocol that always encrypts.
#[derive(Debug)]
pub struct EncryptedOnly;

impl Dial for EncryptedOnly {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        let detail = "the bridge speaks HTTP/3 to origins, which serves https only";
        let error = Error::new(Kind::BadRequest, Side::Client, detail);
        Box::pin(std::future::ready(Err(error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;
    use crate::back::own::OwnListeners;
    use crate::back::policy::Policy;
    use crate::transport::doubles::AddressDial;
    use crate::transport::registry::{Dials, Provider};

    /// A transport with an answer from the second address only.
    #[derive(Default)]
    struct Fake {
        created: Arc<AtomicUsize>,
    }

    impl Provider for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }
    }

    impl Dials for Fake {
        fn dialling(&self, _: &Endpoint, _: DialContext) -> Result<Rc<dyn Dial>, TransportError> {
            self.created.fetch_add(1, Ordering::SeqCst);
            Ok(Rc::new(AddressDial(|dialled| async move {
                if dialled != address(2) {
                    std::future::pending::<()>().await;
                }
                Ok(Path::pair(1).0)
            })))
        }
    }

    fn address(number: u8) -> SocketAddr {
        ([192, 0, 2, number], 443).into()
    }

    fn provided() -> (Provided, Arc<AtomicUsize>) {
        let fake = Fake::default();
        let created = Arc::clone(&fake.created);
        let mut transports = Transports::default();
        transports.add_dialling(fake);
        let direct = Direct {
            policy: Policy::default(),
            named: None,
            own: OwnListeners::default(),
            options: SocketOptions::default(),
        };
        let endpoint = "http+fake://origin.example:443"
            .parse()
            .expect("an endpoint");
        let options = SocketOptions {
            connect_timeout: Duration::from_secs(30),
            ..SocketOptions::default()
        };
        let (direct, renewals) = (Rc::new(direct), Renewals::default());
        let provided = Provided::new(direct, transports, endpoint, &options, renewals);
        (provided, created)
    }

    /// Returns the result and the seconds of a dial to these addresses.
    async fn dialled(provided: &Provided, addresses: &[u8]) -> (Option<Kind>, u64) {
        let addresses: Vec<_> = addresses.iter().copied().map(address).collect();
        let target = Target::new("origin.example".into(), 443);
        let (begun, isolation) = (Instant::now(), Isolation::none());
        let done = provided.dial_any(&addresses, &target, &isolation).await;
        let failed = done.err().map(|error| error.kind);
        (failed, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_leaves_time_for_the_next() {
        let (provided, _) = provided();
        assert_eq!(dialled(&provided, &[1, 2]).await, (None, 3));
        assert_eq!(dialled(&provided, &[1, 3, 2]).await, (None, 6));
        assert_eq!(dialled(&provided, &[2, 1]).await, (None, 0));
        assert_eq!(dialled(&provided, &[1]).await, (Some(Kind::Timeout), 30));
    }

    #[tokio::test(start_paused = true)]
    async fn transport_to_a_host_is_created_once() {
        let (provided, created) = provided();
        for _ in 0..3 {
            assert_eq!(dialled(&provided, &[1, 2]).await.0, None);
        }
        assert_eq!(created.load(Ordering::SeqCst), 1);
        for port in 1..=MAX_KEPT as u16 {
            provided.transport("origin.example", port).expect("known");
        }
        assert_eq!(provided.kept.borrow().len(), MAX_KEPT);
        assert_eq!(
            dialled(&provided, &[2]).await.0,
            None,
            "it is created again"
        );
        assert_eq!(created.load(Ordering::SeqCst), MAX_KEPT + 2);
    }
}
