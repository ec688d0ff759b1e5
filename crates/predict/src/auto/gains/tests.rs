use proptest::prelude::*;

use super::super::{Auto, AutoConfig, Candidate, Exchange};
use super::Gains;

const PAGE: &str = "http://h/";
const ASSETS: [&str; 3] = ["http://h/a.css", "http://h/b.js", "http://h/c.png"];

fn sharing() -> Auto {
    let mut auto = Auto::new(AutoConfig::default());
    auto.count_gains();
    auto
}

/// Visits a page as this user, with these assets. Returns the offers.
fn visit(auto: &mut Auto, user: u64, page: &str, assets: &[&str]) -> Vec<Candidate> {
    let mut offers = Vec::new();
    for (url, referer) in [(page, None)]
        .into_iter()
        .chain(assets.iter().map(|asset| (*asset, Some(page))))
    {
        offers.extend(auto.sending(&Exchange {
            session: user,
            user,
            now: user as i64 * 60_000,
            url,
            get: true,
            status: 200,
            size: 1000,
            referer,
            agent: Some(b"Firefox/130"),
            ..Exchange::default()
        }));
    }
    auto.session_closed(user);
    offers
}

/// Takes all gains as another gateway receives them.
fn received(auto: &mut Auto, limit: usize) -> Vec<Gains> {
    std::iter::from_fn(|| auto.take_gains(limit))
        .map(|gains| Gains::read(&gains.write()).expect("the bytes were written by `write`"))
        .collect()
}

fn copy(gains: &Gains) -> Gains {
    Gains::read(&gains.write()).expect("the bytes were written by `write`")
}

fn again(gains: &[Gains]) -> impl Iterator<Item = Gains> {
    gains.iter().map(copy)
}

fn chances(auto: &Auto, page: &str) -> Vec<(String, f64)> {
    let mut found: Vec<_> = auto
        .resources(page)
        .into_iter()
        .map(|candidate| (candidate.url.to_string(), candidate.probability))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn gains_make_other_gateways_push() {
    let mut learned = sharing();
    for user in 1..=3 {
        assert!(received(&mut learned, 1 << 16).is_empty(), "user {user}");
        visit(&mut learned, user, PAGE, &ASSETS);
    }
    let gains = received(&mut learned, 1 << 16);
    assert_eq!(gains.len(), 1);
    for _ in 0..2 {
        let mut other = sharing();
        again(&gains).for_each(|gains| other.merge_gains(gains));
        assert_eq!(chances(&other, PAGE).len(), ASSETS.len());
        let offers = visit(&mut other, 100, PAGE, &[]);
        assert_eq!(
            offers.len(),
            ASSETS.len(),
            "knowledge from elsewhere is used"
        );
    }
}

/// The sender requires one user, and the receiver three.
#[test]
fn gains_of_few_users_count_no_user() {
    let mut sender = Auto::new(AutoConfig {
        min_users: 1,
        ..AutoConfig::default()
    });
    sender.count_gains();
    visit(&mut sender, 1, PAGE, &ASSETS);
    let mut receiver = sharing();
    received(&mut sender, 1 << 16)
        .into_iter()
        .for_each(|gains| receiver.merge_gains(gains));
    for user in 1..=2 {
        visit(&mut receiver, user, PAGE, &ASSETS);
        assert!(chances(&receiver, PAGE).is_empty(), "{user} users");
    }
    visit(&mut receiver, 3, PAGE, &ASSETS);
    assert_eq!(chances(&receiver, PAGE).len(), ASSETS.len());
}

#[test]
fn gains_hold_nothing_that_few_users_know() {
    let mut auto = sharing();
    for user in 1..=2 {
        visit(&mut auto, user, "http://h/private-page", &ASSETS);
    }
    assert!(auto.take_gains(1 << 16).is_none());
    for user in 1..=4 {
        let secret = ["http://h/a.css", "http://h/secret.png"];
        visit(&mut auto, user, PAGE, &secret[..1 + usize::from(user < 3)]);
    }
    let bytes: Vec<u8> = std::iter::from_fn(|| auto.take_gains(1 << 16))
        .flat_map(|gains| gains.write())
        .collect();
    let has = |name: &str| {
        bytes
            .windows(name.len())
            .any(|part| part == name.as_bytes())
    };
    assert!(has("http://h/a.css"));
    assert!(!has("secret") && !has("private"));
}

#[test]
fn pages_of_one_user_leave_room_for_those_of_many() {
    let mut auto = sharing();
    for number in 0..20_000 {
        visit(&mut auto, 1, &format!("http://long.tail/{number}"), &[]);
    }
    assert!(auto.lost_gains() > 0, "the table is full");
    assert!(auto.take_gains(1 << 16).is_none());
    for user in 2..=5 {
        visit(&mut auto, user, PAGE, &ASSETS);
    }
    let mut other = sharing();
    let gains = received(&mut auto, 1 << 16);
    again(&gains).for_each(|gains| other.merge_gains(gains));
    assert_eq!(chances(&other, PAGE).len(), ASSETS.len());
}

#[test]
fn known_pages_count_on_in_a_full_table() {
    let mut auto = sharing();
    for user in 1..=3 {
        visit(&mut auto, user, PAGE, &ASSETS);
    }
    for number in 0..20_000 {
        visit(&mut auto, 1, &format!("http://long.tail/{number}"), &[]);
    }
    let lost = auto.lost_gains();
    visit(&mut auto, 4, PAGE, &ASSETS);
    assert_eq!(auto.lost_gains(), lost);
}

#[test]
fn received_gains_are_not_sent_again() {
    let mut learned = sharing();
    for user in 1..=8 {
        visit(&mut learned, user, PAGE, &ASSETS);
    }
    let mut other = sharing();
    for gains in received(&mut learned, 1 << 16) {
        other.merge_gains(gains);
    }
    assert!(other.take_gains(1 << 16).is_none());
    assert!(
        learned.take_gains(1 << 16).is_none(),
        "each gain is taken once"
    );
}

#[test]
fn divided_gains_teach_as_much_as_whole_ones() {
    let mut learned = sharing();
    for user in 1..=6 {
        visit(&mut learned, user, PAGE, &ASSETS);
        visit(&mut learned, 100 + user, "http://h/other", &ASSETS[1..]);
    }
    let gains = received(&mut learned, 1 << 16);
    let (mut whole, mut divided) = (sharing(), sharing());
    let sets: Vec<_> = again(&gains).flat_map(|gains| gains.split(1)).collect();
    assert!(sets.len() > 3);
    again(&gains).for_each(|gains| whole.merge_gains(gains));
    sets.into_iter().for_each(|set| divided.merge_gains(set));
    for page in [PAGE, "http://h/other"] {
        assert_eq!(chances(&whole, page), chances(&divided, page));
    }
}

#[test]
fn gathered_gains_do_not_depend_on_the_steps() {
    let mut learned = sharing();
    for user in 1..=6 {
        for page in 0..40 {
            visit(&mut learned, user, &format!("http://h/{page}/"), &ASSETS);
        }
    }
    let mut gathering = learned.due_gains();
    let mut steps = 0;
    while !learned.gather_gains(&mut gathering, 1 << 16, 4) {
        steps += 1;
    }
    assert!(steps > 9 && gathering.is_done());
    let gains = gathering.take().expect("forty pages");
    assert!(gains.urls() >= 40 && gathering.take().is_none());
    assert!(learned.take_gains(1 << 16).is_none());
}

#[test]
fn split_gains_teach_as_much_as_whole_ones() {
    let teach = |limit: usize| {
        let mut learned = sharing();
        for user in 1..=6 {
            visit(&mut learned, user, PAGE, &ASSETS);
            visit(&mut learned, 100 + user, "http://h/other", &ASSETS[1..]);
        }
        let mut other = sharing();
        let gains = received(&mut learned, limit);
        again(&gains).for_each(|gains| other.merge_gains(gains));
        (
            gains.len(),
            chances(&other, PAGE),
            chances(&other, "http://h/other"),
        )
    };
    let (whole, split) = (teach(1 << 16), teach(300));
    assert!(whole.0 < split.0);
    assert_eq!((whole.1, whole.2), (split.1, split.2));
}

#[test]
fn dropped_contexts_leave_the_table() {
    let mut auto = Auto::new(AutoConfig {
        max_memory: 1 << 16,
        ..AutoConfig::default()
    });
    auto.count_gains();
    for user in 0..2000_u64 {
        let page = format!("http://h{}/page", user % 400);
        let asset = format!("http://h{}/{user}.png", user % 400);
        visit(&mut auto, user, &page, &[&asset]);
    }
    let table = auto.gains.as_ref().expect("it counts gains");
    for (&id, gain) in &table.contexts {
        let context = auto.store.context(id);
        let of_context = |url| context.entries.iter().any(|entry| entry.url == url);
        // Assets that were displaced since the last time that memory was freed may remain.
        let stale = gain.assets.keys().filter(|url| !of_context(**url)).count();
        assert!(stale <= 128, "{stale}");
    }
    assert!(table.contexts.len() < 1200);
    received(&mut auto, 1 << 12);
}

proptest! {
    #[test]
    fn merged_gains_do_not_depend_on_their_order(
        views in prop::collection::vec((0..3_usize, 0..8_u8), 12..40),
    ) {
        let mut gateways = [sharing(), sharing(), sharing()];
        for (number, (at, assets)) in (1..).zip(&views) {
            let assets: Vec<_> = (0..3).filter(|bit| assets >> bit & 1 == 1).collect();
            let assets: Vec<_> = assets.into_iter().map(|bit| ASSETS[bit]).collect();
            visit(&mut gateways[*at], number, PAGE, &assets);
        }
        let gains: Vec<_> = gateways.iter_mut().flat_map(|auto| received(auto, 1 << 16)).collect();
        let merged = |order: &mut dyn Iterator<Item = &Gains>| {
            let mut auto = sharing();
            order.for_each(|gains| auto.merge_gains(copy(gains)));
            auto.store
                .contexts
                .iter()
                .flatten()
                .map(|context| context.loads)
                .sum::<f32>()
        };
        prop_assert_eq!(merged(&mut gains.iter()), merged(&mut gains.iter().rev()));
    }

    #[test]
    fn gains_reader_survives_any_bytes(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut learned = sharing();
        for user in 1..=4 {
            visit(&mut learned, user, PAGE, &ASSETS);
        }
        let mut bytes = learned.take_gains(1 << 16).expect("four users").write();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(gains) = Gains::read(&bytes) {
            let mut auto = sharing();
            auto.merge_gains(gains);
            visit(&mut auto, 1, PAGE, &ASSETS);
        }
    }
}
