//! Loads without a proxy: their order and their connections.

use std::sync::Arc;
use std::time::Duration;

use tandem_web::loader::{Ahead, BrowserCookies, Discovery, Loader, Protocol, Via};
use tandem_web::origin::Origin;
use tandem_web::page::{Page, ResourceKind, Site};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::{answer, check, listen, mixed, next_head, serve, timing};

#[tokio::test]
pub(super) async fn straight() {
    let (origin, site) = serve(mixed()).await;
    let load = Loader::new(Via::Direct).load(&site).await.expect("loads");
    check(&load, &site);
    let counts = origin.origin.counts();
    assert_eq!(
        (counts.requests, counts.connections as usize),
        (13, load.connections)
    );
    assert!(load.connections <= 6);
    for (index, resource) in site.page().resources.iter().enumerate() {
        let Some(parent) = resource.parent else {
            continue;
        };
        let (child, cause) = (timing(&load, index), timing(&load, parent));
        let ready = if site.page().resources[parent].kind == ResourceKind::Html {
            cause.start
        } else {
            cause.end()
        };
        assert!(child.known >= ready, "{} before its cause", resource.path);
    }
    assert_eq!(timing(&load, 11).status, 404);
}

#[tokio::test]
async fn connections_are_kept_and_bounded() {
    for (per_host, expected) in [(1, 1), (5, 5), (40, 40)] {
        let (origin, site) = serve(Page::uniform(40, 3000)).await;
        let loader = Loader {
            per_host,
            discovery: Discovery::List,
            ..Loader::new(Via::Direct)
        };
        let load = loader.load(&site).await.expect("loads");
        check(&load, &site);
        assert_eq!(
            (origin.origin.counts().connections, load.connections),
            (expected, expected as usize)
        );
        assert_eq!(
            load.requests.iter().filter(|t| t.connect.is_some()).count(),
            load.connections
        );
    }
    let (origin, site) = serve(Page::uniform(40, 3000)).await;
    let loader = Loader {
        per_host: 40,
        total: 3,
        ..Loader::new(Via::Direct)
    };
    check(&loader.load(&site).await.expect("loads"), &site);
    assert_eq!(origin.origin.counts().connections, 3);
}

/// Idle connections of one authority give way to another's.
#[tokio::test]
async fn shards_within_a_total() {
    let (first, one) = listen().await;
    let (second, two) = listen().await;
    let site = Site::new(Page::demo().expect("committed"), &[one, two]).expect("valid");
    let origin = Origin::new(site.clone());
    let _running = [
        origin.spawn(first).expect("bound"),
        origin.spawn(second).expect("bound"),
    ];
    let loader = Loader {
        total: 2,
        ..Loader::new(Via::Direct)
    };
    check(&loader.load(&site).await.expect("loads"), &site);
    check(
        &Loader::new(Via::Direct).load(&site).await.expect("loads"),
        &site,
    );
}

/// Connections in advance carry requests without a wait: to the page's host, or to each.
#[tokio::test]
async fn connections_exist_before_requests_need_them() {
    for (ahead, hosts) in [(Ahead::Page, 1), (Ahead::All, 2)] {
        let (first, one) = listen().await;
        let (second, two) = listen().await;
        let site = Site::new(Page::demo().expect("committed"), &[one, two]).expect("valid");
        let origin = Origin::new(site.clone());
        let _running = [
            origin.spawn(first).expect("bound"),
            origin.spawn(second).expect("bound"),
        ];
        let loader = Loader {
            per_host: 50,
            ahead,
            ..Loader::new(Via::Direct)
        };
        let load = loader.load(&site).await.expect("loads");
        check(&load, &site);
        let dialled: Vec<_> = load
            .requests
            .iter()
            .filter(|it| it.connect.is_some())
            .collect();
        assert_eq!(load.connections, hosts * 50 + dialled.len());
        assert_eq!(dialled.is_empty(), ahead == Ahead::All);
    }
}

/// A second load with the same jar returns the cookies of the first.
#[tokio::test]
async fn cookies_last_as_long_as_their_jar() {
    let mut page = Page::gallery(1, 700);
    page.resources[0].cookies = vec!["sid=x; Path=/".into()];
    let (_origin, site) = serve(page).await;
    let loader = |jar| Loader {
        jar,
        ..Loader::new(Via::Direct)
    };
    let own = loader(Some(BrowserCookies::default()));
    let mut sent = Vec::new();
    for loader in [&own, &own, &loader(None)] {
        sent.push(loader.load(&site).await.expect("loads").bytes_up);
    }
    let field = "Cookie: sid=x-0\r\n".len() as u64;
    assert_eq!(sent, [sent[0], sent[0] + field, sent[0]]);
}

/// A document's images are asked for while the document is still arriving: here its second half
/// comes only after the first image has been asked for.
#[tokio::test]
async fn references_count_as_they_arrive() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::gallery(2, 5000), &[address]).expect("valid");
    assert!(site.asset(0).references[0].end < HALF);
    let asked = Arc::new(Notify::new());
    let served = site.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(document_in_halves(
                client,
                served.clone(),
                Arc::clone(&asked),
            ));
        }
    });
    let loader = Loader {
        deadline: Duration::from_secs(30),
        ..Loader::new(Via::Direct)
    };
    check(&loader.load(&site).await.expect("no deadlock"), &site);
}

const HALF: usize = 2500;

async fn document_in_halves(mut client: TcpStream, site: Site, asked: Arc<Notify>) {
    while let Some(head) = next_head(&mut client).await {
        let path = head.split(' ').nth(1).expect("a target");
        let index = site.find(path).expect("of the page");
        let body = &site.asset(index).body;
        if index != 0 {
            asked.notify_one();
            answer(&mut client, body).await;
            continue;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        client.write_all(head.as_bytes()).await.expect("open");
        client.write_all(&body[..HALF]).await.expect("open");
        asked.notified().await;
        client.write_all(&body[HALF..]).await.expect("open");
    }
}

/// Checks the needs of one session: no more connections than authorities, and every byte counted.
#[tokio::test]
async fn one_session() {
    let (first, one) = listen().await;
    let (second, two) = listen().await;
    let site = Site::new(Page::demo().expect("committed"), &[one, two]).expect("valid");
    let origin = Origin::new(site.clone());
    let _running = [
        origin.spawn(first).expect("bound"),
        origin.spawn(second).expect("bound"),
    ];
    for per_host in [1, 3, 500] {
        let before = origin.counts();
        let loader = Loader {
            protocol: Protocol::H2,
            per_host,
            ..Loader::new(Via::Direct)
        };
        let load = loader.load(&site).await.expect("loads");
        check(&load, &site);
        assert_eq!(
            (
                load.connections,
                origin.counts().connections - before.connections
            ),
            (2, 2)
        );
        assert_eq!(
            load.requests.iter().filter(|t| t.connect.is_some()).count(),
            2
        );
        assert!(load.requests.iter().all(|t| t.tls.is_none()));
        assert_eq!(origin.counts().requests - before.requests, 111);
        // The limit of concurrent requests holds: enough requests have ended before each start.
        let mut starts: Vec<Duration> = load.requests.iter().map(|t| t.start).collect();
        starts.sort_unstable();
        for (index, start) in starts.iter().enumerate().skip(2 * per_host) {
            let ended = load.requests.iter().filter(|t| t.end() <= *start).count();
            assert!(
                ended + 2 * per_host > index,
                "{index} begun and {ended} ended with {per_host} a host"
            );
        }
    }
}
