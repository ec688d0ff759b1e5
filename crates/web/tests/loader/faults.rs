//! Faults of the proxy and the origin, and limits.

use std::time::Duration;

use tandem_http::socks::Reply;
use tandem_web::loader::{Fault, LoadError, Loader, Via};
use tandem_web::page::{Page, Site};
use tokio::io::AsyncWriteExt;

use crate::proxies::socks;
use crate::{answer, check, listen, read_head};

pub(super) async fn fault(loader: &Loader, site: &Site) -> Fault {
    match loader.load(site).await {
        Err(LoadError::Resource { fault, .. }) => fault,
        other => panic!("{other:?} instead of a fault"),
    }
}

#[tokio::test]
async fn refusals_of_the_proxy() {
    let site = Site::new(Page::uniform(1, 100), &["a.onion"]).expect("valid");
    let (proxy, _) = socks(String::new(), Reply::OnionDescriptorNotFound).await;
    let refused = fault(
        &Loader::new(Via::Socks5 {
            proxy,
            credentials: None,
        }),
        &site,
    )
    .await;
    assert_eq!(
        refused.to_string(),
        "SOCKS: the onion service's descriptor was not found"
    );

    let (listener, closed) = listen().await;
    drop(listener);
    let refused = fault(
        &Loader::new(Via::Http {
            proxy: closed.clone(),
        }),
        &site,
    )
    .await;
    assert!(matches!(refused, Fault::Connect { to, .. } if to == closed));

    let (listener, proxy) = listen().await;
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        read_head(&mut client).await;
        client
            .write_all(b"HTTP/1.1 502 Bad Gateway\r\nProxy-Status: tandem; error=\"x\"\r\nContent-Length: 0\r\n\r\n")
            .await
    });
    let refused = fault(&Loader::new(Via::Http { proxy }), &site).await;
    assert_eq!(
        refused.to_string(),
        "status 502 instead of 200 (tandem; error=\"x\")"
    );
}

#[tokio::test]
async fn wrong_answers() {
    let site = |address| Site::new(Page::uniform(1, 100), &[address]).expect("valid");
    let (_, address) = listen().await;
    let right = site(address).asset(0).body.to_vec();
    let with = |head: &str, body: &[u8]| [head.as_bytes(), b"\r\n\r\n", body].concat();
    let mut flipped = right.clone();
    flipped[40] ^= 1;
    let cases = [
        (
            with("HTTP/1.1 200 OK\r\nContent-Length: 100", &flipped),
            "the body differs from the page's at byte 40 of 100",
        ),
        (
            with("HTTP/1.1 200 OK\r\nContent-Length: 60", &right[..60]),
            "the body differs from the page's at byte 60 of 100",
        ),
        (
            with(
                "HTTP/1.1 200 OK\r\nContent-Length: 101",
                &[&right[..], b"x"].concat(),
            ),
            "the body differs from the page's at byte 100 of 100",
        ),
        (
            with("HTTP/1.1 200 OK\r\nContent-Length: 100", &right[..99]),
            "the body is not valid: the connection ended within the body",
        ),
        (
            with("HTTP/1.1 200 OK", &right[..99]),
            "the body differs from the page's at byte 99 of 100",
        ),
        (
            with("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"x"),
            "the body is not valid: a chunk has no valid size",
        ),
        (
            b"HTTP/1.1 200 OK\r\nConte".to_vec(),
            "the connection ended before an answer",
        ),
        (b"".to_vec(), "the connection ended before an answer"),
        (
            b"SSH-2.0-x\r\n".to_vec(),
            "the answer is not valid: the response does not begin with a status line",
        ),
    ];
    for (bytes, says) in cases {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            let mut client = listener.accept().await.expect("a client").0;
            read_head(&mut client).await;
            client.write_all(&bytes).await
        });
        assert_eq!(
            fault(&Loader::new(Via::Direct), &site(address))
                .await
                .to_string(),
            says
        );
    }
}

/// A kept connection that was closed costs a new connection, but does not fail the page.
#[tokio::test]
async fn a_closed_connection_is_replaced() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::uniform(2, 100), &[address]).expect("valid");
    let bodies = site.clone();
    tokio::spawn(async move {
        for index in 0..2 {
            let mut client = listener.accept().await.expect("a client").0;
            read_head(&mut client).await;
            client
                .write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
                .await
                .expect("open");
            answer(&mut client, &bodies.asset(index).body).await;
            // Closes without having said so, after the next request has come.
            if index == 0 {
                read_head(&mut client).await;
            }
        }
    });
    let loader = Loader {
        per_host: 1,
        ..Loader::new(Via::Direct)
    };
    let load = loader.load(&site).await.expect("loads");
    check(&load, &site);
    assert_eq!((load.connections, load.retries), (2, 1));
}

#[tokio::test]
async fn limits() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::uniform(3, 100), &[address]).expect("valid");
    let silent = Loader {
        deadline: Duration::from_millis(50),
        ..Loader::new(Via::Direct)
    };
    let error = silent.load(&site).await.expect_err("nobody answers");
    assert_eq!(
        error.to_string(),
        "0 of 3 known resources loaded after 50ms"
    );
    drop(listener);
    let none = Loader {
        per_host: 0,
        ..Loader::new(Via::Direct)
    };
    assert!(matches!(
        none.load(&site).await,
        Err(LoadError::NoConnections)
    ));
    let bad = Loader {
        headers: vec![("X".into(), "a\r\nb".into())],
        ..Loader::new(Via::Direct)
    };
    assert!(matches!(bad.load(&site).await, Err(LoadError::Header(name)) if name == "X"));
}
