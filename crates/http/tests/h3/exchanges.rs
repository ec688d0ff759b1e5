//! Two HTTP/3 cores against each other, over streams that arrive in any order and cut anywhere.

mod broken;
mod ends;
mod messages;
mod order;
mod plans;
mod pushes;

use tandem_http::{Event, Method, Mux, Priority, RequestHead};

use crate::support::*;

fn request(events: &[Event]) -> (u32, &RequestHead, bool, Priority) {
    let mut requests = events.iter().filter_map(|event| match event {
        Event::Request {
            id,
            head,
            end,
            priority,
        } => Some((*id, head, *end, *priority)),
        _ => None,
    });
    requests.next().expect("a request")
}

fn open(pair: &mut Pair, path: &str) -> u32 {
    let opened = pair.client.core.open(&get(path), true, Priority(2));
    opened.expect("room for a request")
}

/// Opens a request and returns its number at both ends.
fn asked(pair: &mut Pair) -> (u32, u32) {
    let near = open(pair, "/");
    let (_, server) = pair.run();
    (near, request(&server).0)
}

/// Opens a request with content, and returns its stream and the server's events.
fn open_upload(pair: &mut Pair) -> (u32, Vec<Event>) {
    let mut head = get("/upload");
    head.method = Method::Post;
    let opened = pair.client.core.open(&head, false, Priority(3));
    let (_, server) = pair.run();
    (opened.expect("room"), server)
}
