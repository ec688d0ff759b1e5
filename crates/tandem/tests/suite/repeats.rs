//! Requests that cross the promises of their resources on the path (`push::gateway::repeats`).

use std::net::TcpStream;
use std::sync::{Mutex, mpsc};

use tandem_http::{Event, Method, MuxConfig, Priority, RequestHead, Role, Scheme, StreamId, h2};

use crate::harness::{PATIENCE, Scene, gateway_options, start_gateway};
use crate::limits::Peer;

const PAGE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 19\r\n\r\n\
                    <img src=image.png>";
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
    let config = MuxConfig {
        push: true,
        ..MuxConfig::new(Role::Client)
    };
    let socket = TcpStream::connect(gateway).expect("the gateway listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut peer = Peer {
        core: Box::new(h2::Connection::new(config)),
        socket,
    };
    let to = origin.address.to_string();
    let open = |peer: &mut Peer, method, path: &str| {
        let mut head = RequestHead {
            method,
            ..RequestHead::get(Scheme::Http, to.as_str(), path)
        };
        let (name, value) = match path {
            "/image.png" => ("referer", format!("http://{to}/")),
            _ => ("accept", "text/html".to_owned()),
        };
        head.fields.push(name, value);
        let id = peer.core.open(&head, true, Priority::default());
        peer.flush();
        id.expect("room for a stream")
    };
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
