//! Requests that end without a response: the program can free its own data, and the library
//! destroys them.

use tandem_http::Reason;
use tandem_spdy::Version;

use crate::build::{Language, SANITIZED, Server, compile};
use crate::client::{Client, get, post};

/// Starts the server, which answers no request but `/check`.
pub(crate) fn server(test: &str, mode: &[&str]) -> Server {
    let name = format!("ended-{test}");
    let program = compile("tests/c/ended.c", Language::C99, &SANITIZED, &name);
    Server::start(&program, mode)
}

/// Lets the server use the requests that it holds.
pub(crate) fn check(client: &mut Client) {
    assert_eq!(client.fetch(&get("/check")).body, b"checked");
}

#[test]
fn reset_request_is_valid_until_its_session_ends() {
    let mut server = server("valid", &[]);
    let mut client = Client::connect(server.port, Version::V3);
    let mut head = post("/reset");
    head.fields.push("accept", "*/*");
    let stream = client.upload_in_parts(&head);
    client.flush();
    assert_eq!(server.line(), "request /reset");
    client.cancel(stream);
    check(&mut client);
    assert_eq!(server.line(), "cls 1 headers 1 queue 0");
    client.ask(&get("/open"), 3);
    client.flush();
    assert_eq!(server.line(), "request /open");
    drop(client);
    let lines = [(); 3].map(|()| server.line());
    assert_eq!(lines, ["closed", "has /reset", "has /open"]);
    check(&mut Client::connect(server.port, Version::V3));
    for _ in 0..2 {
        assert_eq!(server.line(), "cls 0 headers -1 queue -1");
    }
    server.stop();
}

#[test]
fn ended_request_is_reported_and_destroyed() {
    for mode in ["known", "destroys"] {
        let mut server = server(mode, &[mode]);
        let mut client = Client::connect(server.port, Version::V3);
        let stream = client.upload_in_parts(&post("/reset"));
        client.flush();
        assert_eq!(server.line(), "request /reset");
        client.cancel(stream);
        assert_eq!(server.line(), "ended 2 /reset");
        check(&mut client);
        assert_eq!(server.line(), "cls 0 headers -1 queue -1");
        client.ask(&get("/open"), 3);
        client.flush();
        assert_eq!(server.line(), "request /open");
        drop(client);
        let lines = [(); 3].map(|()| server.line());
        assert_eq!(lines, ["closed", "has /open", "ended 1 /open"]);
        check(&mut Client::connect(server.port, Version::V3));
        for _ in 0..2 {
            assert_eq!(server.line(), "cls 0 headers -1 queue -1");
        }
        server.stop();
    }
}

#[test]
fn requests_of_a_stopped_daemon_end() {
    let mut server = server("stopped", &["known"]);
    let mut client = Client::connect(server.port, Version::V3);
    client.ask(&get("/open"), 3);
    client.flush();
    assert_eq!(server.line(), "request /open");
    server.terminate();
    let lines = [(); 3].map(|()| server.line());
    assert_eq!(lines, ["closed", "has /open", "ended 1 /open"]);
    server.wait();
}

#[test]
fn session_with_many_reset_requests_closes() {
    const KEPT: usize = 256;
    let mut server = server("many", &[]);
    let mut client = Client::connect(server.port, Version::V3);
    for _ in 0..=KEPT {
        let stream = client.upload_in_parts(&post("/reset"));
        client.flush();
        assert_eq!(server.line(), "request /reset");
        client.cancel(stream);
    }
    client.until_closed();
    assert_eq!(client.goaway, Some(Reason::NoError));
    assert_eq!(server.line(), "closed");
    for _ in 0..=KEPT {
        assert_eq!(server.line(), "has /reset");
    }
    check(&mut Client::connect(server.port, Version::V3));
    server.stop();
}
