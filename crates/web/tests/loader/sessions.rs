//! Loads over TLS, directly and in tunnels.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tandem_http::Scheme;
use tandem_http::socks::Reply;
use tandem_web::loader::{Fault, Loader, Protocol, Via};
use tandem_web::origin::{Origin, Protocols};
use tandem_web::page::{Page, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::faults::fault;
use crate::proxies::socks;
use crate::{check, listen, mixed, read_head};

/// TLS straight, through a tunnel of an HTTP proxy, and through SOCKS5; with both protocols.
#[tokio::test]
async fn over_tls() {
    for protocol in [Protocol::Http1, Protocol::H2] {
        let (listener, origin) = listen().await;
        let site = Site::with_scheme(mixed(), Scheme::Https, &["secure.example"]).expect("valid");
        let running = Origin::secure(site.clone(), Protocols::Both).expect("a certificate");
        let _running = running.spawn(listener).expect("bound");
        let (socks_proxy, asked) = socks(origin.clone(), Reply::Succeeded).await;
        let (proxy, notes) = tunnels(origin.clone()).await;
        let ways = [
            Via::Direct,
            Via::Http { proxy },
            Via::Socks5 {
                proxy: socks_proxy,
                credentials: None,
            },
        ];
        for via in ways {
            let resolve = vec![("*.example".to_owned(), origin.clone())];
            let loader = Loader {
                protocol,
                resolve,
                optimistic: true,
                ..Loader::new(via)
            };
            let load = loader.load(&site).await.expect("loads");
            check(&load, &site);
            for timing in load.requests.iter().filter(|t| t.connect.is_some()) {
                assert!(
                    timing.tls.is_some_and(|tls| tls > Duration::ZERO)
                        && timing.tls <= timing.connect
                );
            }
        }
        assert!(
            asked
                .lock()
                .expect("no panic")
                .iter()
                .all(|(target, ..)| target == "secure.example:443")
        );
        let notes = notes.lock().expect("no panic");
        assert!(
            notes
                .iter()
                .all(|head| head.starts_with("CONNECT secure.example:443 HTTP/1.1\r\n"))
        );
        assert!(!notes.is_empty());
    }
}

/// A proxy that opens tunnels, all to one place.
async fn tunnels(origin: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let (listener, address) = listen().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (origin, notes) = (origin.clone(), Arc::clone(&notes));
            tokio::spawn(async move {
                let head = read_head(&mut client).await;
                notes.lock().expect("no panic").push(head);
                client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await
                    .expect("open");
                let mut upstream = TcpStream::connect(origin).await.expect("listening");
                // Ends when the client does.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn tls_and_sessions_that_fail() {
    let secure = |authority: &str| {
        Site::with_scheme(
            Page::uniform(1, 100),
            Scheme::Https,
            &[authority.to_owned()],
        )
        .expect("valid")
    };
    // No TLS at the other end.
    let (listener, plain) = listen().await;
    let _plain = Origin::new(secure(&plain)).spawn(listener).expect("bound");
    assert!(matches!(
        fault(&Loader::new(Via::Direct), &secure(&plain)).await,
        Fault::Tls(_)
    ));
    // TLS, but another protocol.
    for (offered, protocol) in [
        (Protocols::Http1, Protocol::H2),
        (Protocols::H2, Protocol::Http1),
    ] {
        let (listener, address) = listen().await;
        let origin = Origin::secure(secure(&address), offered).expect("a certificate");
        let _running = origin.spawn(listener).expect("bound");
        let loader = Loader {
            protocol,
            ..Loader::new(Via::Direct)
        };
        assert!(matches!(
            fault(&loader, &secure(&address)).await,
            Fault::Tls(_) | Fault::Protocol
        ));
    }
    // No tunnel.
    let (listener, proxy) = listen().await;
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        read_head(&mut client).await;
        client
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            .await
    });
    let refused = fault(&Loader::new(Via::Http { proxy }), &secure("a.example")).await;
    assert!(
        matches!(refused, Fault::Tunnel { status: 403 }),
        "{refused}"
    );
    // No HTTP/2, and an end without a word.
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            let mut client = listener.accept().await.expect("a client").0;
            let _ = client.read(&mut [0; 1000]).await;
            client.write_all(answer).await
        });
        let site = Site::new(Page::uniform(3, 100), &[address]).expect("valid");
        let loader = Loader {
            protocol: Protocol::H2,
            ..Loader::new(Via::Direct)
        };
        assert!(matches!(
            fault(&loader, &site).await,
            Fault::Closed | Fault::Broken(_)
        ));
    }
}
