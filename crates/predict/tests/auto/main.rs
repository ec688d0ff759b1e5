//! The learning predictor: it learns a site, keeps users' URLs apart, stays within its memory, and
//! survives being saved.

mod bounds;
mod followers;
mod offers;
mod state;
mod users;

use tandem_predict::{Auto, AutoConfig, Exchange};

const PAGE: &str = "http://shop.example/cart";

const ASSETS: [&str; 3] = [
    "http://shop.example/style.css",
    "http://shop.example/site.js",
    "http://shop.example/logo.png",
];

fn config(min_users: u8) -> AutoConfig {
    AutoConfig {
        min_users,
        // A few visits earn too little for a first offer.
        credit: 6.0,
        ..AutoConfig::default()
    }
}

/// Returns a request of a browser, and its answer of 1,000 bytes.
fn exchange<'a>(
    session: u64,
    user: u64,
    now: i64,
    url: &'a str,
    referer: Option<&'a str>,
) -> Exchange<'a> {
    Exchange {
        session,
        user,
        now,
        url,
        get: true,
        status: 200,
        size: 1000,
        referer,
        agent: Some(b"Firefox/130"),
        ..Exchange::default()
    }
}

/// Simulates a visit: the page and its assets. Returns the offers made with the page.
fn visit(
    auto: &mut Auto,
    number: u64,
    user: u64,
    now: i64,
    page: &str,
    assets: &[&str],
) -> Vec<String> {
    let exchange = |url, referer| exchange(number, user, now, url, referer);
    let offered = auto.sending(&exchange(page, None));
    for asset in assets {
        auto.sending(&exchange(asset, Some(page)));
    }
    auto.session_closed(number);
    offered
        .into_iter()
        .map(|candidate| candidate.url.to_string())
        .collect()
}

fn taught(min_users: u8, visits: u64) -> Auto {
    let mut auto = Auto::new(config(min_users));
    for number in 0..visits {
        visit(
            &mut auto,
            number,
            number,
            number as i64 * 60_000,
            PAGE,
            &ASSETS,
        );
    }
    auto
}
