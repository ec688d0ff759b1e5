//! The learning predictor: it learns a site, keeps users' URLs apart, stays within its memory, and
//! survives being saved.

use proptest::prelude::*;
use tandem_predict::{Auto, AutoConfig, Exchange, StateError, Worth};

const PAGE: &str = "http://shop.example/cart";
const ASSETS: [&str; 3] = [
    "http://shop.example/style.css",
    "http://shop.example/site.js",
    "http://shop.example/logo.png",
];

fn config(min_users: u8) -> AutoConfig {
    AutoConfig {
        min_users,
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
        agent: Some("Firefox/130"),
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

#[test]
fn auto_offers_current_assets_only() {
    let mut auto = taught(3, 30);
    let mut offered = visit(&mut auto, 100, 100, 10_000_000, PAGE, &ASSETS[..1]);
    offered.sort();
    let mut want = ASSETS;
    want.sort_unstable();
    assert_eq!(offered, want);
    for number in 101..400 {
        visit(
            &mut auto,
            number,
            number,
            number as i64 * 200_000,
            PAGE,
            &ASSETS[..1],
        );
    }
    assert_eq!(
        visit(&mut auto, 400, 400, 100_000_000, PAGE, &[]),
        ASSETS[..1],
        "the others are stale"
    );
}

#[test]
fn resources_of_a_page_depend_on_no_session() {
    let auto = taught(3, 30);
    let before = auto.save();
    let mut found: Vec<_> = auto
        .resources(PAGE)
        .into_iter()
        .map(|candidate| candidate.url.to_string())
        .collect();
    found.sort();
    let mut want = ASSETS;
    want.sort_unstable();
    assert_eq!(found, want);
    assert!(auto.resources(ASSETS[0]).is_empty() && auto.resources("http://x/").is_empty());
    assert_eq!(auto.save(), before, "nothing changes");
    assert!(taught(3, 2).resources(PAGE).is_empty(), "too few users");
}

#[test]
fn auto_offers_a_new_page_the_assets_of_its_kind() {
    let mut auto = Auto::new(config(3));
    for number in 0..60 {
        let page = format!("http://shop.example/2024/01/{number}/item.html");
        visit(
            &mut auto,
            number,
            number,
            number as i64 * 60_000,
            &page,
            &ASSETS,
        );
    }
    let offered = visit(
        &mut auto,
        999,
        999,
        90_000_000,
        "http://shop.example/2025/07/3/item.html",
        &[],
    );
    assert_eq!(offered.len(), ASSETS.len(), "{offered:?}");
}

#[test]
fn a_url_of_too_few_users_is_never_offered() {
    let secret = "http://shop.example/invoice-of-alice.png";
    let mut auto = Auto::new(config(3));
    // One user, under many sessions, and one accomplice.
    for number in 0..200 {
        let user = number % 2;
        let offered = visit(
            &mut auto,
            number,
            user,
            number as i64 * 60_000,
            PAGE,
            &[ASSETS[0], secret],
        );
        assert!(offered.is_empty(), "two users are not three: {offered:?}");
    }
    // Others use the page without the secret; the attacker asks for the page in every way.
    for number in 200..260 {
        let offered = visit(
            &mut auto,
            number,
            number,
            number as i64 * 60_000,
            PAGE,
            &ASSETS,
        );
        assert!(!offered.iter().any(|url| url == secret), "{offered:?}");
    }
    visit(
        &mut auto,
        999,
        999,
        99_000_000,
        "http://shop.example/users/alice/orders/7",
        &ASSETS,
    );
    let bytes = auto.save();
    for private in [secret, "alice"] {
        let written = bytes
            .windows(private.len())
            .any(|window| window == private.as_bytes());
        assert!(!written, "nor is {private} written down");
    }
}

/// Simulates three users of a shop, one of whom requests something private. Then a spy with one
/// user id and any number of sessions tries to find out the private URL. Returns all answers to the
/// spy.
fn spied_on(secret: &str, max_memory: usize) -> Vec<(String, f64)> {
    let site = "http://shop.example";
    let mut auto = Auto::new(AutoConfig {
        max_memory,
        worth: Worth::Omega(0.9),
        ..config(3)
    });
    let mut now = 0;
    let (page, image, part) = (
        format!("{site}/{secret}"),
        format!("{site}/{secret}.png"),
        format!("{site}/{secret}/part/1"),
    );
    for number in 0..240 {
        now += 60_000;
        let user = number % 3;
        visit(&mut auto, number, user, now, PAGE, &ASSETS);
        if user == 0 {
            // The private page, a private asset of a public page, a public asset of a private page,
            // a call of a script.
            visit(
                &mut auto,
                10_000 + number,
                user,
                now,
                &page,
                &[&image, ASSETS[1]],
            );
            visit(
                &mut auto,
                20_000 + number,
                user,
                now,
                PAGE,
                &[ASSETS[0], &part, &image],
            );
            visit(&mut auto, 30_000 + number, user, now, &part, &ASSETS);
        }
    }
    let mut answers = Vec::new();
    for number in 50_000..50_200 {
        now += 7_000;
        for candidate in ["anna", "otto"] {
            let urls = [
                format!("{site}/{candidate}"),
                format!("{site}/{candidate}.png"),
                format!("{site}/{candidate}/part/1"),
                format!("{site}/{candidate}/part/2"),
                PAGE.to_owned(),
                ASSETS[1].to_owned(),
            ];
            let pick = |at: u64| urls[(number / 7 + at * number) as usize % urls.len()].as_str();
            for step in 0..3 {
                let exchange = Exchange {
                    session: number,
                    user: 777,
                    now: now + step as i64 * [100, 1_500, 30_000][number as usize % 3],
                    url: pick(step),
                    get: true,
                    status: [200, 304, 404][(number / 3) as usize % 3],
                    size: 1000,
                    referer: (number % 2 == 0).then(|| pick(step + 1)),
                    agent: Some("Firefox/130"),
                    ..Exchange::default()
                };
                let offers = auto.sending(&exchange);
                answers.extend(
                    offers
                        .into_iter()
                        .map(|offer| (offer.url.to_string(), offer.probability)),
                );
            }
        }
        auto.session_closed(number);
        now += 60_000;
    }
    answers
}

#[test]
fn a_spy_learns_nothing_of_what_too_few_fetched() {
    for max_memory in [64 << 20, 60_000] {
        let (anna, otto) = (spied_on("anna", max_memory), spied_on("otto", max_memory));
        assert!(
            anna.iter().any(|(url, _)| url == ASSETS[0]),
            "what is public he may be given"
        );
        for private in ["anna", "otto"] {
            assert!(
                !anna
                    .iter()
                    .chain(&otto)
                    .any(|(url, _)| url.contains(private)),
                "{private} is private"
            );
        }
        assert_eq!(anna, otto, "not even a probability differs");
    }
}

#[test]
fn many_sessions_of_one_user_are_one_user() {
    let mut auto = Auto::new(config(2));
    for number in 0..300 {
        assert!(
            visit(&mut auto, number, 7, number as i64 * 60_000, PAGE, &ASSETS).is_empty(),
            "visit {number}"
        );
    }
    let mut again = Auto::load(&auto.save(), config(2)).expect("its own bytes");
    for number in 0..300 {
        let offered = visit(&mut again, number, 7, number as i64 * 60_000, PAGE, &ASSETS);
        assert!(offered.is_empty(), "nor does a restart make two of him");
    }
}

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
fn auto_offers_revalidated_assets_again() {
    let page = "http://shop.example/live";
    let (call, style) = (
        "http://shop.example/prices.json",
        "http://shop.example/style.css",
    );
    let mut auto = Auto::new(config(3));
    let mut seen = (0, 0);
    for number in 0..80 {
        for view in 0..6 {
            let now = number as i64 * 10_000_000 + view * 60_000;
            let ask = |url: &'static str, status| Exchange {
                session: number,
                user: number,
                now,
                url,
                get: true,
                status,
                size: 500,
                referer: (url != page).then_some(page),
                agent: Some("Firefox/130"),
                ..Exchange::default()
            };
            let offered = auto.sending(&ask(page, 200));
            if number > 40 && view > 0 {
                seen.0 += usize::from(offered.iter().any(|offer| &*offer.url == call));
                seen.1 += usize::from(offered.iter().any(|offer| &*offer.url == style));
            }
            auto.sending(&ask(call, 200));
            if view == 0 {
                auto.sending(&ask(style, 200));
            }
        }
        auto.session_closed(number);
    }
    assert!(
        seen.0 > 150 && seen.1 == 0,
        "of 195 views: the call {}, the cached style sheet {}",
        seen.0,
        seen.1
    );
}

#[test]
fn pages_without_referer_are_learned_too() {
    let mut auto = Auto::new(config(3));
    let mut last = Vec::new();
    for number in 0..60 {
        let now = number as i64 * 60_000;
        let ask = |url: &'static str, kind| Exchange {
            session: number,
            user: number,
            now,
            url,
            get: true,
            status: 200,
            // The size is told when the body has passed.
            size: 0,
            content_type: Some(kind),
            agent: Some("Firefox/130"),
            ..Exchange::default()
        };
        last = auto.sending(&ask(PAGE, "text/html"));
        for (asset, kind) in ASSETS
            .into_iter()
            .zip(["text/css", "text/javascript", "image/png"])
        {
            auto.sending(&ask(asset, kind));
            auto.body_sent(asset, 2_000);
        }
        auto.session_closed(number);
    }
    assert_eq!(last.len(), 3, "{last:?}");
    assert!(
        last.iter()
            .all(|offer| (offer.expected_size - 2_000.0).abs() < 1.0),
        "{last:?}"
    );
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
            agent: Some(&agent),
            ..Exchange::default()
        };
        wasted += auto.sending(&exchange).len();
        auto.session_closed(number);
    }
    assert!(wasted < 60, "{wasted} offers in vain");
}

#[test]
fn auto_does_not_offer_held_or_refused_assets() {
    let mut auto = taught(3, 30);
    let exchange = |url: &'static str, now| Exchange {
        session: 500,
        user: 500,
        now,
        url,
        get: true,
        status: 200,
        size: 10,
        agent: Some("Firefox/130"),
        ..Exchange::default()
    };
    auto.sending(&exchange(ASSETS[0], 50_000_000));
    auto.push_cancelled(500, ASSETS[1]);
    let offered = auto.sending(&exchange(PAGE, 50_030_000));
    assert!(
        offered.iter().all(|candidate| &*candidate.url == ASSETS[2]),
        "{offered:?}"
    );
    let again = auto.sending(&exchange(PAGE, 50_060_000));
    assert!(again.is_empty(), "an offer is made once: {again:?}");
}

#[test]
fn a_push_that_was_used_teaches_like_a_request() {
    let mut auto = taught(3, 30);
    for number in 100..160 {
        let exchange = Exchange {
            session: number,
            user: number,
            now: number as i64 * 60_000,
            url: PAGE,
            get: true,
            status: 200,
            size: 10,
            agent: Some("Firefox/130"),
            ..Exchange::default()
        };
        let offered = auto.sending(&exchange);
        assert_eq!(offered.len(), 3, "visit {number}: {offered:?}");
        for candidate in offered {
            assert!(candidate.probability > 0.5 && candidate.probability < 1.0);
            auto.push_used(number, PAGE, &candidate.url);
        }
        auto.session_closed(number);
    }
}

#[test]
fn auto_learns_from_used_pushes_of_other_sources() {
    let (style, image) = (
        "http://shop.example/found.css",
        "http://shop.example/brought.png",
    );
    let mut auto = Auto::new(config(3));
    let see = |auto: &mut Auto, number: u64, url, referer| {
        let exchange = Exchange {
            session: number,
            user: number,
            url,
            get: true,
            status: 200,
            size: 10,
            ..Exchange::default()
        };
        auto.sending(&Exchange {
            now: number as i64 * 60_000,
            referer,
            agent: Some("Firefox/130"),
            ..exchange
        })
    };
    for number in 0..6 {
        see(&mut auto, number, PAGE, None);
        auto.push_used(number, PAGE, style);
        // A frame's page comes in between: resources of the style sheet do not belong to the frame.
        see(
            &mut auto,
            number,
            "http://shop.example/frame.html",
            Some(PAGE),
        );
        see(&mut auto, number, image, Some(style));
        auto.session_closed(number);
    }
    let offered: Vec<_> = see(&mut auto, 99, PAGE, None)
        .into_iter()
        .map(|candidate| candidate.url.to_string())
        .collect();
    assert!(
        offered.contains(&style.to_owned()) && offered.contains(&image.to_owned()),
        "{offered:?}"
    );
    auto.push_used(1000, PAGE, "http://shop.example/of-no-session.png");
}

#[test]
fn probabilities_come_true() {
    // An asset that comes every third time is worth a push at omega 0.9 and not at 0.5.
    for (omega, want) in [(0.9, true), (0.5, false)] {
        let mut auto = Auto::new(AutoConfig {
            worth: Worth::Omega(omega),
            ..config(3)
        });
        for number in 0..600 {
            let assets = if number % 3 == 0 {
                &ASSETS[..2]
            } else {
                &ASSETS[..1]
            };
            visit(
                &mut auto,
                number,
                number,
                number as i64 * 60_000,
                PAGE,
                assets,
            );
        }
        let offered = visit(&mut auto, 9999, 9999, 99_000_000, PAGE, &[]);
        assert_eq!(
            offered.iter().any(|url| url == ASSETS[1]),
            want,
            "omega {omega}: {offered:?}"
        );
        assert!(offered.iter().any(|url| url == ASSETS[0]));
    }
}

#[test]
fn auto_offers_a_large_page_whole_with_credit() {
    let assets: Vec<String> = (0..125)
        .map(|i| format!("http://shop.example/{i}.png"))
        .collect();
    let assets: Vec<&str> = assets.iter().map(String::as_str).collect();
    for (credit, expected) in [(200.0, 125..=125), (6.0, 1..=12)] {
        let mut auto = Auto::new(AutoConfig {
            credit,
            ..config(3)
        });
        for number in 0..3 {
            assert!(
                visit(
                    &mut auto,
                    number,
                    number,
                    number as i64 * 60_000,
                    PAGE,
                    &assets
                )
                .is_empty()
            );
        }
        let offered = visit(&mut auto, 99, 99, 9_000_000, PAGE, &[]).len();
        assert!(
            expected.contains(&offered),
            "{offered} with a credit of {credit}"
        );
    }
}

#[test]
fn the_path_decides_by_size() {
    let path = Worth::Path {
        round_trip: 0.4,
        rate: 100_000.0,
    };
    assert!(path.threshold(1_000.0) < 0.03);
    assert!(path.threshold(400_000.0) > 0.9);
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

#[test]
fn saved_loaded_and_merged() {
    let auto = taught(3, 40);
    let bytes = auto.save();
    let mut loaded = Auto::load(&bytes, config(3)).expect("its own bytes");
    assert_eq!(loaded.save(), bytes, "nothing is lost on the way");
    assert_eq!(visit(&mut loaded, 1, 1, 0, PAGE, &[]).len(), 3);
    let mut merged = Auto::new(config(3));
    merged.merge(&auto);
    assert_eq!(visit(&mut merged, 1, 1, 0, PAGE, &[]).len(), 3);
}

#[test]
fn bytes_that_are_no_state_are_refused() {
    let bytes = taught(3, 5).save();
    assert_eq!(Auto::load(b"", config(3)).err(), Some(StateError::Foreign));
    assert_eq!(
        Auto::load(&bytes[..bytes.len() - 1], config(3)).err(),
        Some(StateError::Damaged)
    );
    let mut newer = bytes.clone();
    newer[16] = 9;
    assert_eq!(
        Auto::load(&newer, config(3)).err(),
        Some(StateError::Version(9))
    );
    for at in (20..bytes.len()).step_by(97) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert_eq!(
            Auto::load(&changed, config(3)).err(),
            Some(StateError::Damaged),
            "byte {at}"
        );
    }
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
