//! Tests with a gateway that is a program of others: it sees each request as the client sends it,
//! and closes its sessions at will.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use bytes::{Buf, Bytes};
use tandem_http::h2::Connection;
use tandem_http::{
    ByteMux, Event, Method, Mux, MuxConfig, RequestHead, ResponseHead, Role, SendBuf, StreamId,
};

use super::{Onions, announce, base64, discovered, request};
use crate::harness::{Answer, Client, Scene};

/// A gateway that answers each request, except that a POST ends its session.
struct FakeGateway {
    scene: Scene,
    requests: Receiver<RequestHead>,
}

impl FakeGateway {
    fn new() -> Self {
        let (tell, requests) = mpsc::channel();
        let tell = Mutex::new(tell);
        let scene = Scene::new(move |_, client| {
            let tell = tell.lock().unwrap().clone();
            Session::new(client.stream.into_inner(), tell).run();
        });
        Self { scene, requests }
    }

    /// Returns the requests so far.
    fn requests(&self) -> Vec<RequestHead> {
        self.requests.try_iter().collect()
    }
}

struct Session {
    stream: TcpStream,
    core: Connection,
    tell: Sender<RequestHead>,
}

impl Session {
    fn new(stream: TcpStream, tell: Sender<RequestHead>) -> Self {
        let core = Connection::new(MuxConfig::new(Role::Server));
        Self { stream, core, tell }
    }

    fn run(&mut self) {
        let mut buffer = [0; 16 << 10];
        while self.flush().is_ok() {
            let Ok(count @ 1..) = self.stream.read(&mut buffer) else {
                return;
            };
            if self
                .core
                .handle_input(Instant::now(), &buffer[..count])
                .is_err()
            {
                return;
            }
            while let Some(event) = self.core.poll_event() {
                if let Event::Request { id, head, .. } = event {
                    let is_post = head.method == Method::Post;
                    let _ = self.tell.send(head);
                    if is_post {
                        return;
                    }
                    self.answer(id);
                }
            }
        }
    }

    fn answer(&mut self, id: StreamId) {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-length", "7");
        self.core.respond(id, &head, false);
        self.core
            .send_data(id, Bytes::from_static(b"gateway"), true);
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let mut out = SendBuf::new();
        while self.core.wants_output() {
            self.core.poll_output(&mut out, usize::MAX);
        }
        self.stream.write_all(&out.copy_to_bytes(out.remaining()))
    }
}

/// Starts a network with the site `a.onion`, and reports the requests to its origin.
fn site(gateway: &FakeGateway) -> (Onions, Receiver<String>) {
    let onions = Onions::new();
    let port = gateway.scene.address.port();
    let fields = announce("a.onion", port);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n{fields}\r\ndirect");
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let _ = tell.send(asked.line);
            client.send(&answer);
        }
    });
    onions.serve("a.onion:80", origin.address);
    onions.serve(&format!("a.onion:{port}"), gateway.scene.address);
    (onions, told)
}

fn post(http: std::net::SocketAddr) -> Answer {
    let key = base64("u:x");
    let fields = format!("Proxy-Authorization: Basic {key}\r\nContent-Length: 4\r\n");
    let mut client = Client::to(http);
    client.send(request("POST", "http://a.onion/form", &fields));
    client.send("a=bc");
    client.answer("POST")
}

#[test]
fn gateway_gets_no_key_of_the_browser() {
    let gateway = FakeGateway::new();
    let (onions, _told) = site(&gateway);
    let (_client, http) = onions.client(|_| {});
    discovered(http, "a.onion", "u");
    let requests = gateway.requests();
    assert!(
        requests
            .iter()
            .any(|request| request.authority == "a.onion")
    );
    for request in requests {
        let mut fields = request.fields.iter();
        let is_private = |name: &[u8]| name.starts_with(b"proxy-");
        assert!(!fields.any(|field| is_private(field.name)), "{request:?}");
    }
}

/// The site may have acted on the request, so that only the user can repeat it.
#[test]
fn lost_post_is_an_error_and_not_repeated() {
    let gateway = FakeGateway::new();
    let (onions, told) = site(&gateway);
    let (_client, http) = onions.client(|_| {});
    discovered(http, "a.onion", "u");
    let answer = post(http);
    assert_eq!(answer.status, 502);
    let reason = answer.field("proxy-status").unwrap();
    let lost = ["connection_terminated", "http_response_incomplete"];
    assert!(lost.iter().any(|error| reason.contains(error)), "{reason}");
    let page = String::from_utf8_lossy(&answer.body);
    assert!(page.contains("gateway"), "{page}");
    // The next one goes without the gateway.
    assert_eq!(post(http).body, b"direct");
    let posts = |line: &String| line.starts_with("POST");
    let to_gateway = gateway.requests();
    let to_gateway = to_gateway.iter().filter(|it| it.method == Method::Post);
    assert_eq!(to_gateway.count(), 1);
    assert_eq!(told.try_iter().filter(posts).count(), 1);
}
