//! Requests before the handshake of the carrier is over.

use tandem_http::{Event, Method, Mux, MuxConfig, Priority, RequestHead, Role};

use crate::support::*;

/// Returns the paths of the requests among events.
fn paths(events: &[Event]) -> Vec<String> {
    let paths = events.iter().filter_map(|event| match event {
        Event::Request { head, .. } if head.is_connect() => Some(head.authority.clone()),
        Event::Request { head, .. } => Some(head.path.clone()),
        _ => None,
    });
    paths.map(|path| path.to_string()).collect()
}

fn of(method: Method, path: &str) -> RequestHead {
    RequestHead {
        method,
        ..get(path)
    }
}

fn open(pair: &mut Pair, head: &RequestHead, end: bool) -> u32 {
    let opened = pair.client.core.open(head, end, Priority::default());
    opened.expect("room for a request")
}

#[test]
fn early_client_sends_safe_requests_without_content() {
    let mut pair = Pair::new();
    pair.client.core.begin_early();
    open(&mut pair, &of(Method::Post, "/post"), true);
    let content = open(&mut pair, &get("/content"), false);
    open(&mut pair, &of(Method::Delete, "/delete"), true);
    open(&mut pair, &of(Method::Options, "/options"), true);
    open(&mut pair, &RequestHead::connect("a.example:443"), true);
    open(&mut pair, &get("/get"), true);
    open(&mut pair, &of(Method::Head, "/head"), true);
    let (_, server) = pair.run();
    assert_eq!(paths(&server), ["/get", "/head"]);
    pair.client.core.confirm();
    pair.client.core.send_data(content, bytes(1), true);
    let (_, server) = pair.run();
    let mut rest = paths(&server);
    rest.sort();
    let others = ["/content", "/delete", "/options", "/post", "a.example:443"];
    assert_eq!(rest, others);
}

#[test]
fn early_client_holds_a_safe_request_on_demand() {
    let mut pair = Pair::new();
    pair.client.core.begin_early();
    let held = open(&mut pair, &get("/held"), true);
    pair.client.core.hold(held);
    open(&mut pair, &get("/sent"), true);
    assert_eq!(paths(&pair.run().1), ["/sent"]);
    pair.client.core.confirm();
    assert_eq!(paths(&pair.run().1), ["/held"]);
}

#[test]
fn early_client_forgets_a_request_that_was_cancelled() {
    let mut pair = Pair::new();
    pair.client.core.begin_early();
    let post = open(&mut pair, &of(Method::Post, "/post"), true);
    pair.client.core.reset(post, tandem_http::Reason::Cancel);
    open(&mut pair, &get("/get"), true);
    assert_eq!(paths(&pair.run().1), ["/get"]);
    pair.client.core.confirm();
    assert_eq!(paths(&pair.run().1), [""; 0]);
    assert_eq!(pair.client.core.active(), 1);
}

#[test]
fn early_client_uses_no_setting_of_the_server() {
    let mut pair = Pair::new();
    pair.client.core.begin_early();
    let mut head = get("/");
    head.fields.push("x-long", "v".repeat(200));
    for _ in 0..3 {
        open(&mut pair, &head, true);
    }
    pair.client.drive();
    let sent: Vec<_> = pair.client.flights.keys().copied().collect();
    assert_eq!(sent, [0, 2, 4, 8], "no stream of the encoder");
}

#[test]
fn server_has_no_early_time() {
    let mut pair = Pair::with(client_config(), MuxConfig::new(Role::Server));
    pair.server.core.begin_early();
    let near = open(&mut pair, &get("/"), true);
    let (_, server) = pair.run();
    let Some(Event::Request { id, .. }) = server
        .into_iter()
        .find(|event| matches!(event, Event::Request { .. }))
    else {
        panic!("a request");
    };
    pair.server.core.respond(id, &response(200, &[]), true);
    let (client, _) = pair.run();
    assert!(client.iter().any(|event| matches!(event,
        Event::Response { id, .. } if *id == near)));
}
