//! The other example programs: push, bodies from callbacks, and the events of sessions.

use tandem_http::Reason;
use tandem_spdy::Version;

use crate::build::{Language, SANITIZED, Server, compile};
use crate::client::{Client, get, pattern};

fn example(name: &str, test: &str, arguments: &[&str]) -> Server {
    let source = format!("examples/{name}.c");
    let program = compile(&source, Language::C99, &SANITIZED, test);
    Server::start(&program, arguments)
}

#[test]
fn push_sends_the_style_sheet_unasked() {
    for (arguments, version) in [(&["0"][..], Version::V3), (&["0", "3.1"], Version::V31)] {
        let server = example("push", "push", arguments);
        let mut client = Client::connect(server.port, version);
        let page = client.ask(&get("/"), 1);
        client.until(|client| {
            let ended = |answer: &crate::client::Answer| answer.ended;
            client.answers.len() == 2 && client.answers.values().all(ended)
        });
        let [(push, parent, path)] = &client.pushes[..] else {
            panic!("one push: {:?}", client.pushes);
        };
        assert_eq!((*parent, path.as_str()), (page, "/style.css"));
        let style = &client.answers[push];
        assert_eq!(style.body, b"p { color: green }\n");
        assert!(
            style
                .fields
                .contains(&("content-type".to_owned(), "text/css".to_owned()))
        );
        server.stop();
    }
}

#[test]
fn push_needs_a_client_that_takes_it() {
    let server = example("push", "push-refused", &["0"]);
    let mut client = Client::without_push(server.port, Version::V3);
    assert_eq!(client.fetch(&get("/")).status, 200);
    assert_eq!(
        client.fetch(&get("/style.css")).body,
        b"p { color: green }\n"
    );
    assert!(client.pushes.is_empty());
    server.stop();
}

#[test]
fn body_callback_may_pause_and_fail() {
    let server = example("response_by_callback", "callback", &["0"]);
    let mut client = Client::connect(server.port, Version::V3);
    for len in [0, 1, 4096, 300_000] {
        assert!(
            client.fetch(&get(&format!("/{len}"))).body == pattern(len),
            "{len}"
        );
    }
    let failed = client.fetch(&get("/fail"));
    assert_eq!(failed.reset, Some(Reason::Internal));
    assert!(pattern(8192).starts_with(&failed.body));
    // The session goes on.
    assert!(client.fetch(&get("/5000")).body == pattern(5000));
    server.stop();
}

#[test]
fn event_loop_reports_the_life_of_sessions() {
    let mut server = example("event_loop", "events", &["0", "0"]);
    let second = server.next_port();
    let mut client = Client::connect(server.port, Version::V3);
    assert_eq!(client.fetch(&get("/")).body, b"request 1\n");
    assert_eq!(client.fetch(&get("/")).body, b"request 2\n");
    let mut lines: Vec<_> = (0..4).map(|_| server.line()).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["A pong", "A sent", "A sent", "A session"]);
    drop(client);
    assert_eq!(server.line(), "A closed by client");

    let mut client = Client::connect(second, Version::V3);
    assert_eq!(client.fetch(&get("/")).body, b"request 1\n");
    client.until_closed();
    assert_eq!(client.goaway, Some(Reason::NoError));
    let lines: Vec<_> = (0..3).map(|_| server.line()).collect();
    let others = lines.iter().filter(|line| *line != "B pong");
    assert!(others.clone().any(|line| line == "B sent"), "{lines:?}");
    server.stop();
}

#[test]
fn silent_session_ends_with_goaway() {
    let mut server = example("event_loop", "timeout", &["0", "0", "1"]);
    server.next_port();
    let mut client = Client::connect(server.port, Version::V3);
    client.until_closed();
    assert_eq!(client.goaway, Some(Reason::NoError));
    assert_eq!(server.line(), "A session");
    assert_eq!(server.line(), "A closed by us");
    server.stop();
}
