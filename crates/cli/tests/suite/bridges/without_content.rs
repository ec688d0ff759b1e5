//! Requests without content, from each protocol to HTTP/1.1.

use std::sync::mpsc;

use tandem::config::bridge::BridgeMode;
use tandem::exchange::Body;
use tandem_http::{Method, RequestHead, Scheme};
use tokio::task::LocalSet;

use super::ends::{Visitor, bridge, read, server};
use crate::harness::{Scene, block_on};

#[test]
fn request_without_content_has_no_chunks_in_http_1() {
    for front in ["http", "h2+tcp", "spdy3.1", "h3+quic"] {
        let (told, heard) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let framing = ["content-length", "transfer-encoding"]
                    .map(|name| asked.field(name).map(str::to_owned));
                told.send((asked.line.clone(), framing)).unwrap();
                client.send("HTTP/1.1 204 No Content\r\n\r\n");
            }
        });
        let (_running, entry) = bridge(front, |options| {
            options.mode = Some(BridgeMode::Reverse(server("http", origin.address)));
            options.allow_host = vec!["site.example".parse().unwrap()];
        });
        block_on(LocalSet::new().run_until(async {
            let visitor = Visitor::new(front, entry, false);
            for (method, length) in [
                ("GET", None),
                ("HEAD", None),
                ("DELETE", None),
                ("OPTIONS", None),
                ("PROPFIND", None),
                ("POST", Some("0")),
                ("PUT", Some("0")),
            ] {
                // The end of such a request may travel in a later packet.
                if front == "h3+quic" && length.is_some() {
                    continue;
                }
                let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
                request.method = Method::parse(method.as_bytes()).unwrap();
                let answer = read(visitor.send(request, Body::empty())).await;
                assert_eq!(answer.status, 204, "{front} {method}");
                let (line, framing) = heard.recv().unwrap();
                assert!(line.starts_with(method), "{front}: {line}");
                let expected = [length.map(str::to_owned), None];
                assert_eq!(framing, expected, "{front} {method}");
            }
        }));
    }
}
