//! Pushes: permitted, refused by the client, and not offered.

use bytes::Bytes;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Mux, Priority, Reason};

use super::NORMAL;
use crate::support::{Pair, body, client_config, get, response, server_config};

#[test]
fn pushes() {
    let mut config = client_config();
    config.push = true;
    let mut pair = Pair::with(config, server_config());
    let id = pair
        .client
        .open(&get("/page"), true, NORMAL)
        .expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    let pushed = pair
        .server
        .push(id, &get("/style.css"), Priority(1))
        .expect("a push");
    pair.server.send_data(id, Bytes::from_static(b"page"), true);
    pair.server.respond(
        pushed,
        &response(200, &[("content-type", "text/css")]),
        false,
    );
    pair.server
        .send_data(pushed, Bytes::from_static(b"style"), true);
    let (client, _) = pair.run();
    let place = |what: &dyn Fn(&Event) -> bool| client.iter().position(what).expect("an event");
    let promised = place(
        &|e| matches!(e, Event::Push { parent, id: p, request } if *parent == id && *p == pushed && *request == get("/style.css")),
    );
    assert!(
        promised < place(&|e| matches!(e, Event::Data { id: d, .. } if *d == id)),
        "promise before the data"
    );
    assert_eq!(body(&client, pushed), (b"style".to_vec(), true));
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    assert_eq!(
        pair.server.push(id, &get("/late"), NORMAL),
        Err(OpenError::NoPush),
        "the parent is gone"
    );
}

#[test]
fn a_push_can_be_refused() {
    let mut config = client_config();
    config.push = true;
    let mut pair = Pair::with(config, server_config());
    let id = pair
        .client
        .open(&get("/page"), true, NORMAL)
        .expect("a stream");
    pair.run();
    let pushed = pair
        .server
        .push(id, &get("/style.css"), NORMAL)
        .expect("a push");
    pair.run();
    pair.client.reset(pushed, Reason::Cancel);
    let (_, server) = pair.run();
    assert!(matches!(server[..], [Event::Reset { id, reason: Reason::Cancel }] if id == pushed));
    pair.server.respond(pushed, &response(200, &[]), false);
    let (client, _) = pair.run();
    assert!(client.is_empty());
}

#[test]
fn no_push_where_none_is_taken() {
    let mut pair = Pair::new();
    let id = pair
        .client
        .open(&get("/page"), true, NORMAL)
        .expect("a stream");
    pair.run();
    assert_eq!(
        pair.server.push(id, &get("/style.css"), NORMAL),
        Err(OpenError::NoPush)
    );
}
