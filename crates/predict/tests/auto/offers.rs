//! Offers: current assets, new pages, and resources that a client holds, refuses or pays for.

use tandem_predict::{Auto, AutoConfig, Exchange, Worth};

use crate::{ASSETS, PAGE, config, exchange, taught, visit};

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
fn needed_resources_are_those_of_enough_users() {
    for (visits, expected) in [(2, 0), (3, ASSETS.len())] {
        let auto = taught(3, visits);
        assert_eq!(auto.needed(PAGE).count(), expected, "{visits}");
        assert!(auto.needed(PAGE).all(|url| ASSETS.contains(&url)));
        assert_eq!(auto.needed("http://shop.example/unknown").count(), 0);
    }
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

/// A browser may have a copy of a resource only if its user has come since the resource exists.
#[test]
fn resources_tell_for_how_long_they_have_been_known() {
    const NEW: &str = "http://shop.example/new.css";
    const MINUTE: i64 = 60_000;
    let mut auto = taught(3, 30);
    for number in 30..150 {
        let now = number as i64 * MINUTE;
        visit(&mut auto, number, number, now, PAGE, &[ASSETS[0], NEW]);
    }
    let minutes = |auto: &Auto, url: &str| {
        let mut resources = auto.resources(PAGE).into_iter();
        let found = resources.find(|candidate| *candidate.url == *url);
        found.expect("most visits request it").known_for.as_secs() / 60
    };
    assert_eq!((minutes(&auto, ASSETS[0]), minutes(&auto, NEW)), (149, 119));
    let restored = Auto::load(&auto.save(), config(3)).expect("its own bytes");
    assert!(
        minutes(&restored, NEW) > 1_000_000,
        "it is from an earlier run"
    );
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
                agent: Some(b"Firefox/130"),
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
        let ask = |url: &'static str, kind: &'static str| Exchange {
            session: number,
            user: number,
            now,
            url,
            get: true,
            status: 200,
            // The size is told when the body has passed.
            size: 0,
            content_type: Some(kind.as_bytes()),
            agent: Some(b"Firefox/130"),
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
        agent: Some(b"Firefox/130"),
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
            agent: Some(b"Firefox/130"),
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
            agent: Some(b"Firefox/130"),
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

/// The path of a style sheet may look like that of a page. Pushes bring it at each visit, so no
/// request shows its kind.
#[test]
fn push_with_an_open_path_is_learned_by_its_type() {
    let style = "http://fonts.example/css?family=Oxygen";
    for (content_type, is_offered) in [
        (Some("text/css; charset=utf-8"), true),
        (Some("text/html"), false),
        (None, false),
    ] {
        let mut auto = Auto::new(config(3));
        let page = |number| exchange(number, number, number as i64 * 60_000, PAGE, None);
        for number in 0..12 {
            auto.sending(&page(number));
            if let Some(content_type) = content_type {
                auto.push_answered(style, content_type);
            }
            auto.push_used(number, PAGE, style);
            auto.session_closed(number);
        }
        let offers = auto.sending(&page(200));
        let found = offers.iter().any(|offer| &*offer.url == style);
        assert_eq!(found, is_offered, "{content_type:?}");
    }
}

/// Gateways send resources from this probability on to browsers that show no earlier visit.
#[test]
fn visits_with_empty_caches_make_transfers_likely() {
    let mut auto = Auto::new(AutoConfig {
        credit: 1000.0,
        ..config(1)
    });
    let assets: Vec<String> = (0..20)
        .map(|number| format!("{PAGE}/{number}.png"))
        .collect();
    let assets: Vec<&str> = assets.iter().map(String::as_str).collect();
    let mut least = |number: u64, assets: &[&str]| {
        let exchange = |url, referer| exchange(number, 1, number as i64 * 60_000, url, referer);
        let offered = auto.sending(&exchange(PAGE, None));
        for asset in assets {
            auto.sending(&exchange(asset, Some(PAGE)));
        }
        auto.session_closed(number);
        let chances = offered.iter().map(|offer| offer.probability);
        chances.fold(1.0, f64::min)
    };
    for number in 0..4 {
        least(number, &assets);
    }
    assert!(least(4, &[]) >= 0.83, "all transferred them");
    assert!(least(5, &[]) < 0.83, "one visit had a full cache");
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

/// Returns the URLs of this many images.
fn images(count: usize) -> Vec<String> {
    let url = |at| format!("http://shop.example/{at}.png");
    (0..count).map(url).collect()
}

#[test]
fn auto_offers_a_large_page_whole_with_credit() {
    let assets = images(125);
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
fn auto_offers_a_large_page_whole_to_the_second_user() {
    let assets = images(200);
    let assets: Vec<&str> = assets.iter().map(String::as_str).collect();
    // The kind and the site of the page keep fewer assets than the page does.
    let mut auto = Auto::new(AutoConfig {
        credit: 1000.0,
        ..config(1)
    });
    assert!(visit(&mut auto, 1, 1, 0, PAGE, &assets).is_empty());
    assert_eq!(
        visit(&mut auto, 2, 2, 60_000, PAGE, &[]).len(),
        assets.len()
    );
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
fn possible_resources_are_of_the_page_or_its_kind() {
    let mut auto = taught(3, 30);
    let before = auto.save();
    let urls = |auto: &Auto, page: &str| -> Vec<String> {
        let mut urls: Vec<_> = auto
            .possible(page)
            .iter()
            .map(|it| it.url.to_string())
            .collect();
        urls.sort();
        urls
    };
    let mut want = ASSETS;
    want.sort_unstable();
    assert_eq!(urls(&auto, PAGE), want);
    assert_eq!(auto.save(), before, "nothing changes");
    assert!(urls(&taught(3, 2), PAGE).is_empty(), "too few users");
    // A page that few loads have shown has the resources of its site, and a known one its own.
    let other = "http://shop.example/new/page";
    assert!(urls(&auto, other).is_empty());
    auto.sending(&exchange(900, 900, 10_000_000, other, None));
    assert_eq!(urls(&auto, other), want);
    for number in 901..910 {
        let now = number as i64 * 60_000 + 10_000_000;
        visit(&mut auto, number, number, now, other, &ASSETS[..1]);
    }
    assert_eq!(urls(&auto, other), ASSETS[..1]);
}

/// Simulates a visit whose assets have these answers. Returns the numbers of offers with the page
/// and with its assets.
fn visit_with(auto: &mut Auto, number: u64, answers: [u16; 3]) -> [usize; 2] {
    let now = number as i64 * 60_000;
    let ask = |url, referer, status| Exchange {
        status,
        ..exchange(number, number, now, url, referer)
    };
    let with_page = auto.sending(&ask(PAGE, None, 200)).len();
    let assets = ASSETS.into_iter().zip(answers);
    let with_assets = assets.map(|(url, status)| auto.sending(&ask(url, Some(PAGE), status)).len());
    let offers = [with_page, with_assets.sum()];
    auto.session_closed(number);
    offers
}

#[test]
fn auto_offers_nothing_that_a_browser_holds() {
    let mut auto = Auto::new(config(3));
    let mut last = [[0; 2]; 2];
    for number in 0..120 {
        // Two of three browsers hold everything.
        let is_new = number % 3 == 0;
        let answers = if is_new { [200; 3] } else { [304; 3] };
        last[usize::from(is_new)] = visit_with(&mut auto, number, answers);
    }
    let [returning, new] = last;
    assert_eq!(returning, [0, 0], "the page and the first answer tell");
    assert_eq!(new, [0, 2], "the first answer shows an empty cache");
}

#[test]
fn auto_learns_which_resources_are_answered_304() {
    let mut auto = Auto::new(config(3));
    for number in 0..120 {
        visit_with(&mut auto, number, [200, 304, 200]);
    }
    let mut offered = visit(&mut auto, 500, 500, 50_000_000, PAGE, &[]);
    offered.sort();
    assert_eq!(offered, [ASSETS[2], ASSETS[0]]);
}

#[test]
fn a_confirmed_push_teaches_like_an_answer_304() {
    let mut auto = taught(3, 30);
    let mut offered = 0;
    for number in 100..220 {
        let now = number as i64 * 60_000;
        let offers = auto.sending(&exchange(number, number, now, PAGE, None));
        offered = offers.len();
        for asset in ASSETS {
            auto.push_confirmed(number, PAGE, asset);
        }
        let again = auto.sending(&exchange(number, number, now + 30_000, PAGE, None));
        assert!(again.is_empty(), "visit {number}: {again:?}");
        auto.session_closed(number);
    }
    assert_eq!(offered, 0, "bodies are of no use");
    assert_eq!(
        auto.resources(PAGE).len(),
        3,
        "the page needs them all the same"
    );
}

#[test]
fn slow_parts_of_a_known_kind_are_offered() {
    let offered = |types: [Option<&str>; 3]| {
        let mut auto = Auto::new(config(3));
        for number in 0..30 {
            let at = number as i64 * 200_000;
            auto.sending(&exchange(number, number, at, PAGE, None));
            for (pause, (url, content_type)) in (1..).zip(ASSETS.iter().zip(types)) {
                auto.sending(&Exchange {
                    content_type: content_type.map(str::as_bytes),
                    ..exchange(number, number, at + 1500 * pause, url, Some(PAGE))
                });
            }
            auto.session_closed(number);
        }
        let page = exchange(100, 100, 10_000_000, PAGE, None);
        auto.sending(&page).len()
    };
    let types = ["text/css", "text/javascript", "image/png"];
    assert_eq!(offered(types.map(Some)), 3);
    assert_eq!(offered([None; 3]), 0, "by the time they are pages");
}
