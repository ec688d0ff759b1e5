//! Users: no URL of too few users is offered, and one user counts once.

use tandem_predict::{Auto, AutoConfig, Exchange, Worth};

use crate::{ASSETS, PAGE, config, visit};

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
                    agent: Some(b"Firefox/130"),
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
