//! Pushes: their place among other data, and the clients that take them.

use tandem_http::mux::OpenError;
use tandem_http::{Event, Method, Mux as _, Priority, Reason, Role};
use tandem_spdy::Version;

use super::{BOTH, body_of};
use crate::support::{Pair, body, config, get, response};

#[test]
fn a_push_comes_before_its_parents_answer() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let mut head = get("/");
        head.fields.push("accept-language", "eo");
        let parent = pair
            .client
            .open(&head, true, Priority::default())
            .expect("room");
        pair.settle();
        let push = pair
            .server
            .push(parent, &get("/style.css"), Priority(5))
            .expect("taken");
        assert_eq!(push, 2);
        pair.server.respond(parent, &response(200, &[]), false);
        pair.server.send_data(parent, body(100), true);
        pair.server
            .respond(push, &response(200, &[("content-type", "text/css")]), false);
        pair.server.send_data(push, body(50), true);
        pair.settle();
        let events = pair.take_client();
        let Event::Push {
            parent: of,
            id,
            request,
        } = &events[0]
        else {
            panic!("{events:?}")
        };
        assert_eq!((*of, *id, &*request.path), (parent, push, "/style.css"));
        assert_eq!(request.fields.get("accept-language"), Some(&b"eo"[..]));
        let pushed = events.iter().find_map(|event| match event {
            Event::Response {
                id,
                head,
                end: false,
            } if *id == push => Some(head),
            _ => None,
        });
        assert_eq!(pushed.map(|head| head.status), Some(200));
        assert_eq!(
            pushed.and_then(|head| head.fields.get("content-type")),
            Some(&b"text/css"[..])
        );
        assert_eq!(body_of(&events, push), (body(50).to_vec(), true));
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn an_empty_push_ends_with_its_head() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let push = pair
        .server
        .push(parent, &get("/empty"), Priority(5))
        .expect("taken");
    pair.server
        .respond(push, &response(200, &[("x-a", "b")]), true);
    pair.settle();
    let events = pair.take_client();
    assert!(
        matches!(
            &events[..],
            [Event::Push { .. }, Event::Response { end: true, .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn a_push_of_another_status_is_withdrawn() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let push = pair
        .server
        .push(parent, &get("/gone"), Priority(5))
        .expect("taken");
    pair.server.respond(push, &response(404, &[]), true);
    pair.settle();
    let events = pair.take_client();
    assert!(
        matches!(&events[..], [Event::Push { .. }, Event::Reset { id, reason: Reason::Cancel }] if *id == push),
        "{events:?}"
    );
    assert!(matches!(&pair.take_server()[1..], [Event::Reset { .. }]));
}

#[test]
fn pushes_that_may_not_be() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let mut post = get("/");
    post.method = Method::Post;
    assert_eq!(
        pair.server.push(parent, &post, Priority(5)),
        Err(OpenError::BadHead)
    );
    assert_eq!(
        pair.server.push(99, &get("/"), Priority(5)),
        Err(OpenError::NoPush)
    );
    assert_eq!(
        pair.client.push(parent, &get("/"), Priority(5)),
        Err(OpenError::NoPush)
    );
    let mut foreign = get("/");
    foreign.authority = "elsewhere.example".to_owned();
    pair.server
        .push(parent, &foreign, Priority(5))
        .expect("the server may try");
    pair.settle();
    assert!(pair.take_client().is_empty());
    assert!(matches!(
        pair.take_server()[..],
        [
            Event::Request { .. },
            Event::Reset {
                reason: Reason::Refused,
                ..
            }
        ]
    ));
    pair.server.respond(parent, &response(200, &[]), true);
    assert_eq!(
        pair.server.push(parent, &get("/"), Priority(5)),
        Err(OpenError::NoPush)
    );
}

#[test]
fn a_trusted_gateway_pushes_from_anywhere() {
    let mut client = config(Role::Client, Version::V31);
    client.same_origin_push = false;
    let mut pair = Pair::with(client, config(Role::Server, Version::V31));
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let mut foreign = get("/");
    foreign.authority = "elsewhere.example".to_owned();
    pair.server
        .push(parent, &foreign, Priority(5))
        .expect("taken");
    pair.settle();
    assert!(matches!(&pair.take_client()[..], [Event::Push { .. }]));
}

#[test]
fn a_client_that_takes_no_pushes_says_so() {
    let mut client = config(Role::Client, Version::V31);
    client.mux.push = false;
    let mut pair = Pair::with(client, config(Role::Server, Version::V31));
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    assert_eq!(
        pair.server.push(parent, &get("/a"), Priority(5)),
        Err(OpenError::NoPush)
    );
}

#[test]
fn cancelling_a_request_stops_its_pushes() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let push = pair
        .server
        .push(parent, &get("/a"), Priority(5))
        .expect("taken");
    pair.server.respond(push, &response(200, &[]), false);
    pair.settle();
    pair.client.reset(parent, Reason::Cancel);
    pair.settle();
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    let resets = |events: Vec<Event>| {
        events
            .iter()
            .filter(|event| {
                matches!(
                    event,
                    Event::Reset {
                        reason: Reason::Cancel,
                        ..
                    }
                )
            })
            .count()
    };
    assert_eq!(resets(pair.take_server()), 2);
    assert_eq!(resets(pair.take_client()), 1);
}
