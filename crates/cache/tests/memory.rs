//! A measurement of the memory of the process: a million different URLs keep the cache under its
//! bound. The test is the only one of its program, so that no other test adds memory.

#![cfg(target_os = "linux")]

use std::time::Duration;

use bytes::Bytes;
use tandem_cache::{Cache, Config, Group, Key, Lookup, Now, Received, Sharing};
use tandem_http::{RequestHead, ResponseHead, Scheme};

/// The number of different URLs. Each second one is uncacheable.
const URLS: u64 = 1_000_000;

/// The bound of the cache.
const BOUND: u64 = 16 << 20;

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.expect("a number of kilobytes") << 10
}

/// Requests the URL with this number, and receives a response with a short body.
fn fetch(cache: &mut Cache<()>, number: u64, response: &ResponseHead) {
    let now = Now {
        elapsed: Duration::from_micros(number),
        unix: Some(1_000_000_000),
    };
    let request = RequestHead::get(Scheme::Http, "site.example", format!("/item/{number}"));
    let key = Key::new(0, b"", &request, false).expect("a plain request");
    let group = Group::Origin("site.example".into());
    let Lookup::Fetch(fetch, _) = cache.lookup(now, &key, group, 1, &request, Some(&|| ())) else {
        panic!("the URL is new");
    };
    if let Received::Store(pending) = cache.receive(now, &fetch, response) {
        let body = Bytes::from(number.to_string().into_bytes());
        assert!(cache.finish(*pending, vec![body], None).is_some());
    }
    cache.end_flight(&fetch);
}

#[test]
fn million_urls_keep_the_cache_under_its_bound() {
    let mut cache: Cache<()> = Cache::new(Config {
        sharing: Sharing::Origin,
        memory: BOUND,
        min_users: 1,
    });
    let response = |control: &str| ResponseHead {
        fields: [("content-type", "text/plain"), ("cache-control", control)]
            .into_iter()
            .collect(),
        ..ResponseHead::new(200)
    };
    let responses = [response("max-age=600"), response("no-store")];
    let before = resident();
    let mut most = 0;
    for number in 0..URLS {
        fetch(&mut cache, number, &responses[(number % 2) as usize]);
        if number % 50_000 == 0 {
            most = most.max(resident());
            assert!(cache.store().weight() <= BOUND);
        }
    }
    most = most.max(resident());
    assert!(cache.store().len() > 1_000 && cache.take_evicted() > URLS / 3);
    // The allocator and the lists of uncacheable URLs need a little more.
    let grown = most - before;
    assert!(
        grown < BOUND + BOUND / 2,
        "{grown} bytes for a bound of {BOUND}"
    );
}
