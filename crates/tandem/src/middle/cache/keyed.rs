//! The cache of the client: the stage of [`super::CacheStage`] for each isolation key.
//!
//! Requests with different keys share no response. The responses of a key end with its stage, some
//! minutes after the key's last request: a browser with a new identity has another key.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::CacheStage;
use crate::exchange::{Exchange, Isolation, Peer, Reply};
use crate::response_cache::ResponseCache;
use crate::stage::Stage;

/// The time after a key's last request from which its responses serve no more. The next request of
/// this or another key without a stage removes them.
const IDLE: Duration = Duration::from_secs(600);

/// The stage of a client.
pub struct KeyedCache {
    cache: Arc<ResponseCache>,
    /// The largest number of keys. The one that is unused for longest makes way.
    max_keys: usize,
    tells_status: bool,
    next: Rc<dyn Stage>,
    keys: RefCell<HashMap<Isolation, CacheOfKey>>,
    last_number: Cell<u64>,
}

/// The stage of one key.
struct CacheOfKey {
    stage: Rc<CacheStage>,
    used: Instant,
}

impl KeyedCache {
    /// Creates the stage. With `tells_status`, responses have the field `Cache-Status`.
    pub fn new(
        cache: &Arc<ResponseCache>,
        max_keys: usize,
        tells_status: bool,
        next: Rc<dyn Stage>,
    ) -> Self {
        Self {
            cache: Arc::clone(cache),
            max_keys,
            tells_status,
            next,
            keys: RefCell::default(),
            last_number: Cell::new(0),
        }
    }

    /// Returns the stage of a key, and creates it.
    fn of(&self, key: &Isolation) -> Rc<CacheStage> {
        let (mut keys, now) = (self.keys.borrow_mut(), Instant::now());
        let is_used = |of_key: &CacheOfKey| now.duration_since(of_key.used) < IDLE;
        if let Some(of_key) = keys.get_mut(key).filter(|of_key| is_used(of_key)) {
            of_key.used = now;
            return Rc::clone(&of_key.stage);
        }
        keys.retain(|_, of_key| is_used(of_key));
        if keys.len() >= self.max_keys {
            let oldest = keys.iter().min_by_key(|(_, of_key)| of_key.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                keys.remove(&oldest);
            }
        }
        self.last_number.set(self.last_number.get() + 1);
        let peer = Peer {
            session: self.last_number.get(),
            ..Peer::none()
        };
        let (user, next) = (peer.session, Rc::clone(&self.next));
        let stage = CacheStage::new(&self.cache, peer, user, self.tells_status, next);
        let stage = Rc::new(stage);
        let of_key = CacheOfKey {
            stage: Rc::clone(&stage),
            used: now,
        };
        keys.insert(key.clone(), of_key);
        stage
    }
}

impl Stage for KeyedCache {
    fn call(&self, exchange: Exchange) -> Reply {
        self.of(&exchange.isolation).call(exchange)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_cache::{Config, Sharing};
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;

    /// A cache before an origin that counts its requests.
    struct Client {
        stage: KeyedCache,
        cache: Arc<ResponseCache>,
        asked: Rc<Cell<usize>>,
    }

    fn client(max_keys: usize) -> Client {
        let config = Config {
            sharing: Sharing::Client,
            memory: 1 << 20,
            min_users: 1,
        };
        let cache = Arc::new(ResponseCache::new(config));
        let asked = Rc::new(Cell::new(0));
        let counter = Rc::clone(&asked);
        let origin: Rc<dyn Stage> = Rc::new(move |exchange: Exchange| {
            counter.set(counter.get() + 1);
            let mut head = ResponseHead::new(200);
            head.fields.push("cache-control", "max-age=3600");
            if exchange.request.path.starts_with("/clear") {
                head.fields
                    .push("clear-site-data", "\"cache\", \"cookies\"");
            }
            Reply::ready(head, Bytes::from_static(b"body"))
        });
        Client {
            stage: KeyedCache::new(&cache, max_keys, false, origin),
            cache,
            asked,
        }
    }

    impl Client {
        /// Requests a URL with a key. Returns whether it needed the origin.
        async fn asks(&self, key: &str, scheme: Scheme, path: &str) -> bool {
            let mut request = RequestHead::get(scheme, "a.example", path);
            request.fields.push("sec-fetch-site", "none");
            let exchange = Exchange {
                isolation: Isolation::new(key.as_bytes(), b""),
                ..Exchange::internal(request)
            };
            let before = self.asked.get();
            let mut reply = self.stage.call(exchange);
            while reply.part().await.is_some() {}
            self.asked.get() > before
        }

        async fn gets(&self, key: &str) -> bool {
            self.asks(key, Scheme::Http, "/").await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_share_no_response() {
        let scene = async {
            let client = client(8);
            assert!(client.gets("one").await);
            assert!(!client.gets("one").await);
            assert!(client.gets("other").await);
            assert!(!client.gets("one").await && !client.gets("other").await);
        };
        tokio::task::LocalSet::new().run_until(scene).await;
    }

    #[tokio::test(start_paused = true)]
    async fn responses_of_an_idle_key_are_removed() {
        let scene = async {
            let client = client(2);
            client.gets("one").await;
            tokio::time::advance(IDLE).await;
            client.gets("other").await;
            assert_eq!(client.cache.lock().store().len(), 1);
            assert!(client.gets("one").await);
            // A third key takes the place of the one that was unused for longest.
            tokio::time::advance(Duration::from_secs(1)).await;
            client.gets("third").await;
            assert_eq!(client.cache.lock().store().len(), 2);
        };
        tokio::task::LocalSet::new().run_until(scene).await;
    }

    #[tokio::test(start_paused = true)]
    async fn idle_key_gets_none_of_its_earlier_responses() {
        let scene = async {
            let client = client(8);
            client.gets("one").await;
            tokio::time::advance(IDLE).await;
            assert!(client.gets("one").await);
            assert_eq!(client.cache.lock().store().len(), 1);
        };
        tokio::task::LocalSet::new().run_until(scene).await;
    }

    /// A page of another site may end a login, and a long URL has no place in the cache.
    #[tokio::test(start_paused = true)]
    async fn response_past_the_cache_clears_it_too() {
        let scene = async {
            let client = client(8);
            client.gets("one").await;
            let path = format!("/clear?{}", "x".repeat(9 << 10));
            client.asks("one", Scheme::Https, &path).await;
            assert!(client.gets("one").await);
        };
        tokio::task::LocalSet::new().run_until(scene).await;
    }

    #[tokio::test(start_paused = true)]
    async fn site_clears_the_responses_of_a_key() {
        let scene = async {
            let client = client(8);
            client.gets("one").await;
            client.gets("other").await;
            // The field means nothing over plain HTTP, where anyone could have written it.
            client.asks("one", Scheme::Http, "/clear").await;
            assert!(!client.gets("one").await);
            client.asks("one", Scheme::Https, "/clear").await;
            assert!(client.gets("one").await);
            assert!(!client.gets("other").await);
        };
        tokio::task::LocalSet::new().run_until(scene).await;
    }
}
