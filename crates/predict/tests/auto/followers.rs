//! Followers: the first asset of a page load shows which others the load needs.

use tandem_predict::Auto;

use crate::{PAGE, config, exchange, visit};

/// The assets of two designs of a site. Each visitor gets one of them.
const DESIGNS: [[&str; 4]; 2] = [
    [
        "http://shop.example/old/style.css",
        "http://shop.example/old/menu.js",
        "http://shop.example/old/logo.png",
        "http://shop.example/old/font.woff2",
    ],
    [
        "http://shop.example/new/style.css",
        "http://shop.example/new/menu.js",
        "http://shop.example/new/logo.png",
        "http://shop.example/new/font.woff2",
    ],
];

/// Returns the offers to a new visitor of `page` after the first asset of a design.
fn offers_after(auto: &mut Auto, visitor: u64, page: &str, first: &str) -> Vec<String> {
    let now = visitor as i64 * 60_000;
    let at_page = auto.sending(&exchange(visitor, visitor, now, page, None));
    let at_asset = auto.sending(&exchange(visitor, visitor, now, first, Some(page)));
    auto.session_closed(visitor);
    at_page
        .into_iter()
        .chain(at_asset)
        .map(|candidate| candidate.url.to_string())
        .collect()
}

/// Lets 60 visitors load a page in two designs, in no regular order.
fn two_designs() -> Auto {
    let mut auto = Auto::new(config(3));
    for number in 0..60 {
        let design = DESIGNS[(number * number / 3 % 2) as usize];
        let now = number as i64 * 60_000;
        visit(&mut auto, number, number, now, PAGE, &design);
    }
    auto
}

#[test]
fn first_asset_shows_the_design() {
    let mut auto = two_designs();
    for (visitor, design) in (1000..).zip(DESIGNS) {
        let mut offered = offers_after(&mut auto, visitor, PAGE, design[0]);
        offered.sort_unstable();
        let mut followers = design[1..].to_vec();
        followers.sort_unstable();
        assert_eq!(offered, followers);
    }
}

#[test]
fn followers_are_offered_with_pages_that_are_new() {
    let new = "http://shop.example/sale";
    let mut auto = two_designs();
    let restored = Auto::load(&auto.save(), config(3)).expect("its own bytes");
    let mut merged = Auto::new(config(3));
    merged.merge(&auto);
    for auto in [&mut auto, &mut { restored }, &mut merged] {
        let offered = offers_after(auto, 1000, new, DESIGNS[1][0]);
        assert_eq!(offered.len(), 3, "{offered:?}");
        assert!(offered.iter().all(|url| url.contains("/new/")));
    }
}

#[test]
fn followers_of_too_few_users_are_not_offered() {
    let about = ["http://shop.example/about", "http://shop.example/about.css"];
    let help = [
        "http://shop.example/help.css",
        "http://shop.example/help.png",
    ];
    let offered_after_visits_of = |users: u64| {
        let mut auto = Auto::new(config(3));
        for number in 0..200 {
            let now = number as i64 * 60_000;
            // Everybody knows the image, but only some load it after the style sheet of the shop.
            match number % 8 {
                0 => visit(
                    &mut auto,
                    number,
                    number,
                    now,
                    "http://shop.example/help",
                    &help,
                ),
                1 => visit(&mut auto, number, number, now, PAGE, &DESIGNS[0][..2]),
                2 | 3 => {
                    let assets = [DESIGNS[0][0], help[1]];
                    visit(&mut auto, number, number % users, now, PAGE, &assets)
                }
                _ => visit(&mut auto, number, number, now, about[0], &about[1..]),
            };
        }
        let offered = offers_after(&mut auto, 1000, PAGE, DESIGNS[0][0]);
        offered.iter().any(|url| url == help[1])
    };
    assert!(!offered_after_visits_of(2), "two users are not three");
    assert!(offered_after_visits_of(100));
}
