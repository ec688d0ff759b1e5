//! Tests of the decisions in virtual time.

mod changes;
mod lifetimes;
mod parts;
mod posts;
mod private;
mod random;
mod shared;
mod stored;

use bytes::Bytes;
use tandem_http::Scheme;

use super::*;

const UNIX: u64 = 784_111_777;
const DAY: &str = "Sun, 06 Nov 1994 08:00:00 GMT";

/// A cache with a clock and an origin.
struct World {
    cache: Cache<u32>,
    seconds: u64,
}

fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(status)
    }
}

fn get(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(Scheme::Http, "h", "/")
    }
}

fn key_of(request: &RequestHead) -> Key {
    Key::new(0, b"", request, false).expect("a plain request")
}

impl World {
    fn new(sharing: Sharing, min_users: u8) -> Self {
        let config = Config {
            sharing,
            memory: 1 << 20,
            min_users,
        };
        Self {
            cache: Cache::new(config),
            seconds: 0,
        }
    }

    fn origin() -> Self {
        Self::new(Sharing::Origin, 1)
    }

    fn now(&self) -> Now {
        Now {
            elapsed: Duration::from_secs(self.seconds),
            unix: Some(UNIX + self.seconds),
        }
    }

    fn lookup(&mut self, user: u64, request: &RequestHead) -> Lookup<u32> {
        let group = Group::Origin("h".into());
        let key = key_of(request);
        self.cache
            .lookup(self.now(), &key, group, user, request, Some(&|| 7))
    }

    /// Looks a request up; returns its fetch, or panics.
    fn fetch(&mut self, request: &RequestHead) -> Box<Fetch> {
        match self.lookup(1, request) {
            Lookup::Fetch(fetch, _) => fetch,
            other => panic!("{other:?}"),
        }
    }

    fn receive(&mut self, fetch: &Fetch, response: &ResponseHead, body: &'static str) -> Received {
        let received = self.cache.receive(self.now(), fetch, response);
        self.cache.end_flight(fetch);
        if let Received::Store(pending) = received {
            let body = vec![Bytes::from_static(body.as_bytes())];
            let stored = self.cache.finish(*pending, body, None);
            return Received::Stored(stored.expect("a complete body"));
        }
        received
    }

    /// Fetches and stores a response.
    fn store(&mut self, asked: &[(&str, &str)], response: &[(&str, &str)], body: &'static str) {
        let fetch = self.fetch(&get(asked));
        let received = self.receive(&fetch, &head(200, response), body);
        assert!(matches!(received, Received::Stored(_)), "{received:?}");
    }

    /// Returns the body that serves a request, if the store has one.
    fn served(&mut self, asked: &[(&str, &str)]) -> Option<String> {
        match self.lookup(1, &get(asked)) {
            Lookup::Hit(stored) | Lookup::Stale(stored, _) => Some(text(&stored)),
            Lookup::Fetch(fetch, _) => {
                self.cache.end_flight(&fetch);
                None
            }
            Lookup::Join(_) | Lookup::NotCached => None,
        }
    }
}

fn text(stored: &Stored) -> String {
    let bytes: Vec<u8> = stored.body.slice(0, stored.body.len()).flatten().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");
