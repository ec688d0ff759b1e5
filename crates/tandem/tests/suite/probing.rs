//! Tests of a probe: a user who requests a URL of another user, and learns from the time of the
//! response whether the gateway's cache held it.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use tandem::config::gateway::CacheOption;

use crate::caching::{Caching, with_fields};
use crate::harness::{Client, request};

/// The number of pairs of URLs, of which another user has requested one.
const PAIRS: usize = 200;

/// The field of a browser that opens a page itself.
const PAGE: &str = "Sec-Fetch-Site: none\r\n";

/// The time of the origin for a response. A hit in the cache saves it.
const ORIGIN: Duration = Duration::from_millis(2);

/// The outcome of the probes of all pairs.
struct Probed {
    /// The pairs of which the requested URL was faster.
    faster: usize,
    /// The pairs with a difference besides the time: in the status, a field or the body.
    different: usize,
}

/// Lets one user request a URL of each pair, and probes both as another user, in random order.
fn probe(cache: CacheOption) -> Probed {
    let caching = Caching::with(
        |_, _| {
            std::thread::sleep(ORIGIN);
            with_fields("Cache-Control: max-age=3600\r\n", "body")
        },
        false,
        |options| {
            options.cache = Some(cache);
            options.cache_users = Some(1);
        },
    );
    let [mut user, mut prober] = [(); 2].map(|()| Client::to(caching.gateway));
    let url = |number: usize, kind| caching.origin.url(&format!("/{number}/{kind}"));
    let order = RandomState::new();
    let mut probed = Probed {
        faster: 0,
        different: 0,
    };
    // The first request of each user opens connections.
    for client in [&mut user, &mut prober] {
        time_of(client, &url(PAIRS, "first"));
    }
    for number in 0..PAIRS {
        let (requested, other) = (url(number, "requested"), url(number, "other"));
        time_of(&mut user, &requested);
        let mut urls = [&requested, &other];
        let is_swapped = order.hash_one(number) % 2 == 1;
        if is_swapped {
            urls.swap(0, 1);
        }
        let [first, second] = urls.map(|url| time_of(&mut prober, url));
        probed.faster += usize::from((first.0 < second.0) != is_swapped);
        probed.different += usize::from(first.1 != second.1);
    }
    probed
}

/// Requests a URL. Returns the time until the whole response, and its bytes without the date.
fn time_of(client: &mut Client, url: &str) -> (Duration, String) {
    let began = Instant::now();
    client.send(request("GET", url, PAGE));
    let answer = client.answer("GET");
    let time = began.elapsed();
    let mut fields = answer.fields;
    fields.retain(|(name, _)| !name.eq_ignore_ascii_case("date"));
    (
        time,
        format!("{} {fields:?} {:?}", answer.status, answer.body),
    )
}

/// The number of faster responses is binomial with the mean 100 and the deviation 7.1 if the time
/// tells nothing. A number outside of 100 ± 35 has a probability below one in a million.
#[test]
fn probe_of_another_session_finds_no_hits() {
    let probed = probe(CacheOption::Private);
    let expected = PAIRS / 2 - 35..=PAIRS / 2 + 35;
    assert!(
        expected.contains(&probed.faster),
        "{} of {PAIRS}",
        probed.faster
    );
    assert_eq!(probed.different, 0);
}

/// The same probe finds the hits of a cache that users share, so the test can fail.
#[test]
fn probe_of_a_shared_cache_finds_the_hits() {
    let probed = probe(CacheOption::Shared);
    assert!(
        probed.faster > PAIRS / 2 + 35,
        "{} of {PAIRS}",
        probed.faster
    );
    assert!(
        probed.different > PAIRS / 2,
        "responses from the store have an age"
    );
}
