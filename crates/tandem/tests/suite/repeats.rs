//! Requests that cross the promises of their resources on the path (`push::gateway::repeats`).

use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};

use tandem_http::{Event, Method, MuxConfig, Priority, RequestHead, Role, Scheme, StreamId, h2};

use tandem_push::wire::{NextPush, companion_request};

use crate::harness::{PATIENCE, Scene, gateway_options, start_gateway};
use crate::limits::Peer;

const PAGE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"1\"\r\n\
                    Content-Length: 19\r\n\r\n<img src=image.png>";
const IMAGE: &str = "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nCache-Control: max-age=600\r\n\
                     Content-Length: 1\r\n\r\nx";
const DONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Reads events until a stream has ended.
fn wait_for_end(peer: &mut Peer, stream: impl Fn(&RequestHead, StreamId) -> bool) {
    let mut pushes = Vec::new();
    loop {
        match peer.event() {
            Event::Push { id, request, .. } if stream(&request, id) => pushes.push(id),
            Event::Data { id, end: true, .. } | Event::Response { id, end: true, .. } => {
                let none = RequestHead::get(Scheme::Http, "", "");
                if pushes.contains(&id) || stream(&none, id) {
                    return;
                }
            }
            Event::Reset { reason, .. } => panic!("reset: {reason:?}"),
            _ => {}
        }
    }
}

/// Returns a client of the gateway that takes pushes.
fn peer(gateway: SocketAddr) -> Peer {
    let config = MuxConfig {
        push: true,
        ..MuxConfig::new(Role::Client)
    };
    let socket = TcpStream::connect(gateway).expect("the gateway listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    Peer {
        core: Box::new(h2::Connection::new(config)),
        socket,
    }
}

/// Sends a browser's request for a page, or for the image that it names.
fn open(peer: &mut Peer, to: &str, method: Method, path: &str) -> StreamId {
    let mut head = RequestHead {
        method,
        ..RequestHead::get(Scheme::Http, to, path)
    };
    let (name, value) = match path {
        "/image.png" => ("referer", format!("http://{to}/")),
        _ => ("accept", "text/html".to_owned()),
    };
    head.fields.push(name, value);
    let id = peer.core.open(&head, true, Priority::default());
    peer.flush();
    id.expect("room for a stream")
}

/// An image is fetched for a push while a POST is under way. The response of the POST may mean
/// that the image has changed, so that a later request for it goes to the origin.
#[test]
fn response_of_a_post_ends_repeats() {
    let (tell, told) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let target = asked.line.trim_end_matches(" HTTP/1.1").to_owned();
            let answer = match target.as_str() {
                "GET /" => PAGE,
                "GET /image.png" => IMAGE,
                _ => DONE,
            };
            let is_post = target.starts_with("POST");
            tell.send(target).expect("the test waits");
            if is_post {
                let released = released.lock().expect("no panic holds it");
                released.recv().expect("the test goes on");
            }
            client.send(answer);
        }
    });
    let (_running, gateway) = start_gateway(gateway_options());
    let mut peer = peer(gateway);
    let to = origin.address.to_string();
    let open = |peer: &mut Peer, method, path: &str| open(peer, &to, method, path);
    let next = || told.recv_timeout(PATIENCE).expect("a request");

    let post = open(&mut peer, Method::Post, "/change");
    assert_eq!(next(), "POST /change");
    open(&mut peer, Method::Get, "/");
    wait_for_end(&mut peer, |promised, _| promised.path == "/image.png");
    assert_eq!([next(), next()], ["GET /", "GET /image.png"]);
    release.send(()).expect("the origin waits");
    wait_for_end(&mut peer, |_, id| id == post);
    let image = open(&mut peer, Method::Get, "/image.png");
    wait_for_end(&mut peer, |_, id| id == image);
    assert_eq!(told.try_recv().as_deref(), Ok("GET /image.png"));
}

/// A request that has crossed the promise of a push, whose head waits at the gateway.
struct Crossed {
    peer: Peer,
    /// The stream of the request.
    image: StreamId,
    /// The stream of the push.
    promised: Option<StreamId>,
    origin: Scene,
    told: mpsc::Receiver<String>,
    _running: Box<dyn std::any::Any>,
}

impl Crossed {
    /// Returns the next request that the origin receives.
    fn next(&self) -> String {
        self.told.recv_timeout(PATIENCE).expect("a request")
    }
}

/// No cache may keep the image, so the head of its push waits for a request at the gateway. A
/// request that crosses the promise gets the response, and the push ends.
#[test]
fn withheld_response_answers_a_crossing_request() {
    let mut crossed = cross_withheld(&[]);
    let (mut is_reset, mut body) = (false, None);
    while !is_reset || body.is_none() {
        match crossed.peer.event() {
            Event::Reset { id, .. } if Some(id) == crossed.promised => is_reset = true,
            Event::Response { id, head, .. } if id == crossed.image => {
                assert_eq!((head.status, head.fields.get("tandem-asked")), (200, None));
            }
            Event::Data { id, data, .. } if id == crossed.image => body = Some(data),
            _ => {}
        }
    }
    assert_eq!(body.as_deref(), Some(&b"x"[..]));
    let to = crossed.origin.address.to_string();
    open(&mut crossed.peer, &to, Method::Get, "/end");
    assert_eq!(crossed.next(), "GET /end", "the image was requested once");
}

/// The client has compared the push with the request, and marks the next one.
#[test]
fn withheld_response_answers_no_refusing_request() {
    let crossed = cross_withheld(&[("tandem-asked-again", "1")]);
    assert_eq!(crossed.next(), "GET /image.png");
}

/// Requests the image with further fields after the head of its push has come.
fn cross_withheld(fields: &[(&str, &str)]) -> Crossed {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let target = asked.line.trim_end_matches(" HTTP/1.1").to_owned();
            let answer = match target.as_str() {
                "GET /" => PAGE.to_owned(),
                "GET /image.png" => IMAGE.replace("max-age=600", "no-store"),
                _ => DONE.to_owned(),
            };
            tell.send(target).expect("the test waits");
            client.send(&answer);
        }
    });
    let (running, gateway) = start_gateway(gateway_options());
    let mut peer = peer(gateway);
    let to = origin.address.to_string();
    let companion = companion_request(true, NextPush::Off);
    let companion = peer.core.open(&companion, false, Priority::default());
    assert!(companion.is_ok(), "room for a stream");
    peer.flush();
    open(&mut peer, &to, Method::Get, "/");
    let next = || told.recv_timeout(PATIENCE).expect("a request");
    assert_eq!([next(), next()], ["GET /", "GET /image.png"]);
    // The head of the push has come before the response to a later request.
    let probe = open(&mut peer, &to, Method::Get, "/probe");
    assert_eq!(next(), "GET /probe");
    let mut promised = None;
    loop {
        match peer.event() {
            Event::Push { id, request, .. } if request.path == "/image.png" => promised = Some(id),
            Event::Response { id, .. } if id == probe => break,
            _ => {}
        }
    }
    let mut asked = RequestHead::get(Scheme::Http, to.as_str(), "/image.png");
    asked.fields.push("accept", "*/*");
    asked.fields.push("referer", format!("http://{to}/"));
    for (name, value) in fields {
        asked.fields.push(name, *value);
    }
    let image = peer.core.open(&asked, true, Priority::default());
    let image = image.expect("room for a stream");
    peer.flush();
    Crossed {
        peer,
        image,
        promised,
        origin,
        told,
        _running: Box::new(running),
    }
}
