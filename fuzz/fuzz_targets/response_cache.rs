//! The cache keeps its bounds for any requests and responses. It serves a request only a response
//! that was made for the same key and the same fields of `Vary`, and for users that may know it.
#![no_main]

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_cache::{Cache, Config, Group, Key, Lookup, Now, Received, Sharing, Stored, respond};
use tandem_http::cache::vary;
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};

const MEMORY: u64 = 1 << 16;

// Input: a byte for the configuration, then exchanges. Each is a byte of operation and user, a byte
// of time, a byte of status, and lines `name:value` of the request and, after a blank line, of the
// response. A line `.` ends the exchange.
fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let sharing = [Sharing::Private, Sharing::Shared, Sharing::Origin][usize::from(first % 3)];
    let min_users = first / 3 % 4 + 1;
    let mut cache = Cache::<u8>::new(Config {
        sharing,
        memory: MEMORY,
        min_users,
    });
    let mut elapsed = Duration::ZERO;
    let mut fetched = HashSet::new();
    let parts = data.split(|&byte| byte == b'.').take(64);
    for (number, part) in parts.enumerate() {
        let [operation, time, status, text @ ..] = part else {
            continue;
        };
        elapsed += Duration::from_secs(u64::from(*time) * u64::from(*time));
        let now = Now {
            elapsed,
            unix: Some(784_111_777 + elapsed.as_secs()),
        };
        let at = text.windows(2).position(|pair| pair == b"\n\n");
        let (asked, answer) = text.split_at(at.unwrap_or(text.len()));
        let user = u64::from(operation >> 5);
        let exchange = Exchange {
            now,
            user,
            request: request(operation & 31, fields(asked)),
            response: ResponseHead {
                fields: fields(answer),
                ..ResponseHead::new(200 + u16::from(*status) % 400)
            },
            number,
        };
        run(&mut cache, &exchange, &mut fetched);
        assert!(cache.store().weight() <= MEMORY);
    }
});

struct Exchange {
    now: Now,
    user: u64,
    request: RequestHead,
    response: ResponseHead,
    number: usize,
}

fn request(operation: u8, fields: Fields) -> RequestHead {
    let method = match operation % 8 {
        0..=4 => Method::Get,
        5 => Method::Head,
        6 => Method::Post,
        _ => Method::Other("PURGE".into()),
    };
    RequestHead {
        method,
        fields,
        ..RequestHead::get(Scheme::Http, "h", format!("/{}", operation / 8))
    }
}

fn run(cache: &mut Cache<u8>, exchange: &Exchange, fetched: &mut HashSet<(Vec<u8>, u64)>) {
    let (now, user, request) = (exchange.now, exchange.user, &exchange.request);
    let is_private = cache.config().sharing == Sharing::Private;
    let owner = if is_private { user + 1 } else { 0 };
    let Some(key) = Key::new(owner, b"", request, false) else {
        return;
    };
    if !matches!(request.method, Method::Get | Method::Head) {
        cache.invalidate(now, &request.method, &exchange.response, &[key]);
        return;
    }
    let group = if is_private {
        Group::Owner(owner)
    } else {
        Group::Origin("h".into())
    };
    match cache.lookup(now, &key, group, user, request, Some(&|| 0)) {
        Lookup::Hit(stored) => serve(&stored, exchange, owner, fetched),
        Lookup::Stale(stored, fetch) => {
            serve(&stored, exchange, owner, fetched);
            if let Some((fetch, _)) = fetch {
                cache.end_flight(&fetch);
            }
        }
        Lookup::Fetch(fetch, _) => {
            let received = cache.receive(now, &fetch, &exchange.response);
            if let Received::Store(pending) = received {
                let body = format!("{owner} {} {}", request.path, exchange.number);
                fetched.insert((body.clone().into_bytes(), user));
                cache.finish(*pending, vec![Bytes::from(body)], None);
            }
            cache.fail(now, &fetch);
            cache.end_flight(&fetch);
        }
        Lookup::Join(_) => panic!("no flight is left open"),
        Lookup::NotCached => {}
    }
}

/// Checks a response that is served.
fn serve(stored: &Stored, exchange: &Exchange, owner: u64, fetched: &HashSet<(Vec<u8>, u64)>) {
    let request = &exchange.request;
    assert!(stored.fits(&request.fields) && !vary::is_any(&stored.head.fields));
    let body: Vec<u8> = stored.body.slice(0, stored.body.len()).flatten().collect();
    let expected = format!("{owner} {} ", request.path);
    assert!(body.starts_with(expected.as_bytes()));
    assert!(fetched.iter().any(|(known, _)| *known == body));
    if let Some(response) = respond(stored, request, exchange.now) {
        let length: usize = response.body(stored).map(|piece| piece.len()).sum();
        assert_eq!(length as u64, response.end - response.start);
        assert!(response.head.fields.contains("age"));
    }
}

fn fields(lines: &[u8]) -> Fields {
    let lines = lines.split(|&byte| byte == b'\n').take(32);
    lines
        .filter_map(|line| {
            let at = line.iter().position(|&byte| byte == b':')?;
            Some((&line[..at], line[at + 1..].trim_ascii()))
        })
        .collect()
}
