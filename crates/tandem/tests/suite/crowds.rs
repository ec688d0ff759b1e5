//! Tests of a shared cache with a thousand simultaneous requests for one URL, over several sessions
//! and both workers of a gateway (RFC 9111 section 4, the collapsing of requests).

use std::collections::{HashMap, HashSet};
use std::net::TcpStream;
use std::sync::{Arc, Barrier};

use tandem::config::GatewayOptions;
use tandem_http::{Event, MuxConfig, Priority, RequestHead, Role, Scheme, StreamId, h2};

use crate::caching::{Caching, with_fields};
use crate::harness::{Asked, Gate, PATIENCE, endpoint};
use crate::limits::Peer;

/// The number of sessions. Each has its limit of connections to one origin, so that few streams of
/// each session can go there at once.
const SESSIONS: usize = 20;

/// The number of simultaneous requests of a session.
const STREAMS: usize = 50;

const ALL: usize = SESSIONS * STREAMS;

/// A response as a session received it.
#[derive(Default)]
struct Received {
    cache_status: String,
    body: Vec<u8>,
}

/// Starts a gateway with two threads and HTTP/2 sessions.
fn start(answer: impl Fn(usize, &Asked) -> String + Send + Sync + 'static) -> Caching {
    // Both ends of a thousand connections to the origin are in this process.
    rlimit::increase_nofile_limit(8 * ALL as u64).unwrap();
    Caching::with(answer, true, |options: &mut GatewayOptions| {
        options.listen = vec![endpoint("h2+tcp://127.0.0.1:0")];
        options.workers = Some(2);
        options.cache_status = Some(true);
    })
}

/// Sends all requests, each session's in one write.
fn ask(caching: &Caching) -> Vec<Peer> {
    let connect = |_| {
        let socket = TcpStream::connect(caching.gateway).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let core = Box::new(h2::Connection::new(MuxConfig::new(Role::Client)));
        Peer { core, socket }
    };
    let mut sessions: Vec<Peer> = (0..SESSIONS).map(connect).collect();
    for session in &mut sessions {
        for _ in 0..STREAMS {
            open(session, caching, "/crowd");
        }
        session.flush();
    }
    sessions
}

fn open(session: &mut Peer, caching: &Caching, path: &str) -> StreamId {
    let head = RequestHead::get(Scheme::Http, caching.origin.address.to_string(), path);
    session.core.open(&head, true, Priority::default()).unwrap()
}

/// Waits until the gateway has seen all requests. It handles those of a session in order, and has
/// answered a later one of each.
fn settle(caching: &Caching, sessions: &mut [Peer]) {
    let ask = |(number, session): (usize, &mut Peer)| {
        let last = open(session, caching, &format!("/settled/{number}"));
        session.flush();
        last
    };
    let last: Vec<StreamId> = sessions.iter_mut().enumerate().map(ask).collect();
    for (session, last) in sessions.iter_mut().zip(last) {
        loop {
            match session.event() {
                Event::Response { id, .. } => assert_eq!(id, last),
                Event::Data { end: true, .. } => break,
                _ => {}
            }
        }
    }
}

/// Reads all responses, which must be complete.
fn read(sessions: &mut [Peer]) -> Vec<Received> {
    sessions.iter_mut().flat_map(read_session).collect()
}

fn read_session(session: &mut Peer) -> Vec<Received> {
    let mut open: HashMap<StreamId, Received> = HashMap::new();
    let mut complete = Vec::new();
    while complete.len() < STREAMS {
        let ended = match session.event() {
            Event::Response { id, head, end } => {
                assert_eq!(head.status, 200);
                let status = head.fields.get("cache-status").unwrap();
                let cache_status = String::from_utf8(status.to_vec()).unwrap();
                let body = Vec::new();
                open.insert(id, Received { cache_status, body });
                end.then_some(id)
            }
            Event::Data { id, data, end } => {
                session.core.release(id, data.len());
                open.get_mut(&id).unwrap().body.extend_from_slice(&data);
                end.then_some(id)
            }
            Event::Reset { reason, .. } => panic!("reset: {reason:?}"),
            _ => None,
        };
        complete.extend(ended.and_then(|id| open.remove(&id)));
    }
    complete
}

#[test]
fn thousand_waiters_cause_one_origin_request() {
    let gate = Arc::new(Gate::default());
    let opened = Arc::clone(&gate);
    let caching = start(move |number, asked| {
        if asked.line.contains("/settled/") {
            return with_fields("Cache-Control: no-store\r\n", "yes");
        }
        opened.wait();
        let body = format!("{number}{}", "x".repeat(2_000));
        with_fields("Cache-Control: max-age=3600\r\n", &body)
    });
    let mut sessions = ask(&caching);
    settle(&caching, &mut sessions);
    gate.open();
    let received = read(&mut sessions);
    assert_eq!(received.len(), ALL);
    assert!(received.iter().all(|it| it.body == received[0].body));
    assert_eq!(caching.requests(), 1 + SESSIONS);
    let have = |text: &str| {
        let has = |it: &&Received| it.cache_status.contains(text);
        received.iter().filter(has).count()
    };
    assert_eq!(have("fwd-status=200; stored"), 1);
    assert_eq!(have("; collapsed"), ALL - 1);
}

#[test]
fn thousand_requests_for_a_no_store_url_run_at_once() {
    // The first response shows that nobody may share it. The origin then responds to the others
    // only when all of them have arrived.
    let together = Barrier::new(ALL - 1);
    let caching = start(move |number, _| {
        if number > 1 {
            together.wait();
        }
        with_fields("Cache-Control: no-store\r\n", &number.to_string())
    });
    let received = read(&mut ask(&caching));
    let bodies: HashSet<Vec<u8>> = received.into_iter().map(|it| it.body).collect();
    assert_eq!((bodies.len(), caching.requests()), (ALL, ALL));
}
