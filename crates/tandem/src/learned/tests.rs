//! Tests of the knowledge that survives a reload and of its bounds.

use std::os::unix::fs::MetadataExt as _;

use tandem_push::cookie_urls::{CookieNeeds, CookieUser, path_hash};

use super::*;

#[test]
fn lifetimes_of_copies_are_bounded() {
    let learned = Learned::new(AutoConfig::default(), None).unwrap();
    let lifetime = |seconds| CopyLifetime {
        whole: Duration::from_secs(seconds),
        rest: Duration::ZERO,
    };
    assert_eq!(learned.lifetime("http://h/0"), None);
    for is_kept in [false, true] {
        learned.note_kept("http://h/0", is_kept);
        assert_eq!(learned.is_unkept("http://h/0"), !is_kept);
    }
    for number in 0..LIFETIMES as u64 + 9 {
        learned.note_lifetime(&format!("http://h/{number}"), lifetime(number));
    }
    let last = LIFETIMES as u64 + 8;
    let found = learned.lifetime(&format!("http://h/{last}"));
    assert_eq!(found, Some(lifetime(last)));
    learned.note_kept(&format!("http://h/{last}"), false);
    assert_eq!(learned.lifetime(&format!("http://h/{last}")), None);
    assert!(learned.lifetimes.lock().unwrap().len() <= LIFETIMES);
}

#[test]
fn learned_state_survives_in_a_file() {
    let folder = std::env::temp_dir().join(format!("tandem-learned-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("state");
    let learned = Learned::new(AutoConfig::default(), Some(file.clone())).unwrap();
    learned.sending(
        &Exchange {
            url: "http://h/",
            get: true,
            status: 200,
            ..Exchange::default()
        },
        None,
    );
    learned.session_closed(0);
    learned.save().unwrap();
    assert!(Learned::new(AutoConfig::default(), Some(file.clone())).is_ok());
    let mut damaged = std::fs::read(&file).unwrap();
    damaged.pop();
    std::fs::write(&file, &damaged).unwrap();
    Learned::new(AutoConfig::default(), Some(file.clone()))
        .unwrap()
        .save()
        .unwrap();
    assert_eq!(
        std::fs::read(folder.join("state.old")).unwrap(),
        damaged,
        "what could not be read is kept"
    );
    assert!(Learned::new(AutoConfig::default(), Some(file.clone())).is_ok());
    std::fs::write(&file, b"something else").unwrap();
    let error = Learned::new(AutoConfig::default(), Some(file))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("state"),
        "somebody else's file is left alone: {error}"
    );
    let nowhere = folder.join("missing").join("state");
    assert!(
        Learned::new(AutoConfig::default(), Some(nowhere)).is_err(),
        "nothing could be written there"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn other_hosts_are_learned_for_one_user_only() {
    for (min_users, expected) in [(1, &["b.test"][..]), (2, &[])] {
        let config = AutoConfig {
            min_users,
            ..AutoConfig::default()
        };
        let learned = Learned::new(config, None).unwrap();
        let hosts = |browser, document| {
            let hosts = learned.asked_hosts(browser, document);
            hosts.into_iter().collect::<Vec<_>>()
        };
        let note = |url, is_asked| learned.note_asked_host(5, "http://a.test/", url, is_asked);
        note("http://b.test/i.png", true);
        note("http://a.test/own.png", true);
        assert_eq!(hosts(5, "http://a.test/page"), expected);
        assert_eq!(hosts(6, "http://a.test/page"), [""; 0], "another browser");
        assert_eq!(hosts(5, "https://a.test/page"), [""; 0]);
        for _ in 0..99 {
            note("http://b.test/j.png", false);
        }
        assert_eq!(hosts(5, "http://a.test/page"), [""; 0]);
    }
}

#[test]
fn redirects_are_learned_for_one_user_only() {
    for (min_users, is_learned) in [(1, true), (2, false)] {
        let config = AutoConfig {
            min_users,
            ..AutoConfig::default()
        };
        let learned = Learned::new(config, None).unwrap();
        let (redirect, target) = ("http://a.test/", "http://m.a.test/");
        for _ in 0..9 {
            learned.note_redirect(5, redirect, target, true);
        }
        assert_eq!(learned.leads_to(5, redirect, target), is_learned);
        assert!(!learned.leads_to(6, redirect, target), "another browser");
        assert!(!learned.leads_to(5, redirect, "http://b.test/"));
    }
}

#[test]
fn waste_of_enough_users_is_useless() {
    let config = AutoConfig {
        min_users: 2,
        ..AutoConfig::default()
    };
    let learned = Learned::new(config, None).unwrap();
    let (page, url) = ("http://a.test/page", "http://a.test/big.png");
    let hash = tandem_push::wire::url_hash_of(url).unwrap();
    learned.note_waste(page, 1, url, true);
    learned.note_waste(page, 1, url, true);
    assert!(learned.useless_pushes(page).is_empty(), "one user");
    learned.note_waste(page, 2, url, true);
    assert_eq!(learned.useless_pushes(page), [hash]);
    for (user, expected) in [(3, &[hash][..]), (4, &[])] {
        learned.note_waste(page, user, url, false);
        assert_eq!(learned.useless_pushes(page), expected, "{user}");
    }
    // Two visits request the resource, with its style sheet as Referer.
    learned.note_waste(page, 1, url, true);
    learned.note_waste(page, 2, url, true);
    let sheet = "http://a.test/s.css";
    for session in 1..=2 {
        assert_eq!(learned.useless_pushes(page), [hash], "{session}");
        let visit = [(page, None), (sheet, Some(page)), (url, Some(sheet))];
        for (url, referer) in visit {
            let exchange = Exchange {
                session,
                user: session,
                url,
                referer,
                get: true,
                status: 200,
                ..Exchange::default()
            };
            learned.sending(&exchange, None);
        }
        learned.session_closed(session);
    }
    assert!(learned.useless_pushes(page).is_empty(), "visits need it");
}

#[test]
fn cookies_of_enough_users_are_expected() {
    let config = AutoConfig {
        min_users: 2,
        ..AutoConfig::default()
    };
    let learned = Learned::new(config, None).unwrap();
    let note = |user, is_new, query| {
        let by = CookieUser { user, is_new };
        let url = format!("http://b.test/i.gif?{query}");
        learned.note_cookies(by, "http://a.test/page", &url);
    };
    let sends = |url| learned.cookie_senders(url).any;
    note(1, true, "a");
    note(1, false, "b");
    assert!(!sends("http://b.test/i.gif?a"), "one user");
    note(2, false, "c");
    assert!(sends("http://b.test/i.gif?d"));
    assert!(!sends("http://b.test/j.gif"));
    let needs = learned.cookie_needs("http://A.test/other");
    let hash = path_hash("http://b.test/i.gif");
    assert!(hash.is_some_and(|hash| needs.of_any.contains(&hash)));
    assert!(needs.of_new.is_empty(), "one new browser");
    note(3, true, "d");
    assert_eq!(learned.cookie_needs("http://a.test/").of_new.len(), 1);
    assert_eq!(
        learned.cookie_needs("https://a.test/"),
        CookieNeeds::default()
    );
}

#[test]
fn link_to_the_state_stays_a_link() {
    let folder = std::env::temp_dir().join(format!("tandem-linked-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, link) = (folder.join("state"), folder.join("link"));
    Learned::new(AutoConfig::default(), Some(file.clone()))
        .and_then(|learned| learned.save())
        .unwrap();
    std::os::unix::fs::symlink("state", &link).unwrap();
    let before = std::fs::metadata(&file).unwrap().ino();
    Learned::new(AutoConfig::default(), Some(link.clone()))
        .and_then(|learned| learned.save())
        .unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_ne!(std::fs::metadata(&file).unwrap().ino(), before, "replaced");
    std::fs::remove_file(&file).unwrap();
    let lost = Learned::new(AutoConfig::default(), Some(link));
    assert!(lost.is_err(), "its volume may not be mounted");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn endless_file_is_no_state() {
    let error = Learned::new(AutoConfig::default(), Some("/dev/zero".into()));
    assert!(
        matches!(error, Err(LearnedError::State { .. })),
        "{error:?}"
    );
}

#[test]
fn state_is_written_in_the_background_once_it_is_due() {
    let folder = std::env::temp_dir().join(format!("tandem-due-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("state");
    let learned = Learned::new(AutoConfig::default(), Some(file.clone())).unwrap();
    let learned = Arc::new(learned);
    assert!(!learned.is_due(learned.began + SAVE_EVERY - Duration::from_secs(1)));
    assert!(learned.is_due(learned.began + SAVE_EVERY));
    learned.save_if_due(learned.began + SAVE_EVERY);
    let asked = Instant::now();
    while !file.exists() {
        assert!(asked.elapsed().as_secs() < 60, "the thread writes the file");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!learned.is_due(learned.began + SAVE_EVERY));
    std::fs::remove_dir_all(folder).unwrap();
}
