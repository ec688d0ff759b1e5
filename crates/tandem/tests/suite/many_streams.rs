//! A pair of proxies over a carrier of many streams. It shows that the carrier interface fits QUIC
//! and DTLS as well as TCP.

pub(crate) mod memory;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tandem::back::announce::Announcer;
use tandem::back::gateways::{Gateway, Gateways, PoolLimits, ToGateway};
use tandem::back::origin::{Limits as OriginLimits, Mode, Origin, ToOrigin};
use tandem::back::own::OwnListeners;
use tandem::back::policy::{Direct, Policy};
use tandem::carrier::{Carrier, CarrierStream, Code, Direction, StreamStopped, Streams};
use tandem::error::{Error, Kind, Side};
use tandem::path::Path;
use tandem::role_name::RoleName;
use tandem::session::Serve;
use tandem::session::http1::Http1Session;
use tandem::session::mux::{Multiplexed, MuxSession};
use tandem::session::streams::StreamsSession;
use tandem::stage::Stage;
use tandem::transport::Target;
use tandem::transport::registry::Transports;
use tandem::transport::tcp::SocketOptions;
use tandem::transport::tls::ClientTls;
use tandem_http::h1::Form;
use tandem_http::{MuxConfig, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{PATIENCE, Pair, block_on, endpoint};
use crate::one_listener::{OneListener, Parts};

use memory::{Connection, MemoryStreams, Network, ROOM};

pub(crate) fn http1(form: Form, who: RoleName) -> Http1Session {
    Http1Session {
        response_timeout: PATIENCE,
        ..Http1Session::new(form, who)
    }
}

fn parts(session: impl Serve + 'static, stage: impl Stage + 'static) -> Parts {
    let stage = Rc::new(stage);
    Parts {
        session: Rc::new(session),
        new_stage: Rc::new(move |_, _, _| Rc::clone(&stage) as _),
    }
}

fn client(network: &Network) -> Parts {
    let gateway = Gateway {
        announcer: Announcer::new("gateway.example:1".into(), "streams".into(), Arc::default()),
        has_token: false,
        target: Target::new("gateway".into(), 1),
        transport: Rc::new(network.clone()),
        session: Rc::new(StreamsSession::new(
            http1(Form::Absolute, RoleName::Client),
            None,
        )),
        blamed: Cell::default(),
        way: Default::default(),
    };
    let limits = PoolLimits {
        reconnect: false,
        compares_ways: false,
        tries: tandem::back::gateways::TRIES,
        max_age: None,
        max_sessions: 10,
    };
    let pool = Gateways::new(vec![gateway], limits, None);
    let front = http1(Form::Absolute, RoleName::Client);
    parts(front, ToGateway(pool))
}

fn gateway() -> Parts {
    let policy = Policy {
        allow: vec!["127.0.0.0/8".parse().expect("a network")],
        ..Policy::default()
    };
    let direct = Direct {
        policy,
        named: None,
        own: OwnListeners::default(),
        options: SocketOptions::default(),
    };
    let h2 = MuxSession::new(
        Multiplexed::H2,
        MuxConfig::new(Role::Client),
        RoleName::Gateway,
    );
    let origin = Origin::new(
        Mode::Forward,
        Rc::new(direct),
        ClientTls::default()
            .connector()
            .expect("public authorities"),
        http1(Form::Origin, RoleName::Gateway),
        Rc::new(h2),
        PATIENCE,
        OriginLimits::default(),
    );
    let session = StreamsSession::new(http1(Form::Origin, RoleName::Gateway), None);
    parts(session, ToOrigin(origin))
}

/// Starts a client and a gateway with a session over a carrier of many streams.
pub(crate) fn pair() -> Pair {
    let network = Network::new();
    let mut transports = Transports::default();
    transports.add(network.clone());
    let listen = endpoint("http+memory://127.0.0.1:0");
    let (gateway, _) = OneListener::start(listen, transports.clone(), |_| gateway());
    let listen = endpoint("http://127.0.0.1:0");
    let (client, http) = OneListener::start(listen, transports, move |_| client(&network));
    Pair::of(client, gateway, http)
}

fn connected() -> (Rc<MemoryStreams>, Rc<MemoryStreams>) {
    let (near, far) = Connection::pair();
    (MemoryStreams::new(near), MemoryStreams::new(far))
}

async fn open(streams: &MemoryStreams, direction: Direction) -> CarrierStream {
    poll_fn(|cx| streams.poll_open(direction, cx))
        .await
        .unwrap()
}

async fn accept(streams: &MemoryStreams) -> Option<CarrierStream> {
    poll_fn(|cx| streams.poll_accept(cx)).await.unwrap()
}

#[test]
fn carrier_streams_flow_and_end_independently() {
    block_on(async {
        let (near, far) = connected();
        let blocked = open(&near, Direction::Unidirectional).await;
        let mut quick = open(&near, Direction::Bidirectional).await;
        assert!(blocked.receive.is_none() && blocked.id != quick.id);
        let mut full = blocked.send.unwrap();
        full.write_all(&[0; ROOM]).await.unwrap();
        let send = quick.send.as_mut().unwrap();
        send.write_all(b"asked").await.unwrap();
        send.shutdown().await.unwrap();
        let (first, second) = (accept(&far).await.unwrap(), accept(&far).await.unwrap());
        assert!(first.send.is_none() && second.id == quick.id);
        let mut text = String::new();
        let read = second.receive.unwrap().read_to_string(&mut text).await;
        assert_eq!((read.unwrap(), text.as_str()), (5, "asked"));
        first.receive.unwrap().stop(Code(7));
        let error = full.write_all(b"more").await.unwrap_err();
        let stopped = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(stopped, Some(&StreamStopped(Code(7))));
        assert_eq!(poll_fn(|cx| full.poll_stopped(cx)).await, Some(Code(7)));
    });
}

#[test]
fn carrier_resets_stream_dropped_before_its_end() {
    block_on(async {
        let (near, far) = connected();
        let mut half = open(&near, Direction::Bidirectional).await;
        half.send
            .as_mut()
            .unwrap()
            .write_all(b"half")
            .await
            .unwrap();
        let path = half.into_path(near.facts()).unwrap();
        path.facts().reset_on_close();
        let mut arrived = accept(&far).await.unwrap().receive.unwrap();
        drop(path);
        let error = arrived.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(Error::io(&error, Side::Peer).kind, Kind::Reset);
        drop(near);
        assert!(accept(&far).await.is_none(), "the connection has ended");
    });
}

#[test]
fn carrier_passes_datagrams() {
    block_on(async {
        let (near, far) = connected();
        assert!(!near.send_datagram(Bytes::from(vec![0; 1201])));
        assert!(near.send_datagram(Bytes::from_static(b"datagram")));
        let datagram = poll_fn(|cx| far.poll_datagram(cx)).await;
        assert_eq!(datagram.as_deref(), Some(&b"datagram"[..]));
    });
}

#[test]
fn session_refuses_the_other_kind_of_carrier() {
    block_on(async {
        let (near, _far) = connected();
        let error = Carrier::Streams(near).into_bytes().unwrap_err();
        assert!(error.detail.contains("one byte stream"), "{error}");
        let path = Path::pair(1).0;
        let error = Carrier::Bytes(path).into_streams().unwrap_err();
        assert!(error.detail.contains("many streams"), "{error}");
    });
}
