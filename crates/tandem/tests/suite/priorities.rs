//! Tests of the urgency of a request (RFC 9218), which decides its place in the gateway's queue for
//! an origin.

use std::sync::mpsc;

use tandem_http::{Event, Method, Priority, RequestHead, Scheme, StreamId};

use tandem::transport::registry::Transports;

use crate::harness::{PATIENCE, Scene, endpoint, gateway_options, start_gateway, start_relay};
use crate::limits::Peer;

/// A gateway with two connections to an origin, the fewest that it can have, and a session with it
/// directly or through a relay.
/// The origin delays each response to `/held...` until the test releases it.
struct Queue {
    peer: Peer,
    authority: String,
    /// The paths of the requests at the origin.
    asked: mpsc::Receiver<String>,
    release: mpsc::Sender<()>,
    is_relayed: bool,
    _running: [tandem::runtime::Running; 2],
}

impl Queue {
    fn start(is_relayed: bool) -> Self {
        let (told, asked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        let origin = Scene::new(move |_, mut client| {
            while let Some(request) = client.request() {
                let path = request.line.split(' ').nth(1).unwrap().to_owned();
                let is_held = path.starts_with("/held");
                told.send(path).unwrap();
                if is_held {
                    released.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                }
                client.send("HTTP/1.1 204 No Content\r\n\r\n");
            }
        });
        let mut options = gateway_options();
        options.listen = vec![endpoint("h2+tcp://127.0.0.1:0")];
        options.max_connections_per_origin = Some(2);
        let (running, gateway) = start_gateway(options);
        let next = format!("h2+tcp://{gateway}");
        let transports = Transports::default();
        let (relay, relayed) = start_relay("h2+tcp://127.0.0.1:0", &next, &transports, |_| {});
        let first = if is_relayed { relayed } else { gateway };
        Self {
            peer: Peer::to(first, "h2"),
            authority: origin.address.to_string(),
            asked,
            release,
            is_relayed,
            _running: [running, relay],
        }
    }

    fn ask(&mut self, path: &str, urgency: u8) -> StreamId {
        let mut head = RequestHead::get(Scheme::Http, self.authority.clone(), path);
        head.fields.push("priority", format!("u={urgency}"));
        let core = &mut self.peer.core;
        let id = core.open(&head, true, Priority(urgency)).unwrap();
        self.peer.flush();
        id
    }

    fn next(&self) -> String {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }

    /// Waits until the gateway has processed every frame that was sent. A relay passes a change of
    /// priority on when its task runs, which is before the second request.
    fn settle(&mut self) {
        for _ in 0..2 {
            let authority = self.authority.clone();
            let mut head = RequestHead::get(Scheme::Http, authority, "/");
            head.method = Method::Options;
            let hops = if self.is_relayed { "1" } else { "0" };
            head.fields.push("max-forwards", hops);
            let core = &mut self.peer.core;
            let asked = core.open(&head, true, Priority(0)).unwrap();
            self.peer.flush();
            while !matches!(self.peer.event(), Event::Response { id, .. } if id == asked) {}
        }
    }
}

#[test]
fn priority_update_moves_request_in_origin_queue() {
    for is_relayed in [false, true] {
        let mut queue = Queue::start(is_relayed);
        for path in ["/held-1", "/held-2"] {
            queue.ask(path, 3);
            assert_eq!(queue.next(), path);
        }
        queue.ask("/second", 3);
        let third = queue.ask("/third", 3);
        queue.settle();
        queue.peer.core.set_priority(third, Priority(0));
        queue.settle();
        queue.release.send(()).unwrap();
        assert_eq!([queue.next(), queue.next()], ["/third", "/second"]);
        queue.release.send(()).unwrap();
    }
}

#[test]
fn request_of_low_urgency_is_not_queued_as_push() {
    for is_relayed in [false, true] {
        let mut queue = Queue::start(is_relayed);
        // Pushes get at most half of the connections, which is one.
        for path in ["/held-1", "/held-2"] {
            queue.ask(path, 6);
            assert_eq!(queue.next(), path);
        }
        queue.release.send(()).unwrap();
        queue.release.send(()).unwrap();
    }
}
