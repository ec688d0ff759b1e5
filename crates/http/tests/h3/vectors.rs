//! HTTP/3 cores against the recorded bytes of aioquic, with a push and the dynamic table.

use tandem_http::{Event, Method, Mux};

use crate::support::*;

const SESSION: &str = include_str!("../../../../vectors/h3/aioquic/session.txt");

/// Passes the bytes that one end of the recorded session sent to a core, except for `without`.
fn replay(raw: &mut Raw, from: &str, without: u64) -> Vec<Event> {
    let mut events = Vec::new();
    for line in SESSION.lines().filter(|line| line.starts_with(from)) {
        let words: Vec<&str> = line.split(' ').collect();
        let stream = words[1].parse().expect("the number of a stream");
        let digits = words[3].trim_matches('-').as_bytes();
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).expect("ASCII"))
            .map(|pair| u8::from_str_radix(pair, 16).expect("a hexadecimal number"))
            .collect();
        if stream != without {
            raw.part(stream, &bytes, words[2] == "end").expect(line);
            events.extend(raw.events());
        }
    }
    raw.end.drive();
    events
}

#[test]
fn h3_server_reads_the_requests_of_aioquic() {
    let mut raw = Raw::bare(server_config());
    // Stream 10 acknowledges sections that this server has not sent.
    let events = replay(&mut raw, "client", 10);
    let mut get = get("/");
    get.fields.push("user-agent", "aioquic of the vectors");
    assert!(matches!(&events[0], Event::Settings), "{events:?}");
    assert!(
        matches!(&events[1], Event::Request { head, end: true, .. } if *head == get),
        "{events:?}"
    );
    let Event::Request { id, head, end, .. } = &events[2] else {
        panic!("{events:?}");
    };
    assert_eq!(
        (&head.method, &head.path[..], *end),
        (&Method::Post, "/upload", false)
    );
    assert_eq!(body(&events, *id), (b"content".to_vec(), true));
    assert!(
        matches!(&events[4], Event::Trailers { fields, .. } if fields.get("x-sum") == Some(b"7"))
    );
    assert!(raw.end.core.failure().is_none());
}

#[test]
fn h3_client_reads_responses_and_push_of_aioquic() {
    let mut raw = Raw::bare(client_config());
    let (page, upload) = (raw.open(&get("/")), raw.open(&get("/upload")));
    let events = replay(&mut raw, "server", u64::MAX);
    let mut pushes = events.iter().filter_map(|event| match event {
        Event::Push {
            parent,
            id,
            request,
        } => Some((*parent, *id, request)),
        _ => None,
    });
    let (parent, push, request) = pushes.next().expect("a push");
    assert_eq!((parent, request), (page, &get("/style.css")));
    let link = |event: &Event| matches!(event, Event::Informational { id, .. } if *id == page);
    assert!(events.iter().any(link));
    let server = Some(&b"aioquic of the vectors"[..]);
    for (stream, content) in [
        (page, &b"<link rel=stylesheet href=style.css>"[..]),
        (push, b"p {}"),
        (upload, b"taken"),
    ] {
        let head = events.iter().find_map(|event| match event {
            Event::Response { id, head, .. } if *id == stream => Some(head),
            _ => None,
        });
        let head = head.expect("a response");
        assert_eq!((head.status, head.fields.get("server")), (200, server));
        assert_eq!(body(&events, stream), (content.to_vec(), true));
    }
    assert_eq!(raw.end.core.active(), 0);
}
