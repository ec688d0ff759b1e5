//! The transport `dtls` of endpoints: dialling a gateway, and listening for clients.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use dimpl::DtlsCertificate;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use tandem::carrier::{Carrier, Streams, open_path};
use tandem::endpoint::{BadEndpoint, Endpoint, SessionKind};
use tandem::error::{Error, Kind, Retry, Side};
use tandem::exchange::Isolation;
use tandem::path::Path;
use tandem::transport::registry::{
    DialContext, Dials, ListenContext, Listens, Protocol, Provider, Socket as Bound, TransportError,
};
use tandem::transport::tls::TlsError;
use tandem::transport::{
    CarrierFuture, Dial, Incoming, Listen, Listener, LocalBoxFuture, Target, datagram_address,
};
use tandem_http::Scheme;
use tandem_tunnel::{Algorithm, Config as TunnelConfig, Coupling};
use tokio::sync::{Notify, mpsc};

use crate::association::{Association, OVERHEAD, Settings};
use crate::batch::Batch;
use crate::carrier::{DtlsCarrier, driver};
use crate::certificates::{
    Clients, Identity, anonymous, check_gateway, gateway_verifier, identity,
};
use crate::hub::{Hub, Hubs, Newcomer};
use crate::inbox::Reader;
use crate::kept::{Keeping, Memory};
use crate::port::{Arrived, Port};
use crate::socket::Socket;

/// The largest payload of a UDP datagram to try, in bytes: that of Ethernet with IPv6.
const LARGEST_PAYLOAD: usize = 1452;
/// The streams that a client opens at once, as over HTTP/2.
const CLIENT_STREAMS: usize = 256;
/// The time of silence after which a probe keeps bindings of address translators open.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// The time without a datagram after which an association is lost.
const IDLE: Duration = Duration::from_secs(50);

/// The option of an endpoint that chooses the way in which streams share the path.
const COUPLING: &str = "coupling";

/// The transport `dtls`. All threads share it.
#[derive(Debug, Default)]
pub struct DtlsProvider {
    hubs: Hubs,
}

/// Returns the way in which the streams of an endpoint share the path.
fn coupling(endpoint: &Endpoint) -> Result<Coupling, BadEndpoint> {
    match endpoint.option(COUPLING) {
        None | Some("all") => Ok(Coupling::Coupled),
        Some("stream") => Ok(Coupling::PerStream),
        Some(_) => Err(endpoint.bad("coupling= may be all or stream")),
    }
}

fn settings(
    endpoint: &Endpoint,
    congestion: &str,
    timeout: Duration,
    client_certificates: bool,
) -> Result<Settings, TransportError> {
    let tunnel = TunnelConfig {
        coupling: coupling(endpoint)?,
        algorithm: if congestion == "cubic" {
            Algorithm::Cubic
        } else {
            Algorithm::Bbr
        },
        max_datagram: LARGEST_PAYLOAD - OVERHEAD,
        keep_alive: Some(KEEP_ALIVE),
        idle_timeout: IDLE,
        ..TunnelConfig::default()
    };
    Settings::new(tunnel, timeout, client_certificates)
        .map_err(|problem| TlsError::Config(rustls::Error::General(problem)).into())
}

fn client_settings(endpoint: &Endpoint, context: &DialContext) -> Result<Settings, TransportError> {
    let settings = settings(endpoint, &context.congestion, context.timeout, false)?
        .with_stream_window(context.stream_window)
        .with_wide_responses();
    Ok(match endpoint.session {
        SessionKind::H3 => settings.with_offers(),
        // Without pushes, a gateway opens no streams.
        _ => settings,
    })
}

impl Provider for DtlsProvider {
    fn name(&self) -> &'static str {
        "dtls"
    }

    fn protocol(&self) -> Protocol {
        Protocol::Udp
    }

    fn scheme(&self) -> Scheme {
        Scheme::Https
    }

    fn has_streams(&self) -> bool {
        true
    }

    fn sessions(&self) -> &'static [SessionKind] {
        &[SessionKind::H3, SessionKind::Http]
    }
}

impl Dials for DtlsProvider {
    fn dial_options(&self) -> &'static [&'static str] {
        &["ca", "cert", "key", "sni", COUPLING]
    }

    fn check_dial(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        coupling(endpoint)?;
        endpoint.identity_files().map(drop)
    }

    fn dialling(
        &self,
        endpoint: &Endpoint,
        context: DialContext,
    ) -> Result<Rc<dyn Dial>, TransportError> {
        let own = endpoint.identity_files()?;
        let own = own.map(|(cert, key)| identity(cert, key, &context.renewals));
        let name = endpoint.option("sni").unwrap_or(&endpoint.host).to_owned();
        let name = ServerName::try_from(name)
            .map_err(|_| endpoint.bad("its host name cannot stand in a certificate"))?;
        Ok(Rc::new(Dialling {
            settings: client_settings(endpoint, &context)?,
            verifier: gateway_verifier(endpoint.option("ca"))?,
            identity: own.transpose()?,
            name,
            timeout: context.timeout,
            memory: context.early_data.then(Memory::default),
        }))
    }
}

impl Listens for DtlsProvider {
    fn has_client_certificates(&self) -> bool {
        true
    }

    fn check_listener(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.options(&["cert", "key", COUPLING])?;
        coupling(endpoint)?;
        endpoint.certificate_files().map(drop)
    }

    fn bound(&self, address: SocketAddr) -> Option<Bound> {
        self.hubs.bound(address).map(Bound::Udp)
    }

    fn listening(
        &self,
        endpoint: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError> {
        let (cert, key) = endpoint.certificate_files()?;
        let congestion = context.socket.map(|options| options.congestion);
        let congestion = congestion.unwrap_or_default();
        let clients = context
            .client_ca
            .map(|ca| Clients::new(ca, context.optional_certificate))
            .transpose()?;
        Ok(Box::new(Listening {
            hubs: self.hubs.clone(),
            settings: settings(endpoint, &congestion, context.timeout, clients.is_some())?
                .without_first_window(),
            identity: identity(cert, key, context.renewals)?,
            clients,
            issues_tokens: context.early_data,
        }))
    }
}

/// The dialling end.
struct Dialling {
    settings: Settings,
    verifier: Arc<WebPkiServerVerifier>,
    /// The client's certificate, if it has one.
    identity: Option<Identity>,
    name: ServerName<'static>,
    timeout: Duration,
    /// The knowledge about the gateway, if the client keeps it.
    memory: Option<Memory>,
}

impl Dialling {
    /// Opens an association, over a socket that no other association uses. With an isolation key,
    /// it may show a token of an earlier one.
    async fn connect(
        &self,
        target: &Target,
        isolation: Option<&Isolation>,
    ) -> Result<DtlsCarrier, Error> {
        let address = datagram_address(target)?;
        let failed = |error: &io::Error| {
            Error::io(error, Side::Peer)
                .with_retry(Retry::Safe)
                .with_address(address)
        };
        let socket = Socket::connect(address).map_err(|error| failed(&error))?;
        let own = match &self.identity {
            Some(identity) => DtlsCertificate::clone(&identity.get()),
            None => anonymous()
                .map_err(|error| Error::new(Kind::Tls, Side::Local, error.to_string()))?,
        };
        let verify = check_gateway(Arc::clone(&self.verifier), self.name.clone());
        let (settings, now) = (&self.settings, Instant::now());
        let mut association = Association::connect(settings, own, address, verify, now);
        let memory = self.memory.as_ref().zip(isolation);
        let keeping = memory
            .zip(socket.own_address())
            .map(|((memory, isolation), own)| Keeping::begin(memory, isolation, own));
        let (keeping, earlier) = keeping.unzip();
        if let Some(round_trip) = earlier.as_ref().and_then(|earlier| earlier.round_trip) {
            association.expect_round_trip(round_trip);
        }
        if let Some(token) = earlier.and_then(|earlier| earlier.token) {
            association.show(&token, now);
        }
        let mut driver = driver(association, socket, Side::Peer, CLIENT_STREAMS);
        driver.keeping = keeping;
        let carried = DtlsCarrier::new(driver, ());
        match tokio::time::timeout(self.timeout, carried.connected()).await {
            Ok(connected) => connected.map(|()| carried),
            Err(_) => {
                let detail = "no answer to the DTLS handshake in time: UDP may be blocked on the \
                              way, then use h2+tls";
                Err(Error::new(Kind::Timeout, Side::Peer, detail).with_retry(Retry::Safe))
            }
        }
        .map_err(|error| error.with_address(address))
    }
}

impl Dial for Dialling {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { open_path(&self.connect(target, None).await?).await })
    }

    fn carrier<'a>(&'a self, target: &'a Target, isolation: &'a Isolation) -> CarrierFuture<'a> {
        Box::pin(async move {
            let connected = self.connect(target, Some(isolation)).await?;
            Ok(Carrier::Streams(Rc::new(connected)))
        })
    }

    fn forget(&self, isolation: &Isolation) {
        if let Some(memory) = &self.memory {
            memory.borrow_mut().forget(isolation);
        }
    }
}

/// The listening end.
struct Listening {
    hubs: Hubs,
    settings: Settings,
    identity: Identity,
    clients: Option<Clients>,
    issues_tokens: bool,
}

impl Listen for Listening {
    fn listen(&self, socket: Bound) -> io::Result<Box<dyn Listener>> {
        let socket = socket.into_udp()?;
        let hub = self.hubs.of(&socket)?;
        let port = Rc::new(Port::new(socket)?);
        let (number, newcomers) = hub.add_listener();
        let reading = Rc::new(Reading(Rc::default()));
        let stop = Rc::clone(&reading.0);
        tokio::task::spawn_local(read(Rc::clone(&port), Arc::clone(&hub), number, stop));
        Ok(Box::new(Accepting {
            begun: 0,
            hub,
            number,
            newcomers,
            port,
            settings: self.settings.clone(),
            identity: Arc::clone(&self.identity),
            clients: self.clients.clone(),
            issues_tokens: self.issues_tokens,
            reading,
        }))
    }
}

/// Keeps a listener's socket read, while the listener or an association of its thread is there.
struct Reading(Rc<Notify>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The system calls that read datagrams before other tasks of the thread run. With fewer of them, a
/// flood of handshakes would let datagrams of associations wait in the kernel.
const READS: usize = 16;
/// The datagrams after which no other such call follows: one call may read hundreds of them.
const DATAGRAMS: usize = 1024;

/// Passes the datagrams of one turn of the thread to `take`.
///
/// # Errors
/// See [`Port::receive`].
fn read_turn(port: &Port, mut take: impl FnMut(&Arrived<'_>)) -> io::Result<()> {
    let mut count = 0;
    for _ in 0..READS {
        port.receive(|arrived| {
            count += arrived.datagrams().count();
            take(arrived);
        })?;
        if count >= DATAGRAMS {
            break;
        }
    }
    Ok(())
}

/// Reads the datagrams of a listener until `stop`.
async fn read(port: Rc<Port>, hub: Arc<Hub>, number: u64, stop: Rc<Notify>) {
    let mut replies = Batch::default();
    loop {
        let ready = tokio::select! {
            biased;
            () = stop.notified() => return,
            ready = port.readable() => ready,
        };
        let read = ready
            .and_then(|()| read_turn(&port, |arrived| hub.handle(number, arrived, &mut replies)));
        // A reply that does not fit into the socket is lost, as on the way.
        port.send_now(&mut replies, None);
        match read {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                tracing::debug!(%error, "cannot read a datagram");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            _ => tokio::task::yield_now().await,
        }
    }
}

/// The handshakes that a thread begins before its other tasks run: each costs as much as hundreds
/// of datagrams.
const HANDSHAKES: u32 = 4;

/// Accepts associations on one thread.
struct Accepting {
    /// The handshakes that were begun in this turn of the thread.
    begun: u32,
    hub: Arc<Hub>,
    number: u64,
    newcomers: mpsc::Receiver<Newcomer>,
    port: Rc<Port>,
    settings: Settings,
    identity: Identity,
    clients: Option<Clients>,
    issues_tokens: bool,
    reading: Rc<Reading>,
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.hub.remove_listener(self.number);
    }
}

impl Listener for Accepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        if self.begun == HANDSHAKES {
            self.begun = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Poll::Ready(newcomer) = self.newcomers.poll_recv(cx) else {
            self.begun = 0;
            return Poll::Pending;
        };
        let Some(newcomer) = newcomer else {
            return Poll::Pending;
        };
        self.begun += 1;
        let Newcomer {
            ends,
            inbox,
            route,
            place,
            unproved,
        } = newcomer;
        drop(place);
        let socket = Socket::Shared {
            port: Rc::clone(&self.port),
            reader: Reader::new(inbox),
            separate: None,
        };
        let (settings, identity) = (self.settings.clone(), self.identity.get());
        let (clients, reading) = (self.clients.clone(), Rc::clone(&self.reading));
        let issuer = self.issues_tokens.then(|| Arc::clone(&self.hub));
        let carrier = Box::pin(async move {
            let identity = DtlsCertificate::clone(&identity);
            let now = Instant::now();
            let verify = clients.map(|clients| clients.check());
            let mut association =
                Association::accept(&settings, identity, verify, route.id, ends, now);
            if let Some(hub) = issuer {
                association.issue_tokens(Box::new(move |address| hub.token(address)));
            }
            let most = settings.tunnel.max_streams;
            let driver = driver(association, socket, Side::Client, most);
            let carried = DtlsCarrier::new(driver, (route, reading));
            carried.connected().await?;
            drop(unproved);
            Ok(Carrier::Streams(Rc::new(carried) as Rc<dyn Streams>))
        });
        Poll::Ready(Ok(Incoming {
            address: ends.peer,
            carrier,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tandem::renewal::{Renewable, Renewals};
    use tandem::transport::tcp::Tcp;

    use super::*;
    use crate::certificates::anonymous;
    use crate::envelope::Envelope;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Brings the first datagrams of a client to the hub.
    fn begin(hub: &Arc<Hub>, number: u64, from: SocketAddr) {
        let (nonce, mut bytes, mut replies) = ([1; 8], Vec::new(), Batch::default());
        Envelope::Hello { nonce }.encode(&mut bytes);
        hub.handle(number, &Arrived::one(from, &bytes), &mut replies);
        let Ok(Envelope::Retry { cookie, .. }) = Envelope::decode(&replies.bytes) else {
            panic!("no retry");
        };
        Envelope::Initial {
            nonce,
            cookie,
            records: b"records",
        }
        .encode(&mut bytes);
        hub.handle(number, &Arrived::one(from, &bytes), &mut replies);
    }

    /// A reload that lists an address again may cross the end of its former listener.
    #[test]
    fn address_that_was_handed_over_has_no_listener() {
        let hubs = Hubs::default();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let hub = hubs.of(&socket).expect("a hub");
        let (number, _newcomers) = hub.add_listener();
        assert!(Arc::ptr_eq(&hub, &hubs.of(&socket).expect("the same")));
        let address = socket.local_addr().expect("bound");
        assert!(hubs.bound(address).is_some());
        hub.remove_listener(number);
        let error = hubs.of(&socket).expect_err("it receives nothing");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(hubs.bound(address).is_none());
    }

    #[tokio::test]
    async fn listener_pauses_after_its_bound_of_handshakes() {
        let (port, address) = port();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let hub = Hubs::default().of(&socket).expect("a hub");
        let (number, newcomers) = hub.add_listener();
        for last in 1..=10 {
            let from = SocketAddr::from(([192, 0, 2, last], address.port()));
            begin(&hub, number, from);
        }

        let identity =
            Renewable::new("own".to_owned(), Vec::new(), anonymous).expect("an identity");
        let settings = Settings::new(TunnelConfig::default(), IDLE, false).expect("settings");
        let mut accepting = Accepting {
            begun: 0,
            hub,
            number,
            newcomers,
            port: Rc::new(port),
            settings,
            identity: Arc::new(identity),
            clients: None,
            issues_tokens: true,
            reading: Rc::new(Reading(Rc::default())),
        };
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        for expected in [(4, 1), (4, 2), (2, 2)] {
            let mut begun = 0;
            while accepting.poll_accept(&mut cx).is_ready() {
                begun += 1;
            }
            assert_eq!((begun, woken.0.load(Ordering::Relaxed)), expected);
        }
    }

    #[test]
    fn client_offers_windows_where_its_gateway_may_push() {
        let offered = |endpoint: &str| {
            let context = DialContext {
                streams: Rc::new(Tcp::default()),
                congestion: String::new(),
                stream_window: u32::MAX,
                early_data: false,
                may_move: true,
                timeout: IDLE,
                renewals: Renewals::default(),
            };
            let endpoint = endpoint.parse().expect("an endpoint");
            let settings = client_settings(&endpoint, &context).expect("settings");
            settings.tunnel.offered_streams
        };
        assert_eq!(offered("h3+dtls://gateway.example:443"), 64);
        assert_eq!(offered("http+dtls://gateway.example:443"), 0);
    }

    fn port() -> (Port, SocketAddr) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = socket.local_addr().expect("an address");
        (Port::new(socket).expect("a port"), address)
    }

    /// The kernel keeps the datagrams of one call together, so a few calls read thousands.
    #[tokio::test]
    async fn turn_ends_after_its_bound_of_datagrams() {
        let (receiver, to) = port();
        let (sender, _) = port();
        for _ in 0..60 {
            let mut batch = Batch::default();
            for _ in 0..60 {
                batch.bytes.extend_from_slice(&[1; 12]);
                batch.end(to.into(), false);
            }
            sender.send(&mut batch, None).await.expect("sent");
        }
        receiver.readable().await.expect("datagrams");
        let mut most = 0;
        let mut all = 0;
        loop {
            let mut count = 0;
            let read = read_turn(&receiver, |arrived| count += arrived.datagrams().count());
            (most, all) = (most.max(count), all + count);
            if read.is_err() {
                break;
            }
        }
        assert!(most < DATAGRAMS + 8 * 64, "{most}");
        assert!(all > 2 * DATAGRAMS, "{all}");
    }
}
