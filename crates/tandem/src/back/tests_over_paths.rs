//! Tests of connections to origins over paths within the process: visitors of one reverse gateway
//! share HTTP/2 sessions with its origin.

use std::cell::Cell;
use std::future::ready;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::h1::Form;
use tandem_http::{MuxConfig, RequestHead, ResponseHead, Role, Scheme};

use super::doubles::Negotiated;
use super::origin::{Limits, Mode, Origin, ToOrigin};
use crate::error::Kind;
use crate::exchange::{Exchange, Part, Peer, Reply};
use crate::hosts::HostPattern;
use crate::path::Path;
use crate::session::http1::Http1Session;
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::{Drain, Serve};
use crate::stage::Stage;
use crate::transport::doubles::{FakeDial, served};
use crate::transport::tls::ClientTls;
use crate::transport::{Dial, Target};

/// An origin over HTTP/2. It never responds to requests for `/stall`.
#[derive(Default)]
struct Stalling {
    dialled: Cell<usize>,
    stalled: Cell<usize>,
}

impl Stalling {
    fn respond(&self, exchange: Exchange) -> Reply {
        if exchange.request.path != "/stall" {
            return Reply::ready(ResponseHead::new(200), Bytes::from_static(b"ok"));
        }
        self.stalled.set(self.stalled.get() + 1);
        Reply::generate(|_sink| std::future::pending())
    }
}

fn peer(session: u64) -> Peer {
    Peer {
        session,
        ..Peer::none()
    }
}

fn h2(max_streams: u32) -> MuxSession {
    let config = MuxConfig {
        max_streams,
        ..MuxConfig::new(Role::Client)
    };
    MuxSession::new(Multiplexed::H2, config, crate::role_name::RoleName::Gateway)
}

/// Returns a stage that reaches its origins by `transport`.
pub(super) fn to_origin(mode: Mode, transport: Rc<dyn Dial>, limits: Limits) -> ToOrigin {
    ToOrigin(Origin::new(
        mode,
        transport,
        ClientTls::default()
            .connector()
            .expect("public authorities"),
        Http1Session::new(Form::Origin, crate::role_name::RoleName::Gateway),
        Rc::new(h2(256)),
        Duration::from_secs(30),
        limits,
    ))
}

/// A reverse gateway in front of an origin that allows `streams` streams on each session.
fn gateway(streams: u32, per_origin: usize) -> (Rc<Stalling>, ToOrigin) {
    let limits = Limits {
        per_origin,
        ..Limits::default()
    };
    limited_gateway(streams, limits)
}

fn limited_gateway(streams: u32, limits: Limits) -> (Rc<Stalling>, ToOrigin) {
    let origin = Rc::<Stalling>::default();
    let (session, seen) = (h2(streams), Rc::clone(&origin));
    let transport = FakeDial::new(move |_| {
        seen.dialled.set(seen.dialled.get() + 1);
        let responding = Rc::clone(&seen);
        let stage = Rc::new(move |exchange| responding.respond(exchange));
        let near = served(|far| session.serve(far.into(), peer(0), stage, Drain::new()));
        ready(Ok(Path::new(near, Rc::new(Negotiated))))
    });
    let mode = Mode::Reverse {
        scheme: Scheme::Http,
        target: Target::new("origin.example".into(), 80),
        hosts: vec![HostPattern::Any],
    };
    (origin, to_origin(mode, transport, limits))
}

fn ask(gateway: &ToOrigin, visitor: u64, path: &str) -> Reply {
    gateway.call(Exchange {
        peer: peer(visitor),
        ..Exchange::internal(RequestHead::get(Scheme::Http, "site.example", path))
    })
}

/// Requests stalled responses, and waits until `count` of them have reached the origin.
async fn stall(gateway: &ToOrigin, origin: &Stalling, visitor: u64, requests: usize, count: usize) {
    for _ in 0..requests {
        let mut reply = ask(gateway, visitor, "/stall");
        tokio::task::spawn_local(async move { reply.part().await });
    }
    while origin.stalled.get() < count {
        tokio::task::yield_now().await;
    }
}

async fn status(mut reply: Reply) -> u16 {
    match reply.part().await {
        Some(Ok(Part::Head(head))) => head.status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn full_h2_session_gets_a_second_one() {
    let local = tokio::task::LocalSet::new();
    let test = async {
        let (origin, gateway) = gateway(4, 64);
        assert_eq!(status(ask(&gateway, 1, "/")).await, 200);
        stall(&gateway, &origin, 1, 4, 4).await;
        assert_eq!(status(ask(&gateway, 2, "/")).await, 200);
        assert_eq!(origin.dialled.get(), 2);
    };
    local.run_until(test).await;
}

#[tokio::test(flavor = "current_thread")]
async fn visitor_gets_a_share_of_an_h2_session() {
    let local = tokio::task::LocalSet::new();
    let test = async {
        let (origin, gateway) = gateway(8, 3);
        assert_eq!(status(ask(&gateway, 1, "/")).await, 200);
        stall(&gateway, &origin, 1, 8, 3).await;
        assert_eq!(status(ask(&gateway, 2, "/")).await, 200);
        assert_eq!((origin.stalled.get(), origin.dialled.get()), (3, 1));
    };
    local.run_until(test).await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn stalled_exchanges_of_many_visitors_are_bounded() {
    let local = tokio::task::LocalSet::new();
    let test = async {
        let limits = Limits {
            per_origin: 4,
            per_session: 4,
            lasting: 10,
        };
        let (origin, gateway) = limited_gateway(256, limits);
        let open = Rc::new(Cell::new(0));
        let request = |visitor| {
            let (mut reply, open) = (ask(&gateway, visitor, "/stall"), Rc::clone(&open));
            open.set(open.get() + 1);
            tokio::task::spawn_local(async move {
                let part = reply.part().await;
                assert!(matches!(part, Some(Err(error)) if error.kind == Kind::Reset));
                open.set(open.get() - 1);
            })
        };
        let single = request(0);
        let rest: Vec<_> = (0..40).map(|number| request(1 + number / 4)).collect();
        while origin.stalled.get() < 41 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(status(ask(&gateway, 99, "/")).await, 200);
        assert!(open.get() <= 10 + 4, "{}", open.get());
        assert!(!single.is_finished(), "it is the only one of its visitor");
        assert!(rest.iter().any(tokio::task::JoinHandle::is_finished));
    };
    local.run_until(test).await;
}
