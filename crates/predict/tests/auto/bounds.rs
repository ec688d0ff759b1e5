//! Bounds: endless sessions, crawls, clients that fetch nothing, and arbitrary input.

use proptest::prelude::*;
use tandem_predict::{Auto, AutoConfig, Exchange};

use crate::{ASSETS, PAGE, config, exchange, taught, visit};

#[test]
fn auto_learns_from_sessions_that_never_end() {
    let mut auto = Auto::new(config(2));
    for session in 0..20 {
        let now = session as i64 * 60_000;
        auto.sending(&exchange(session, session, now, PAGE, None));
        for asset in ASSETS {
            auto.sending(&exchange(session, session, now, asset, Some(PAGE)));
        }
    }
    let offers = auto.sending(&exchange(99, 99, 20 * 60_000, PAGE, None));
    let mut urls: Vec<&str> = offers.iter().map(|offer| &*offer.url).collect();
    urls.sort_unstable();
    assert_eq!(urls, [ASSETS[2], ASSETS[1], ASSETS[0]]);
}

#[test]
fn auto_keeps_other_sites_during_a_crawl() {
    let mut auto = Auto::new(AutoConfig {
        max_memory: 2 << 20,
        ..config(3)
    });
    // Four pages a site, each with its own assets: only the knowledge about the page itself tells
    // which to offer.
    let others: Vec<(String, [String; 2])> = (0..40)
        .map(|page| format!("http://site{}.example/{}", page / 4, page % 4))
        .map(|page| (page.clone(), [format!("{page}.css"), format!("{page}.js")]))
        .collect();
    let visit_others = |auto: &mut Auto, round: u64| -> usize {
        let visits = others.iter().zip(0..).map(|((page, assets), site)| {
            let assets: Vec<&str> = assets.iter().map(String::as_str).collect();
            visit(
                auto,
                1_000_000 + round * 100 + site,
                round,
                (round * 100_000_000) as i64,
                page,
                &assets,
            )
            .len()
        });
        visits.sum()
    };
    for round in 0..8 {
        visit_others(&mut auto, round);
    }
    let before = visit_others(&mut auto, 8);
    assert!(before >= 60, "{before} of 80 are offered");
    // Session ids and cache busters: no URL is seen twice.
    for number in 0..50_000u64 {
        let page = format!("http://crawled.example/p?sid={number:08x}");
        let asset = format!("http://crawled.example/i.gif?r={number:08x}");
        visit(
            &mut auto,
            number,
            number,
            1_000_000_000 + number as i64,
            &page,
            &[&asset],
        );
    }
    assert!(auto.memory() < 3 << 20, "{} bytes", auto.memory());
    let after = visit_others(&mut auto, 40);
    assert!(after >= before * 9 / 10, "{after} instead of {before}");
}

#[test]
fn auto_bounds_the_cost_of_clients_that_fetch_nothing() {
    // Good visits teach the predictor; then a thousand other clients request pages only, each under
    // its own agent.
    let mut auto = taught(1, 40);
    let mut wasted = 0;
    for number in 1_000..2_000 {
        let agent = format!("Firefox/{number}");
        let exchange = Exchange {
            session: number,
            user: number,
            now: number as i64 * 60_000,
            url: PAGE,
            get: true,
            status: 200,
            agent: Some(agent.as_bytes()),
            ..Exchange::default()
        };
        wasted += auto.sending(&exchange).len();
        auto.session_closed(number);
    }
    assert!(wasted < 60, "{wasted} offers in vain");
}

#[test]
fn memory_is_bounded_and_what_pays_is_kept() {
    let max_memory = 1 << 20;
    let mut auto = Auto::new(AutoConfig {
        max_memory,
        ..config(3)
    });
    let mut most = 0;
    for number in 0..6_000 {
        let page = format!(
            "http://site{}.example/{number}/page-that-nobody-sees-twice",
            number % 700
        );
        let assets = [
            format!("{page}/a.css"),
            format!("{page}/b.js"),
            format!("{page}/c.png"),
        ];
        let assets: Vec<&str> = assets.iter().map(String::as_str).collect();
        visit(
            &mut auto,
            number * 2,
            number,
            number as i64 * 1000,
            &page,
            &assets,
        );
        if number % 10 == 0 {
            visit(
                &mut auto,
                number * 2 + 1,
                number,
                number as i64 * 1000,
                PAGE,
                &ASSETS,
            );
        }
        most = most.max(auto.memory());
    }
    assert!(most < max_memory * 3 / 2, "{most} bytes at most");
    assert_eq!(
        visit(&mut auto, 99_999, 99_999, 9_000_000, PAGE, &[]).len(),
        3
    );
}

#[test]
fn sessions_that_never_end_are_bounded_too() {
    let max_memory = 2 << 20;
    let mut auto = Auto::new(AutoConfig {
        max_memory,
        ..config(3)
    });
    for number in 0..20_000 {
        let url = format!("http://h.example/{}", number % 50);
        auto.sending(&Exchange {
            session: number,
            user: number,
            now: number as i64,
            url: &url,
            get: true,
            status: 200,
            ..Exchange::default()
        });
    }
    assert!(auto.memory() < max_memory * 3 / 2, "{}", auto.memory());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever comes, within little memory: no panic, probabilities are probabilities, nothing is
    /// offered twice.
    #[test]
    fn anything_goes(steps in prop::collection::vec((0..6u64, 0..40usize, 0..40usize, 0..4u8, 0..30_000i64), 1..400)) {
        let name = |at: usize| format!("{}/{}{}", ["http://a", "http://b", ""][at % 3], at, ["", ".css", ".png", ".html", "?x=1"][at % 5]);
        let mut auto = Auto::new(AutoConfig { max_memory: 40_000, ..config(1) });
        let mut now = 0;
        let mut offered = std::collections::HashSet::new();
        for (session, url, referer, what, pause) in steps {
            now += pause;
            let (url, referer) = (name(url), name(referer));
            if what == 3 {
                auto.session_closed(session);
                offered.retain(|(of, _)| *of != session);
                continue;
            }
            let candidates = auto.sending(&Exchange {
                session, user: session, now, url: &url, get: what != 2, status: [200, 404, 304][usize::from(what)],
                size: 100, referer: Some(&referer).map(|r| &**r), ..Exchange::default()
            });
            for candidate in candidates {
                prop_assert!(candidate.probability > 0.5 && candidate.probability <= 1.0);
                offered.insert((session, candidate.url));
            }
        }
        let bytes = auto.save();
        let again = Auto::load(&bytes, config(1)).map(|auto| auto.save());
        prop_assert_eq!(again, Ok(bytes));
    }
}
