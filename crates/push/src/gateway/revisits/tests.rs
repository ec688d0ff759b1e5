//! Tests of the pages that a session has loaded.

use tandem_http::Scheme;
use tandem_preload::Kind;

use super::*;

fn need(url: &str) -> Need {
    Need {
        url: url.to_owned(),
        kind: Kind::Image,
        urgency: 4,
        anonymous: false,
        by_cors: false,
        referrer: None,
        via: None,
        frame: None,
        has_nonce: false,
    }
}

fn urls(revisits: &mut Revisits, page: &str) -> Vec<String> {
    let needs = revisits
        .visit(page)
        .map_or_else(Vec::new, |(_, needs)| needs);
    needs.into_iter().map(|(need, _)| need.url).collect()
}

#[test]
fn revisits_return_used_needs_only() {
    let mut revisits = Revisits::default();
    for url in ["a", "b", "c", "a"] {
        revisits.note_need("page", Referrer::None, &need(url));
    }
    assert!(revisits.visit("page").is_none());
    revisits.note_use("page", "a", true);
    revisits.note_use("page", "b", true);
    assert_eq!(urls(&mut revisits, "page"), ["a", "b"]);
    assert_eq!(
        revisits.visit("page").map(|(policy, _)| policy),
        Some(Referrer::None)
    );
    revisits.note_use("page", "b", false);
    revisits.note_use("other", "a", true);
    assert_eq!(urls(&mut revisits, "page"), ["a"]);
    assert_eq!(revisits.bytes, "page".len() + 2);
}

#[test]
fn page_that_names_other_needs_forgets_old_ones() {
    let mut revisits = Revisits::default();
    let mut visit = |named: &[&str]| {
        let early = urls(&mut revisits, "page");
        for url in named {
            revisits.note_need("page", Referrer::None, &need(url));
            revisits.note_use("page", url, true);
        }
        revisits.learn_need("page", Referrer::None, &need("script"));
        revisits.note_named("page", |url| named.contains(&url));
        early
    };
    assert!(visit(&["style", "a", "b"]).is_empty());
    assert_eq!(visit(&["style", "c", "d"]), ["style", "a", "b", "script"]);
    // Most needs were gone, so those of a single visit wait for the page.
    assert_eq!(visit(&["style", "e", "f"]), ["style", "script"]);
    assert_eq!(visit(&["style", "e", "f"]), ["style", "script"]);
    assert_eq!(visit(&["style", "e", "g"]), ["style", "script", "e", "f"]);
    assert_eq!(visit(&["style", "e"]), ["style", "script", "e", "g"]);
    assert_eq!(
        revisits.bytes,
        "page".len() + "style".len() + "script".len() + 1
    );
}

#[test]
fn revisits_know_the_copies_of_needs() {
    let mut revisits = Revisits::default();
    assert!(!revisits.take_change());
    revisits.note_need("page", Referrer::None, &need("a"));
    let copy = Some(KeptCopy {
        until: 7,
        has_validator: true,
    });
    revisits.note_copy("page", "a", copy);
    revisits.note_copy("page", "b", copy);
    revisits.note_copy("other", "a", copy);
    assert!(!revisits.take_change(), "nothing is used");
    revisits.note_use("page", "a", true);
    assert!(revisits.take_change() && !revisits.take_change());
    let (_, needs) = revisits.visit("page").expect("a visit");
    assert_eq!(needs, [(need("a"), copy)]);
    revisits.forget_copies();
    assert!(revisits.take_change());
    let (_, needs) = revisits.visit("page").expect("a visit");
    assert_eq!(needs, [(need("a"), None)]);
}

#[test]
fn visit_without_old_cookies_forgets_the_last_one() {
    let visit = |revisits: &mut Revisits, cookie: Option<&str>| {
        let request = RequestHead {
            fields: cookie.map(|value| ("cookie", value)).into_iter().collect(),
            ..RequestHead::get(Scheme::Https, "a.test", "/")
        };
        revisits.begin_visit("page", &request);
        let is_known = revisits.knows("page", "a") && !revisits.knows("page", "b");
        assert_eq!(is_known, revisits.visit("page").is_some());
        revisits.note_need("page", Referrer::None, &need("a"));
        revisits.note_use("page", "a", true);
        revisits.note_cookies("page", || CookieHashes::of(&request));
        is_known
    };
    let mut revisits = Revisits::default();
    for (cookie, expected) in [
        (None, false),
        (None, true),
        (Some("a=1"), true),
        (Some("a=1; b=1"), true),
        (Some("b=1"), true),
        (Some("a=1"), false),
        (None, false),
        (None, true),
    ] {
        assert_eq!(visit(&mut revisits, cookie), expected, "{cookie:?}");
    }
}

/// Two useless learned needs end the learning, and a visit with useful ones begins it again.
#[test]
fn useful_visit_permits_learning_again() {
    let mut revisits = Revisits::default();
    let request = RequestHead::get(Scheme::Http, "a.test", "/");
    revisits.note_need("page", Referrer::None, &need("named"));
    for (fates, may_learn) in [
        (&[("named", false)][..], true),
        (&[("a", false)], true),
        (&[("b", false), ("c", true)], false),
        (&[], false),
        (&[("c", true)], false),
        (&[], true),
        (&[("a", false), ("c", true)], false),
        (&[], false),
    ] {
        revisits.begin_visit("page", &request);
        for (url, is_used) in fates {
            revisits.learn_need("page", Referrer::None, &need(url));
            revisits.note_fate("page", url, *is_used);
        }
        assert_eq!(revisits.may_learn("page"), may_learn, "{fates:?}");
    }
}

#[test]
fn revisits_bound_the_needs_of_a_page() {
    let mut revisits = Revisits::default();
    for number in 0..=MAX_RESOURCES {
        revisits.note_need("page", Referrer::None, &need(&number.to_string()));
    }
    let needs = revisits.iter().map(|(_, visit)| visit.needs.len());
    assert_eq!(needs.collect::<Vec<_>>(), [MAX_RESOURCES]);
}

#[test]
fn revisits_stay_within_their_bounds() {
    let mut revisits = Revisits::default();
    for number in 0..2 * MAX_PAGES {
        let page = format!("page{number}");
        revisits.note_need(&page, Referrer::default(), &need("a"));
        revisits.note_use(&page, "a", true);
    }
    assert_eq!(
        (revisits.pages.len(), revisits.order.len()),
        (MAX_PAGES, MAX_PAGES)
    );
    assert!(urls(&mut revisits, "page0").is_empty());
    let long = "x".repeat(MAX_BYTES / 4);
    for number in 0..9 {
        let url = format!("{long}{number}");
        revisits.note_need("long", Referrer::default(), &need(&url));
        assert!(revisits.bytes <= MAX_BYTES);
    }
    revisits.forget("long");
    revisits.forget("unknown");
    assert_eq!(revisits.pages.len(), revisits.order.len());
    let sum: usize = revisits.order.iter().map(String::len).sum();
    let needs: usize = revisits.pages.values().map(LastVisit::bytes).sum();
    assert_eq!(revisits.bytes, sum + needs);
}

#[test]
fn revisits_fill_their_memory_to_the_last_byte() {
    let mut revisits = Revisits::default();
    revisits.note_need("a", Referrer::default(), &need("1"));
    let rest = "x".repeat(MAX_BYTES - 3);
    revisits.note_need("b", Referrer::default(), &need(&rest));
    assert_eq!((revisits.pages.len(), revisits.bytes), (2, MAX_BYTES));
    revisits.note_need("b", Referrer::default(), &need("2"));
    assert!(!revisits.pages.contains_key("a") && revisits.pages.contains_key("b"));
}

/// Returns pages with one used need, visited at the second of their number.
fn visited(pages: &[&str]) -> Revisits {
    let mut revisits = Revisits::default();
    for (second, page) in (0..).zip(pages) {
        revisits.set_time(second);
        revisits.note_need(page, Referrer::default(), &need("a"));
        revisits.note_use(page, "a", true);
    }
    revisits
}

fn pages(revisits: &Revisits) -> Vec<(&str, u64)> {
    let pages = revisits.iter();
    pages.map(|(page, visit)| (page, visit.time)).collect()
}

#[test]
fn visited_page_outlives_those_visited_before() {
    let mut revisits = visited(&["a", "b", "c"]);
    revisits.take_change();
    revisits.set_time(7);
    assert!(revisits.visit("unknown").is_none() && !revisits.take_change());
    assert!(revisits.visit("a").is_some() && revisits.take_change());
    assert_eq!(pages(&revisits), [("b", 1), ("c", 2), ("a", 7)]);
    revisits.set_time(8);
    revisits.note_need("b", Referrer::default(), &need("a"));
    assert_eq!(pages(&revisits), [("c", 2), ("a", 7), ("b", 8)]);
    assert!(revisits.take_change());
    for number in 0..MAX_PAGES - 1 {
        revisits.note_need(&number.to_string(), Referrer::default(), &need("a"));
    }
    assert_eq!(pages(&revisits)[0], ("b", 8));
    assert!(revisits.take_change(), "two saved pages are gone");
}

#[test]
fn page_is_forgotten_a_month_after_its_visit() {
    let mut revisits = visited(&["a", "b"]);
    revisits.take_change();
    revisits.forget_old(MAX_AGE);
    assert!(!revisits.take_change());
    revisits.forget_old(MAX_AGE + 1);
    assert_eq!(pages(&revisits), [("b", 1)]);
    assert!(revisits.take_change());
    // A clock that is behind is set right.
    revisits.forget_old(0);
    revisits.forget_old(MAX_AGE + 1);
    assert_eq!(pages(&revisits), [("b", 1)]);
    assert!(!revisits.take_change());
    revisits.forget_old(MAX_AGE + 2);
    assert_eq!((pages(&revisits).len(), revisits.bytes), (0, 0));
}

#[test]
fn refused_urls_are_forgotten() {
    let mut revisits = visited(&["a", "b"]);
    for (url, via, frame) in [
        ("c", None, None),
        ("d", Some("x"), None),
        ("e", None, Some("x")),
    ] {
        let need = Need {
            via: via.map(Into::into),
            frame: frame.map(Into::into),
            has_nonce: false,
            ..need(url)
        };
        revisits.note_need("b", Referrer::default(), &need);
        revisits.note_use("b", url, true);
    }
    revisits.take_change();
    revisits.retain(|_| true);
    assert!(!revisits.take_change());
    revisits.retain(|url| url != "x");
    assert!(revisits.take_change());
    assert_eq!(urls(&mut revisits, "b"), ["a", "c"]);
    revisits.retain(|url| url != "b" && url != "a");
    assert!(revisits.take_change());
    assert_eq!((pages(&revisits).len(), revisits.bytes), (0, 0));
}
