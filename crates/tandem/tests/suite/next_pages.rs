//! Documents that may follow a page, pushed to a client that takes them.

use std::sync::mpsc;
use std::time::Duration;

use tandem::config::next_push::NextPages;

use crate::harness::{Client, PATIENCE, Scene, block_on, request};
use crate::learning::Gateway;

/// The time after which a load has ended for the gateway, and a push has arrived.
const IDLE: Duration = Duration::from_millis(1500);

/// An origin of documents. It records its requests.
fn origin() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            tell.send(path.clone()).unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=60\r\n\
                 Content-Length: {}\r\n\r\n{path}",
                path.len()
            ));
        }
    });
    (scene, told)
}

/// Requests a document, by a link of another one or without.
fn open(client: &mut Client, origin: &Scene, path: &str, from: Option<&str>) {
    let mut fields =
        "User-Agent: Mozilla/5.0\r\nAccept: text/html\r\nSec-Fetch-Dest: document\r\n".to_owned();
    if let Some(from) = from {
        fields += &format!("Referer: {}\r\n", origin.url(from));
    }
    client.send(request("GET", &origin.url(path), &fields));
    assert_eq!(client.answer("GET").body, path.as_bytes());
}

#[test]
fn next_document_is_pushed_to_a_client_that_takes_it() {
    let (origin, told) = origin();
    let gateway = Gateway::start_with("h2", |options| options.hold_out = Some(0.0));
    for _ in 0..4 {
        let (running, mut client) = gateway.client_with(|_| {});
        open(&mut client, &origin, "/first", None);
        open(&mut client, &origin, "/second", Some("/first"));
        block_on(running.drain(Duration::ZERO));
    }
    told.try_iter().for_each(drop);
    for mode in [None, Some(NextPages::Bodies)] {
        let (running, mut client) = gateway.client_with(|options| options.push_next = mode);
        open(&mut client, &origin, "/first", None);
        std::thread::sleep(IDLE);
        let is_pushed = told.try_iter().any(|path| path == "/second");
        assert_eq!(is_pushed, mode.is_some(), "{mode:?}");
        open(&mut client, &origin, "/second", Some("/first"));
        open(&mut client, &origin, "/last", None);
        let asked: Vec<_> = std::iter::from_fn(|| told.recv_timeout(PATIENCE).ok())
            .take_while(|path| path != "/last")
            .collect();
        assert_eq!(
            asked.contains(&"/second".to_owned()),
            mode.is_none(),
            "{mode:?}"
        );
        block_on(running.drain(Duration::ZERO));
    }
}
