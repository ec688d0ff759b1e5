//! Page loads in Firefox, driven over WebDriver BiDi. Needs firefox-esr.

use tandem_web::browser::{Browser, BrowserError, Kind, Settings};
use tandem_web::measure::{Client, Listen, MeasureError, Outcome, Served};
use tandem_web::origin::Protocols;
use tandem_web::page::Page;

fn firefox() -> Settings {
    Settings {
        kind: Kind::Firefox,
        ..Settings::default()
    }
}

async fn serve(page: Page, shards: usize, tls: Option<Protocols>) -> Served {
    let listen = Listen {
        address: ([127, 0, 0, 1], 0).into(),
        shards,
        authorities: Vec::new(),
        tls,
    };
    Served::start(page, &listen).await.expect("serves")
}

async fn load(client: &Client, served: &Served) -> Outcome {
    let outcome = client.load(served.site()).await.expect("loads");
    assert!(outcome.is_complete(), "{:?}", outcome.faults);
    assert_eq!(outcome.requests, served.site().page().resources.len());
    outcome
}

#[tokio::test]
async fn firefox_loads_what_the_model_says() {
    let client = Client::Browser(firefox());
    for (tls, protocol) in [(None, "http/1.1"), (Some(Protocols::Both), "h2")] {
        let served = serve(Page::open("demo").expect("built in"), 3, tls).await;
        let outcome = load(&client, &served).await;
        let entries = &outcome.har.entries;
        assert!(
            entries.iter().all(|entry| entry.protocol == protocol),
            "{tls:?}"
        );
        assert_eq!(outcome.phases.ssl.is_some(), tls.is_some());
        let (images, decoded) = outcome.images.expect("a browser tells");
        assert!(images > 0 && images == decoded, "{decoded} of {images}");
        assert!(outcome.client.starts_with("Firefox "), "{}", outcome.client);
        let site = served.site();
        let bodies = (0..site.page().resources.len()).map(|index| site.asset(index).body.len());
        assert_eq!(outcome.body_bytes, bodies.sum::<usize>() as u64);
    }
}

/// Firefox takes the proxy of each kind, and its failures have reasons.
#[tokio::test]
async fn firefox_uses_proxies_and_reports_faults() {
    let served = serve(Page::gallery(3, 700), 1, None).await;
    // An origin takes requests in absolute form as well, and so can stand for a proxy.
    let through = |proxy: String| {
        Client::Browser(Settings {
            proxy: Some(proxy),
            ..firefox()
        })
    };
    load(
        &through(format!("http://{}", served.addresses()[0])),
        &served,
    )
    .await;
    let nowhere = served.site().clone();
    drop(served);
    let refused = "PROXY_CONNECTION_REFUSED";
    for (client, reason) in [
        (Client::Browser(firefox()), "NS_ERROR_CONNECTION_REFUSED"),
        (through("http://127.0.0.1:1".to_owned()), refused),
        (through("https://127.0.0.1:1".to_owned()), refused),
        (through("socks5://127.0.0.1:1".to_owned()), refused),
    ] {
        let error = client.load(&nowhere).await.expect_err("nobody listens");
        let why = match &error {
            MeasureError::Browser(BrowserError::Navigation { why, .. }) => why.as_str(),
            _ => "",
        };
        assert!(why.contains(reason), "{error}");
    }
    let absent = Settings {
        program: Some("/nonexistent".into()),
        ..firefox()
    };
    let error = Browser::start(&absent).await.expect_err("there is none");
    assert!(error.to_string().contains("install firefox-esr"), "{error}");
    let other = Settings {
        program: Some("/bin/false".into()),
        ..firefox()
    };
    let error = Browser::start(&other).await.expect_err("it is none");
    assert!(matches!(error, BrowserError::Ended { .. }), "{error}");
}
