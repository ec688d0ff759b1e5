//! Both ends of a bridge under test: an origin and a visitor, each in any session protocol.
//!
//! Both use the library's sessions. Other suites test these against foreign programs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tandem::config::BridgeOptions;
use tandem::endpoint::Endpoint;
use tandem::error::Error;
use tandem::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply};
use tandem::priority::SharedPriority;
use tandem::renewal::Renewals;
use tandem::role_name::RoleName;
use tandem::runtime::Running;
use tandem::session::http1::Http1Session;
use tandem::session::mux::{Multiplexed, MuxSession};
use tandem::session::{Connect, Connected, Serve};
use tandem::transport::registry::{DialContext, Transports};
use tandem::transport::tcp::Tcp;
use tandem::transport::tls::self_signed::self_signed;
use tandem::transport::{Dial, Target};
use tandem_http::h1::Form;
use tandem_http::{Fields, MuxConfig, RequestHead, ResponseHead, Role, Scheme};

use super::origin::Script;
use crate::harness::{PATIENCE, running};
use crate::one_listener::{OneListener, Parts, STREAMS};

/// The transports of the program.
pub(super) fn transports() -> Transports {
    let mut transports = Transports::default();
    transports.add(tandem_quic::QuicProvider::default());
    transports
}

/// The file of the certificate for 127.0.0.1, and that of its key.
static IDENTITY: LazyLock<(String, String)> = LazyLock::new(|| {
    let pair = self_signed("127.0.0.1", std::time::SystemTime::now()).expect("an address");
    let file = |name: &str, text: &str| {
        let path =
            std::env::temp_dir().join(format!("tandem-bridge-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("a temporary file");
        path.display().to_string()
    };
    (
        file("cert.pem", &pair.certificate),
        file("key.pem", &pair.key),
    )
});

/// Returns the path of the certificate, which is its own authority.
pub(super) fn authority() -> &'static str {
    &IDENTITY.0
}

fn is_secure(scheme: &str) -> bool {
    scheme.ends_with("+tls") || scheme.ends_with("+quic")
}

/// Returns the endpoint of a listener on a port that the system chooses.
pub(super) fn listener(scheme: &str) -> Endpoint {
    let url = format!("{scheme}://127.0.0.1:0");
    let endpoint: Endpoint = url.parse().expect("an endpoint");
    if !is_secure(scheme) {
        return endpoint;
    }
    let (cert, key) = &*IDENTITY;
    endpoint.with_option("cert", cert).with_option("key", key)
}

/// Returns the endpoint of a server, for one that dials it.
pub(super) fn server(scheme: &str, address: SocketAddr) -> Endpoint {
    let endpoint: Endpoint = format!("{scheme}://{address}")
        .parse()
        .expect("an endpoint");
    match is_secure(scheme) {
        true => endpoint.with_option("ca", authority()),
        false => endpoint,
    }
}

fn http1(form: Form, scheme: Scheme) -> Http1Session {
    Http1Session {
        response_timeout: PATIENCE,
        scheme,
        ..Http1Session::new(form, RoleName::Gateway)
    }
}

/// A session protocol with both halves.
trait Protocol: Connect + Serve {}

impl<P: Connect + Serve> Protocol for P {}

fn session(endpoint: &Endpoint, form: Form) -> Rc<dyn Protocol> {
    let Some(protocol) = Multiplexed::of(endpoint.session) else {
        let scheme = match is_secure(&endpoint.scheme()) {
            true => Scheme::Https,
            false => Scheme::Http,
        };
        return Rc::new(http1(form, scheme));
    };
    let config = MuxConfig {
        max_streams: STREAMS,
        ..MuxConfig::new(Role::Client)
    };
    Rc::new(MuxSession::new(protocol, config, RoleName::Gateway))
}

/// Starts an origin with one protocol, which plays a script.
pub(super) fn start_origin(scheme: &str, script: &Arc<Script>) -> (Running, SocketAddr) {
    let script = Arc::clone(script);
    OneListener::start(listener(scheme), transports(), move |listen| {
        let script = Arc::clone(&script);
        Parts {
            session: session(listen, Form::Origin),
            new_stage: Rc::new(move |_, _, connection| {
                // Each connection counts as admitted.
                connection.authenticate();
                let script = Arc::clone(&script);
                Rc::new(move |exchange: Exchange| script.answer(exchange))
            }),
        }
    })
}

/// Starts a bridge with one listener, which serves this machine only.
pub(super) fn bridge(
    front: &str,
    change: impl FnOnce(&mut BridgeOptions),
) -> (Running, SocketAddr) {
    let listen = listener(front);
    let mut options = BridgeOptions {
        listen: vec![listen.clone()],
        open: Some(true),
        workers: Some(1),
        ..BridgeOptions::default()
    };
    change(&mut options);
    let config = options.typed_with(&transports());
    running(config.expect("valid options"), &listen)
}

/// A client of a bridge: one multiplexed session, or a connection for each exchange of HTTP/1.1.
pub(super) struct Visitor {
    target: Target,
    transport: Rc<dyn Dial>,
    session: Rc<dyn Connect>,
    is_multiplexed: bool,
    shared: RefCell<Option<Rc<dyn Connected>>>,
}

impl Visitor {
    /// Creates a visitor. With `proxy`, HTTP/1.1 sends targets in absolute form.
    pub(super) fn new(scheme: &str, address: SocketAddr, proxy: bool) -> Self {
        let endpoint = server(scheme, address);
        let transports = transports();
        let provider = transports.to_dial(&endpoint).expect("a known transport");
        let tcp = Tcp::default();
        let context = DialContext {
            streams: Rc::new(tcp),
            congestion: String::new(),
            stream_window: u32::MAX,
            early_data: false,
            may_move: false,
            timeout: PATIENCE,
            renewals: Renewals::default(),
        };
        let form = if proxy { Form::Absolute } else { Form::Origin };
        Self {
            target: Target {
                address: Some(address),
                ..Target::new(endpoint.host.clone(), endpoint.port)
            },
            transport: provider.dialling(&endpoint, context).expect("dials"),
            session: session(&endpoint, form),
            is_multiplexed: Multiplexed::of(endpoint.session).is_some(),
            shared: RefCell::default(),
        }
    }

    fn connect(&self) -> Rc<dyn Connected> {
        let (transport, target) = (Rc::clone(&self.transport), self.target.clone());
        self.session.connect(Box::pin(async move {
            let isolation = Isolation::none();
            transport.carrier(&target, &isolation).await
        }))
    }

    fn connected(&self) -> Rc<dyn Connected> {
        if !self.is_multiplexed {
            return self.connect();
        }
        let mut shared = self.shared.borrow_mut();
        Rc::clone(shared.get_or_insert_with(|| self.connect()))
    }

    /// Sends a request with a body, if there is one.
    pub(super) fn send(&self, request: RequestHead, body: Body) -> Reply {
        let connected = self.connected();
        Reply::generate(|mut sink| async move {
            let mut exchange = Exchange {
                request: Arc::new(request),
                body,
                isolation: Isolation::none(),
                peer: Peer::none(),
                priority: SharedPriority::default(),
            };
            connected.run(&mut exchange, &mut sink).await
        })
    }
}

/// A body of known pieces.
pub(super) struct Pieces(pub(super) VecDeque<Chunk>);

impl Chunks for Pieces {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// A response as a visitor receives it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) hints: Vec<ResponseHead>,
    pub(super) status: u16,
    pub(super) fields: Fields,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Fields,
    /// True if the response ended with an error.
    pub(super) is_broken: bool,
}

impl Answer {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.fields.get(name)?).ok()
    }
}

/// Reads a whole response.
pub(super) async fn read(mut reply: Reply) -> Answer {
    let mut answer = Answer::default();
    let all = async {
        while let Some(part) = reply.part().await {
            match part {
                Ok(Part::Hints(head)) => answer.hints.push(head),
                Ok(Part::Head(head)) => (answer.status, answer.fields) = (head.status, head.fields),
                Ok(Part::Data(data)) => answer.body.extend_from_slice(&data),
                Ok(Part::Trailers(fields)) => answer.trailers = fields,
                Ok(Part::Pushed(_)) => panic!("a bridge pushes nothing"),
                Ok(Part::Closed) => {}
                Err(_) => answer.is_broken = true,
            }
        }
    };
    within(all).await;
    answer
}

/// Waits for an event. The longest wait fails the test.
pub(super) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the event comes in time")
}

/// Returns bytes that differ from place to place.
pub(super) fn content(length: usize) -> Bytes {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// A short pause for drained roles.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
