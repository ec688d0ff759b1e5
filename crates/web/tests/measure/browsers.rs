//! Pages in Chromium, compared with their model.

use std::collections::HashSet;

use tandem_web::browser::Settings;
use tandem_web::har::Entry;
use tandem_web::loader::{Loader, Via};
use tandem_web::measure::{Client, Listen, Outcome, Served};
use tandem_web::origin::Protocols;
use tandem_web::page::{Page, ResourceKind, Site};

use crate::{everything, listen, load};

pub(super) fn entry<'a>(outcome: &'a Outcome, site: &Site, index: usize) -> &'a Entry {
    let url = site.url(index);
    outcome
        .har
        .entries
        .iter()
        .find(|entry| entry.url == url)
        .expect("asked for")
}

/// Checks that no resource is requested before its parent has begun to arrive. A parent that must
/// be complete to run has arrived.
fn check_order(outcome: &Outcome, site: &Site) {
    for (index, resource) in site.page().resources.iter().enumerate() {
        let Some(parent) = resource.parent else {
            continue;
        };
        let (child, cause) = (entry(outcome, site, index), entry(outcome, site, parent));
        let whole = matches!(
            site.page().resources[parent].kind,
            ResourceKind::Css | ResourceKind::Script
        );
        let known = if whole {
            cause.end()
        } else {
            cause.first_received()
        };
        // Chromium's clocks of different processes agree to a millisecond or so.
        assert!(
            child.start >= known - 5.0,
            "{} at {} before {} at {known}",
            child.url,
            child.start,
            cause.url
        );
    }
}

#[tokio::test]
async fn chromium_loads_what_the_model_says() {
    let client = Client::Browser(Settings::default());
    for (shards, tls, protocol) in [
        (1, None, "http/1.1"),
        (3, None, "http/1.1"),
        (3, Some(Protocols::Both), "h2"),
        (1, Some(Protocols::Http1), "http/1.1"),
    ] {
        let served = Served::start(everything(), &listen(shards, tls))
            .await
            .expect("serves");
        let outcome = load(&client, &served).await;
        check_order(&outcome, served.site());
        assert!(
            outcome
                .har
                .entries
                .iter()
                .all(|entry| entry.protocol == protocol),
            "{shards} {tls:?}"
        );
        assert_eq!(outcome.phases.ssl.is_some(), tls.is_some());
        assert_eq!(outcome.body_bytes, bodies_read(served.site()));
        // Of the document's own: an error with an image, nothing, a redirect, srcset, and another;
        // frames of another origin do not tell.
        let (images, decoded) = outcome.images.expect("a browser tells");
        let of_frame = usize::from(shards == 1);
        assert_eq!(
            (images, decoded),
            (5 + of_frame, 4 + of_frame),
            "{shards} {tls:?}"
        );
        assert!(served.counts().requests >= 26);
        let document = entry(&outcome, served.site(), 1);
        assert!(
            document
                .request_fields
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("user-agent"))
        );
        assert_eq!((document.status, document.kind.as_str()), (200, "Document"));
    }
}

/// Bodies of redirects, and of errors instead of style sheets, are not read.
fn bodies_read(site: &Site) -> u64 {
    let read = site
        .page()
        .resources
        .iter()
        .enumerate()
        .filter(|(_, resource)| {
            let useless = resource.kind == ResourceKind::Css && resource.status >= 400;
            !resource.is_redirect() && !useless
        });
    read.map(|(index, _)| site.asset(index).body.len() as u64)
        .sum()
}

#[tokio::test]
async fn every_built_in_page_in_chromium() {
    for name in ["demo", "twitter", "youtube", "gallery:3x60", "thesis"] {
        let served = Served::start(Page::open(name).expect("built in"), &listen(0, None))
            .await
            .expect("serves");
        let outcome = load(&Client::Browser(Settings::default()), &served).await;
        check_order(&outcome, served.site());
        let (images, decoded) = outcome.images.expect("a browser tells");
        assert!(
            images > 0 && images == decoded,
            "{name}: {decoded} of {images} images"
        );
        if name == "thesis" {
            assert_eq!((outcome.body_bytes, images), (3_560_921, 1311));
            assert!(outcome.connections >= 6);
        }
    }
}

/// The second load in a browser finds an empty cache. Every size is compared with the model.
#[tokio::test]
async fn earlier_load_leaves_no_copies() {
    let served = Served::start(everything(), &listen(1, Some(Protocols::Both)))
        .await
        .expect("serves");
    let again = Settings {
        earlier: 1,
        ..Settings::default()
    };
    let outcome = load(&Client::Browser(again), &served).await;
    assert_eq!(outcome.har.entries[0].url, served.site().url(0));
}

/// Uses names that only the browser's rules know, and a proxy that is no proxy: its requests show
/// their form.
#[tokio::test]
async fn names_by_rules_and_proxies() {
    let authorities = vec!["a.example".to_owned(), "b.example:81".to_owned()];
    let served = Served::start(
        everything(),
        &Listen {
            authorities,
            ..listen(2, None)
        },
    )
    .await
    .expect("serves");
    let addresses = served.addresses();
    let resolve = vec![
        ("a.example".to_owned(), addresses[0].to_string()),
        ("b.example".to_owned(), addresses[1].to_string()),
    ];
    let outcome = load(
        &Client::Browser(Settings {
            resolve: resolve.clone(),
            ..Settings::default()
        }),
        &served,
    )
    .await;
    let ports = outcome
        .har
        .entries
        .iter()
        .filter_map(|entry| entry.server.clone())
        .collect::<HashSet<_>>();
    assert_eq!(ports, addresses.iter().map(ToString::to_string).collect());
    load(
        &Client::Loader(Loader {
            resolve,
            ..Loader::new(Via::Direct)
        }),
        &served,
    )
    .await;
    // An origin takes requests in absolute form as well, and so can stand for a proxy.
    let proxy = Some(format!("http://{}", addresses[0]));
    let outcome = load(
        &Client::Browser(Settings {
            proxy,
            ..Settings::default()
        }),
        &served,
    )
    .await;
    assert!(
        outcome
            .har
            .entries
            .iter()
            .all(|entry| entry.server == Some(addresses[0].to_string()))
    );
}
