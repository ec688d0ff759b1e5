//! CRIME: an attacker that makes a browser send chosen requests, and sees their lengths, guesses
//! the cookie in them letter by letter. The tests run the attack against each setting. It finds the
//! secret under `full`, and learns nothing under `safe` and `off`. The attacker is a strong one:
//! the cost of a guess beside a known cookie is subtracted, and padding reveals differences of
//! single bits.

use std::time::Instant;

use crate::support::{config, get, response};
use bytes::Buf as _;
use tandem_http::{ByteMux as _, Event, Mux as _, Priority, Role, SendBuf};
use tandem_spdy::{Connection, HeaderCompression, Version};

const SECRET: &str = "9f3k7q2m5x8w1z6v";
/// A cookie of the attacker's own, as long and without a letter in common.
const OWN: &str = "QWERTYUIOPASDFGH";
const LETTERS: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

/// The position of the attacker's text.
#[derive(Clone, Copy, Debug)]
enum Guess {
    /// In the address, before the cookie of the same request.
    Path,
    /// In a field that scripts may set.
    Field,
}

/// The position of the secret.
#[derive(Clone, Copy, Debug)]
enum Secret {
    Cookie,
    Authorization,
    Query,
    MarkedSensitive,
}

fn victim(setting: HeaderCompression) -> Connection {
    let mut config = config(Role::Client, Version::V31);
    config.header_compression = setting;
    Connection::new(config)
}

fn drain(session: &mut Connection) -> usize {
    let mut out = SendBuf::new();
    session.poll_output(&mut out, usize::MAX);
    out.remaining()
}

/// Length of a request with this guess in it, beside this secret.
fn request_len(
    session: &mut Connection,
    guess: &str,
    place: Guess,
    kind: Secret,
    secret: &str,
) -> usize {
    let mut head = get("/");
    match place {
        Guess::Path => head.path = format!("/{guess}"),
        Guess::Field => head.fields.push("x-note", guess),
    }
    match kind {
        Secret::Cookie => head.fields.push("cookie", format!("sid={secret}")),
        Secret::Authorization => head.fields.push("authorization", format!("sid={secret}")),
        Secret::Query => head
            .fields
            .push("referer", format!("http://example.org/?sid={secret}")),
        Secret::MarkedSensitive => head
            .fields
            .push_sensitive("x-plain", format!("sid={secret}")),
    }
    session
        .open(&head, true, Priority::default())
        .expect("room");
    drain(session)
}

/// Returns the cost of a guess beside a secret that was sent before too, in eighths of a byte.
fn cost(
    setting: HeaderCompression,
    guess: &str,
    place: Guess,
    kind: Secret,
    secret: &str,
) -> isize {
    let once = |padding: usize| {
        let mut session = victim(setting);
        drain(&mut session);
        request_len(&mut session, "-", place, kind, secret);
        // Each of these takes two bytes and one bit.
        request_len(
            &mut session,
            &format!("sid={guess}~{}", "\u{80}".repeat(padding)),
            place,
            kind,
            secret,
        ) as isize
    };
    (0..8).map(once).sum()
}

/// Tries each letter after the known part and takes the one with the largest gain; `None` if no
/// letter gains.
fn next_letter(
    setting: HeaderCompression,
    known: &str,
    place: Guess,
    kind: Secret,
) -> Option<char> {
    let gain = |letter: char| {
        let guess = format!("{known}{letter}");
        cost(setting, &guess, place, kind, OWN) - cost(setting, &guess, place, kind, SECRET)
    };
    let gains: Vec<_> = LETTERS
        .chars()
        .map(|letter| (gain(letter), letter))
        .collect();
    let (most, letter) = gains.iter().copied().max()?;
    gains
        .iter()
        .any(|&(gain, _)| gain != most)
        .then_some(letter)
}

fn attack(setting: HeaderCompression, place: Guess, secret: Secret) -> String {
    let mut known = String::new();
    while known.len() < SECRET.len()
        && let Some(letter) = next_letter(setting, &known, place, secret)
    {
        known.push(letter);
    }
    known
}

const PLACES: [Guess; 2] = [Guess::Path, Guess::Field];
const SECRETS: [Secret; 4] = [
    Secret::Cookie,
    Secret::Authorization,
    Secret::Query,
    Secret::MarkedSensitive,
];

#[test]
fn full_leaks_the_whole_secret() {
    for place in PLACES {
        for secret in SECRETS {
            assert_eq!(
                attack(HeaderCompression::Full, place, secret),
                SECRET,
                "{place:?} {secret:?}"
            );
        }
    }
}

#[test]
fn safe_leaks_nothing() {
    for place in PLACES {
        for secret in SECRETS {
            assert_eq!(
                attack(HeaderCompression::Safe, place, secret),
                "",
                "{place:?} {secret:?}"
            );
        }
    }
}

#[test]
fn off_leaks_nothing() {
    for place in PLACES {
        for secret in SECRETS {
            assert_eq!(
                attack(HeaderCompression::Off, place, secret),
                "",
                "{place:?} {secret:?}"
            );
        }
    }
}

/// Even the whole secret, guessed right, changes no length: before it, after it, in the same
/// session.
#[test]
fn safe_is_blind_to_the_right_guess() {
    let lens = |guess: &str| {
        let mut session = victim(HeaderCompression::Safe);
        drain(&mut session);
        (0..8)
            .map(|_| request_len(&mut session, guess, Guess::Field, Secret::Cookie, SECRET))
            .collect::<Vec<_>>()
    };
    let right = lens(&format!("sid={SECRET}"));
    let wrong = lens("sid=1q0w2e9r3t8y4u7i");
    assert_eq!(right, wrong);
}

/// The gateway's half: `set-cookie` beside a field that the attacker's request makes the origin
/// repeat.
fn answer_len(setting: HeaderCompression, echoed: &str) -> usize {
    let now = Instant::now();
    let mut client = victim(HeaderCompression::Off);
    let mut server = Connection::new({
        let mut config = config(Role::Server, Version::V31);
        config.header_compression = setting;
        config
    });
    client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    let mut out = SendBuf::new();
    client.poll_output(&mut out, usize::MAX);
    server
        .handle_input(now, &out.copy_to_bytes(out.remaining()))
        .expect("a legal request");
    let Some(Event::Request { id, .. }) = server.poll_event() else {
        panic!("a request")
    };
    drain(&mut server);
    let fields = [
        ("x-echo", echoed),
        ("set-cookie", &*format!("sid={SECRET}")),
    ];
    server.respond(id, &response(200, &fields), true);
    drain(&mut server)
}

#[test]
fn answers_are_as_safe() {
    let (right, wrong) = (format!("sid={SECRET}"), "sid=1q0w2e9r3t8y4u7i");
    let gain = |setting| answer_len(setting, wrong) as isize - answer_len(setting, &right) as isize;
    assert!(gain(HeaderCompression::Full) > 8);
    assert_eq!(gain(HeaderCompression::Safe), 0);
    assert_eq!(gain(HeaderCompression::Off), 0);
}

/// The safe setting costs only the bytes of the secrets themselves.
#[test]
fn safe_still_compresses_the_rest() {
    let total = |setting| {
        let mut session = victim(setting);
        drain(&mut session);
        (0..50)
            .map(|item| {
                let mut head = get(&format!("/images/item-{item}.png"));
                for (name, value) in [
                    (
                        "user-agent",
                        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
                    ),
                    (
                        "accept",
                        "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
                    ),
                    ("accept-language", "en-US,en;q=0.5"),
                    ("cookie", "session=0123456789abcdef0123456789abcdef"),
                ] {
                    head.fields.push(name, value);
                }
                session
                    .open(&head, true, Priority::default())
                    .expect("room");
                drain(&mut session)
            })
            .sum::<usize>()
    };
    let (full, safe, off) = (
        total(HeaderCompression::Full),
        total(HeaderCompression::Safe),
        total(HeaderCompression::Off),
    );
    assert!(full < safe && safe * 3 < off, "{full} {safe} {off}");
    assert!(safe < full + 50 * 48, "{full} {safe}");
}
