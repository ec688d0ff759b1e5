//! Tests of the loader against the origin: directly, through an HTTP proxy, through SOCKS5, and
//! with faults.

mod direct;
mod faults;
mod proxies;
mod sessions;

use std::time::Duration;

use tandem_web::loader::Load;
use tandem_web::origin::{Origin, Running};
use tandem_web::page::{Page, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

async fn serve(page: Page) -> (Running, Site) {
    let (listener, address) = listen().await;
    let site = Site::new(page, &[address]).expect("valid");
    (
        Origin::new(site.clone()).spawn(listener).expect("bound"),
        site,
    )
}

/// A page with everything: redirect, frame, imports, fonts, scripts that load scripts.
fn mixed() -> Page {
    Page::from_json("", MIXED.as_bytes()).expect("valid")
}

const MIXED: &str = r#"{"name": "mixed", "hosts": ["a"], "resources": [
        ["/", 0, "text/html", "html", 10, null, 302],
        ["/home", 0, "text/html", "html", 90000, 0],
        ["/a.css", 0, "text/css", "css", 3000, 1],
        ["/b.css", 0, "text/css", "css", 700, 2],
        ["/f.woff2", 0, "font/woff2", "font", 5000, 3],
        ["/bg.png", 0, "image/png", "image", 800, 2],
        ["/a.js", 0, "text/javascript", "script", 4000, 1],
        ["/b.js", 0, "text/javascript", "script", 300, 6],
        ["/data", 0, "application/json", "fetch", 2000, 7],
        ["/frame", 0, "text/html", "html", 500, 1],
        ["/i.svg", 0, "image/svg+xml", "image", 300, 9],
        ["/gone", 0, "image/png", "image", 70, 1, 404],
        ["/none", 0, "image/png", "image", 0, 1, 204]
    ]}"#;

fn check(load: &Load, site: &Site) {
    let mut seen: Vec<usize> = load.requests.iter().map(|t| t.resource).collect();
    seen.sort_unstable();
    assert!(
        seen.iter().copied().eq(0..site.page().resources.len()),
        "each resource once"
    );
    assert_eq!(
        load.requests.iter().map(|t| t.body).sum::<u64>(),
        site.bytes()
    );
    assert_eq!(
        load.requests.iter().map(|t| t.bytes_up).sum::<u64>(),
        load.bytes_up
    );
    assert_eq!(
        load.requests.iter().map(|t| t.bytes_down).sum::<u64>(),
        load.bytes_down
    );
    assert!(load.bytes_down > site.bytes() && load.time > Duration::ZERO);
    for timing in &load.requests {
        assert!(timing.known <= timing.start && timing.start <= timing.end());
    }
}

fn timing(load: &Load, resource: usize) -> &tandem_web::loader::Timing {
    load.requests
        .iter()
        .find(|t| t.resource == resource)
        .expect("loaded")
}

/// The next request's head; `None` when the client has gone.
async fn next_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).expect("text"))
}

async fn read_head(stream: &mut TcpStream) -> String {
    next_head(stream).await.expect("a request")
}

async fn answer(stream: &mut TcpStream, body: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.expect("open");
    stream.write_all(body).await.expect("open");
}
