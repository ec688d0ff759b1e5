//! Loads through an HTTP proxy and through SOCKS5.

use std::sync::{Arc, Mutex};

use tandem_http::socks::{Reply, Server};
use tandem_web::loader::{Loader, Via};
use tandem_web::origin::Origin;
use tandem_web::page::{Page, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{check, listen, mixed, read_head};

/// A proxy that answers in place of the origin and records its requests.
#[tokio::test]
async fn through_an_http_proxy() {
    let (listener, proxy) = listen().await;
    let site = Site::new(mixed(), &["nowhere.invalid"]).expect("valid");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (origin, notes) = (Origin::new(site.clone()), Arc::clone(&asked));
    let (inner, inner_address) = listen().await;
    let _running = origin.spawn(inner).expect("bound");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay_requests(
                client,
                inner_address.clone(),
                Arc::clone(&notes),
            ));
        }
    });
    let loader = Loader {
        headers: vec![("Proxy-Authorization".into(), "Basic eDp5".into())],
        ..Loader::new(Via::Http { proxy })
    };
    check(&loader.load(&site).await.expect("loads"), &site);
    let asked = asked.lock().expect("no panic");
    assert_eq!(asked.len(), 13);
    for head in asked.iter() {
        assert!(head.starts_with("GET http://nowhere.invalid/"), "{head}");
        assert!(head.contains("\r\nHost: nowhere.invalid\r\nProxy-Connection: keep-alive\r\n"));
        assert!(head.contains("\r\nProxy-Authorization: Basic eDp5\r\n"));
        assert!(
            (280..620).contains(&head.len()),
            "as long as a browser's: {}",
            head.len()
        );
    }
    let css = asked
        .iter()
        .find(|head| head.contains("/a.css "))
        .expect("asked");
    assert!(
        css.contains("\r\nReferer: http://nowhere.invalid/home\r\n")
            && css.contains("\r\nAccept: text/css,")
    );
}

/// Forwards one request after the other, rewritten to origin form.
async fn relay_requests(mut client: TcpStream, origin: String, notes: Arc<Mutex<Vec<String>>>) {
    let mut upstream = TcpStream::connect(origin).await.expect("listening");
    let (mut from, mut to) = client.split();
    let (mut answers, mut requests) = upstream.split();
    let forward = async {
        let mut head = Vec::new();
        while let Ok(byte) = from.read_u8().await {
            head.push(byte);
            if head.ends_with(b"\r\n\r\n") {
                let text = String::from_utf8(std::mem::take(&mut head)).expect("text");
                let rewritten = text.replacen("http://nowhere.invalid", "", 1);
                notes.lock().expect("no panic").push(text);
                requests
                    .write_all(rewritten.as_bytes())
                    .await
                    .expect("open");
            }
        }
    };
    tokio::select! {
        () = forward => {}
        _ = tokio::io::copy(&mut answers, &mut to) => {}
    }
}

/// Target, user, and bytes of the stream that came with the handshake.
type Asked = (String, Option<Vec<u8>>, usize);

/// Starts a SOCKS5 server that connects every request to the origin; returns the recorded requests.
pub(super) async fn socks(origin: String, reply: Reply) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let (listener, address) = listen().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay_stream(
                client,
                origin.clone(),
                reply,
                Arc::clone(&notes),
            ));
        }
    });
    (address, asked)
}

async fn relay_stream(
    mut client: TcpStream,
    origin: String,
    reply: Reply,
    notes: Arc<Mutex<Vec<Asked>>>,
) {
    let mut server = Server::new();
    let mut buffer = [0; 4096];
    let request = loop {
        let read = client.read(&mut buffer).await.expect("open");
        if let Some(request) = server.handle_input(&buffer[..read]).expect("SOCKS") {
            break request;
        }
        flush(&mut server, &mut client).await;
    };
    let rest = server.take_rest();
    notes
        .lock()
        .expect("no panic")
        .push((request.target, request.user, rest.len()));
    server.reply(reply);
    flush(&mut server, &mut client).await;
    if reply != Reply::Succeeded {
        return;
    }
    let mut upstream = TcpStream::connect(origin).await.expect("listening");
    upstream.write_all(&rest).await.expect("open");
    // Ends when the client does.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
}

async fn flush(server: &mut Server, client: &mut TcpStream) {
    let mut out = Vec::new();
    server.poll_output(&mut out);
    client.write_all(&out).await.expect("open");
}

#[tokio::test]
async fn through_socks() {
    for optimistic in [false, true] {
        let (listener, origin) = listen().await;
        let site = Site::new(mixed(), &["service.onion"]).expect("valid");
        let _running = Origin::new(site.clone()).spawn(listener).expect("bound");
        let (proxy, asked) = socks(origin, Reply::Succeeded).await;
        let via = Via::Socks5 {
            proxy,
            credentials: Some(("site".into(), String::new())),
        };
        let load = Loader {
            optimistic,
            ..Loader::new(via)
        }
        .load(&site)
        .await
        .expect("loads");
        check(&load, &site);
        let asked = asked.lock().expect("no panic");
        assert_eq!(asked.len(), load.connections);
        for (target, user, early) in asked.iter() {
            assert_eq!(
                (target.as_str(), user.as_deref()),
                ("service.onion:80", Some(&b"site"[..]))
            );
            assert_eq!(
                *early > 0,
                optimistic,
                "the request comes with the handshake or after it"
            );
        }
    }
}

#[tokio::test]
async fn load_keeps_the_proxy_s_cache_status() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::uniform(1, 100), &[address]).expect("valid");
    let head = b"HTTP/1.1 200 OK\r\nCache-Status: tandem; hit\r\nContent-Length: 100\r\n\r\n";
    let bytes = [head, &*site.asset(0).body].concat();
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        read_head(&mut client).await;
        client.write_all(&bytes).await
    });
    let load = Loader::new(Via::Direct).load(&site).await.expect("loads");
    assert_eq!(load.requests[0].note.as_deref(), Some("tandem; hit"));
}
