//! The cache keeps its bounds for any requests and responses. It serves a request only a response
//! that was made for the same key and the same fields of `Vary`, and for users that may know it.
//! Parts of responses join to bytes of one body only.
#![no_main]

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_cache::{Cache, Config, Group, Key, Lookup, Now, Received, Sharing, Stored, respond};
use tandem_http::cache::vary;
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};

const MEMORY: u64 = 1 << 16;

/// The longest body of which the origin sends parts.
const MAX_TOTAL: usize = 512;

// Input: a byte for the configuration, then exchanges. Each is a byte of operation and user, a byte
// of time, a byte of status, and lines `name:value` of the request and, after a blank line, of the
// response. A line `.` ends the exchange.
fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let all = [
        Sharing::Private,
        Sharing::Shared,
        Sharing::Origin,
        Sharing::Client,
    ];
    let sharing = all[usize::from(first % 4)];
    let min_users = first / 4 % 4 + 1;
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

fn run(cache: &mut Cache<u8>, exchange: &Exchange, fetched: &mut HashSet<Vec<u8>>) {
    let (now, user, request) = (exchange.now, exchange.user, &exchange.request);
    let is_private = cache.config().sharing.is_private();
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
                let (whole, start, end) = body(owner, exchange);
                let part = Bytes::copy_from_slice(&whole[start..end]);
                fetched.insert(whole);
                cache.finish(*pending, vec![part], None);
            }
            cache.fail(now, &fetch);
            cache.end_flight(&fetch);
        }
        Lookup::Join(_) => panic!("no flight is left open"),
        Lookup::NotCached => {}
    }
}

/// Returns the body of which the origin sends a part, and the place of the part. Bodies with the
/// same entity tag and length are equal.
fn body(owner: u64, exchange: &Exchange) -> (Vec<u8>, usize, usize) {
    let (path, head) = (&exchange.request.path, &exchange.response);
    let range = content_range(&head.fields).filter(|_| head.status == 206);
    match range {
        Some((start, end, total)) if start < end && end <= total && total <= MAX_TOTAL => {
            let tag = head.fields.get("etag").unwrap_or_default();
            let text = format!("{owner} {path} {} ", String::from_utf8_lossy(tag));
            (text.bytes().cycle().take(total).collect(), start, end)
        }
        _ => {
            let whole = format!("{owner} {path} {}", exchange.number).into_bytes();
            let end = whole.len();
            (whole, 0, end)
        }
    }
}

/// Returns the start, end and length of the body that `Content-Range` names.
fn content_range(fields: &Fields) -> Option<(usize, usize, usize)> {
    let value = std::str::from_utf8(fields.get("content-range")?).ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let last: usize = last.parse().ok()?;
    let end = last.checked_add(1)?;
    Some((first.parse().ok()?, end, total.parse().ok()?))
}

/// Checks a response that is served.
fn serve(stored: &Stored, exchange: &Exchange, owner: u64, fetched: &HashSet<Vec<u8>>) {
    let request = &exchange.request;
    assert!(stored.fits(&request.fields) && !vary::is_any(&stored.head.fields));
    let prefix = format!("{owner} {} ", request.path);
    let mut of_key = fetched.iter().filter(|whole| {
        let length = prefix.len().min(whole.len());
        whole[..length] == prefix.as_bytes()[..length]
    });
    if let Some(response) = respond(stored, request, exchange.now) {
        let body: Vec<u8> = response.body(stored).flatten().collect();
        assert_eq!(body.len() as u64, response.end - response.start);
        match response.head.status {
            206 => {
                let range = content_range(&response.head.fields).expect("a range");
                let (start, end, total) = range;
                let is_part = |whole: &Vec<u8>| whole.len() == total && whole[start..end] == body;
                assert!(of_key.any(is_part), "bytes of one body");
            }
            304 | 416 => assert!(body.is_empty()),
            _ if request.method == Method::Head => assert!(body.is_empty()),
            _ => assert!(of_key.any(|whole| *whole == body), "a body"),
        }
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
