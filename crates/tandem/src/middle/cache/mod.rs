//! The stage that answers requests from the gateway's cache, and stores the responses of origins.
//!
//! ```text
//!  push ─▶ CacheStage ─▶ lookup ─┬─ hit ──────────▶ parts of the stored response
//!                                ├─ join ─────────▶ parts of a flight ◀──┐
//!                                └─ fetch ─▶ next ─▶ head ─▶ pump ───────┘─▶ store
//! ```
//!
//! [`tandem_cache`] decides; this stage moves data. `reply` holds the states of the reply to GET or
//! HEAD, and `asking` its wait for the disk or another gateway of the fleet. `changing` holds the
//! states of the reply to an unsafe request. `pump` is the task that reads a response for all its
//! readers. `keyed` is the stage of the client, which has a cache for each isolation key.
//!
//! A forward gateway serves and stores only requests with a known first-party site, and separates
//! the sites. Otherwise a page could learn from the time of a response which pages the user visits
//! elsewhere. Users share no response over TLS. A site may know its user by a special field or by a
//! secret in the URL, which no rule of a shared cache distinguishes.

mod asking;
mod changing;
mod keyed;
mod pump;
mod reading;
mod reply;
mod status;
#[cfg(test)]
mod tests_memory;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_cache::{Key, Sharing};
use tandem_http::cache::{SiteData, clears, is_safe};
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};
use tandem_push::site::{first_party, site_of};

use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::response_cache::{CacheAddress, ResponseCache, ResponseOwner};
use crate::stage::Stage;
use changing::ChangingReply;
pub use keyed::KeyedCache;
use reply::CachedReply;
use status::CacheStatus;

/// The stage of one session.
pub struct CacheStage(Rc<CacheSession>);

/// The properties that the replies of a session share.
struct CacheSession {
    cache: Arc<ResponseCache>,
    /// The number of the session.
    number: u64,
    /// The owner of responses over plain HTTP.
    owner: ResponseOwner,
    /// The owner of responses over TLS.
    secure_owner: ResponseOwner,
    tells_status: bool,
    next: Rc<dyn Stage>,
}

impl CacheStage {
    /// Creates the stage for the session of `peer`. `user` is the number of its user. With
    /// `tells_status`, responses have the field `Cache-Status`.
    pub fn new(
        cache: &Arc<ResponseCache>,
        peer: Peer,
        user: u64,
        tells_status: bool,
        next: Rc<dyn Stage>,
    ) -> Self {
        let (number, secure) = match cache.config().sharing {
            Sharing::Private | Sharing::Client => (peer.session, peer.session),
            Sharing::Shared => (0, peer.session),
            Sharing::Origin => (0, 0),
        };
        let owner = |number| ResponseOwner { number, user };
        Self(Rc::new(CacheSession {
            cache: Arc::clone(cache),
            number: peer.session,
            owner: owner(number),
            secure_owner: owner(secure),
            tells_status,
            next,
        }))
    }
}

/// The last reply of a session, such as a validation in the background, may outlive the stage.
impl Drop for CacheSession {
    fn drop(&mut self) {
        let owner = &self.secure_owner;
        if owner.number != 0 {
            self.cache.end_owner(owner.number, &owner.group(""));
        }
    }
}

impl Stage for CacheStage {
    fn call(&self, exchange: Exchange) -> Reply {
        if !is_safe(&exchange.request.method) {
            return ChangingReply::reply(&self.0, exchange);
        }
        let is_read = matches!(exchange.request.method, Method::Get | Method::Head);
        match self.0.place(&exchange).filter(|_| is_read) {
            Some(place) => CachedReply::reply(&self.0, place, exchange),
            None => CacheSession::bypassing(&self.0, is_read, exchange),
        }
    }
}

impl CacheSession {
    /// Removes the responses of a user if its site demands that (Clear Site Data section 3.1).
    fn clear_if_told(&self, request: &RequestHead, head: &ResponseHead) {
        if clears(SiteData::Cache, request, head) {
            let owner = self.owner(request.scheme);
            if owner.number != 0 {
                self.cache.remove_group(&owner.group(""));
            }
        }
    }

    /// Returns the name of this cache in `Cache-Status`.
    fn name(&self) -> &'static str {
        match self.cache.config().sharing {
            Sharing::Client => "tandem-client",
            Sharing::Private | Sharing::Shared | Sharing::Origin => "tandem-gateway",
        }
    }

    /// Sends a request past the cache. The head of the response says that, if it is wanted.
    fn bypassing(session: &Rc<Self>, is_read: bool, exchange: Exchange) -> Reply {
        let scheme = exchange.request.scheme;
        let may_clear = scheme == Scheme::Https && session.owner(scheme).number != 0;
        let request = Arc::clone(&exchange.request);
        let reply = session.next.call(exchange);
        if !session.tells_status && !may_clear {
            return reply;
        }
        Reply::new(Bypassing {
            session: Rc::clone(session),
            request,
            status: CacheStatus::bypass(is_read),
            reply,
        })
    }

    /// Returns the key and group of a request, or `None` for one that the cache must not touch.
    fn place(&self, exchange: &Exchange) -> Option<CacheAddress> {
        let request = &exchange.request;
        let partition = self.partition(request, &exchange.isolation)?;
        let owner = self.owner(request.scheme);
        let has_body = !exchange.body.is_empty();
        Some(CacheAddress {
            key: Key::new(owner.number, &partition, request, has_body)?,
            group: owner.group(&request.authority),
        })
    }

    const fn owner(&self, scheme: Scheme) -> &ResponseOwner {
        match scheme {
            Scheme::Http => &self.owner,
            Scheme::Https => &self.secure_owner,
        }
    }

    /// Returns the isolation key and the first-party site of a request.
    fn partition(&self, request: &RequestHead, isolation: &Isolation) -> Option<Vec<u8>> {
        if self.cache.config().sharing == Sharing::Origin {
            return Some(Vec::new());
        }
        let site = first_party(request)?;
        Some(partition(isolation, &site))
    }

    /// Returns true if a fresh response serves a GET request without a body.
    fn holds_fresh(&self, request: &RequestHead, isolation: &Isolation) -> bool {
        let owner = self.owner(request.scheme);
        let key = self
            .partition(request, isolation)
            .and_then(|partition| Key::new(owner.number, &partition, request, false));
        let (cache, now) = (self.cache.lock(), self.cache.now());
        key.is_some_and(|key| cache.holds_fresh(now, &key, owner.user, request))
    }

    /// Notes that an unsafe request may change the resources of its origin now.
    fn note_change(&self, request: &RequestHead) {
        let owner = self.owner(request.scheme).number;
        let (mut cache, now) = (self.cache.lock(), self.cache.now());
        cache.note_change(now, owner, request);
    }

    /// Returns the partitions in which an unsafe request invalidates responses: that of its page,
    /// and that of its own site.
    fn changed(&self, exchange: &Exchange) -> Vec<Vec<u8>> {
        if self.cache.config().sharing == Sharing::Origin {
            return vec![Vec::new()];
        }
        let own = site_of(&exchange.request.authority);
        let page = first_party(&exchange.request).filter(|page| *page != own);
        let sites = page.into_iter().chain([own]);
        sites
            .map(|site| partition(&exchange.isolation, &site))
            .collect()
    }
}

/// Returns the partition of an isolation key and a first-party site.
fn partition(isolation: &Isolation, site: &str) -> Vec<u8> {
    let mut partition = Vec::new();
    let (user, password) = isolation.credentials().unwrap_or_default();
    let is_keyed = [u8::from(isolation.credentials().is_some())];
    for part in [&is_keyed, user, password, site.as_bytes()] {
        // A length before each part keeps different lists of parts different.
        partition.extend_from_slice(&(part.len() as u64).to_be_bytes());
        partition.extend_from_slice(part);
    }
    partition
}

/// The reply to a request that passed by the cache.
struct Bypassing {
    session: Rc<CacheSession>,
    request: Arc<RequestHead>,
    status: CacheStatus,
    reply: Reply,
}

impl Parts for Bypassing {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part {
            self.session.clear_if_told(&self.request, head);
            if self.session.tells_status {
                self.status.tell(self.session.name(), &mut head.fields);
            }
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Requests a page, with this value of the field `Api-Key`.
    async fn get(stage: &CacheStage, scheme: Scheme, key: Option<&str>) {
        let mut request = RequestHead::get(scheme, "a.example", "/");
        request.fields.push("sec-fetch-site", "none");
        if let Some(key) = key {
            request.fields.push("api-key", key);
        }
        let mut reply = stage.call(Exchange::internal(request));
        while let Some(part) = reply.part().await {
            part.unwrap();
        }
    }

    /// A site may know its user by any field, or by a secret in the URL.
    #[tokio::test]
    async fn shared_cache_separates_users_over_tls() {
        let cache = Arc::new(ResponseCache::new(tandem_cache::Config {
            sharing: Sharing::Shared,
            memory: 1 << 20,
            min_users: 1,
        }));
        let asked = Rc::new(Cell::new(0));
        let counter = Rc::clone(&asked);
        let origin: Rc<dyn Stage> = Rc::new(move |_: Exchange| {
            counter.set(counter.get() + 1);
            let mut head = ResponseHead::new(200);
            head.fields.push("cache-control", "public, max-age=600");
            head.fields.push("content-length", "0");
            Reply::ready(head, bytes::Bytes::new())
        });
        let exchanges = async {
            let stage = |session| {
                let peer = Peer {
                    session,
                    ..Peer::none()
                };
                CacheStage::new(&cache, peer, session, false, Rc::clone(&origin))
            };
            let [one, other] = [1, 2].map(stage);
            for (scheme, expected) in [(Scheme::Http, 1), (Scheme::Https, 2)] {
                asked.set(0);
                for stage in [&one, &other, &one, &other] {
                    get(stage, scheme, None).await;
                }
                assert_eq!(asked.get(), expected, "{scheme:?}");
            }
            // Two users of one client share its session.
            asked.set(0);
            for key in ["a", "b", "b"] {
                get(&one, Scheme::Https, Some(key)).await;
            }
            assert_eq!(asked.get(), 2);
        };
        tokio::task::LocalSet::new().run_until(exchanges).await;
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn hit_has_a_body_that_the_kernel_can_send() {
        let cache = Arc::new(ResponseCache::new(tandem_cache::Config {
            sharing: Sharing::Origin,
            memory: 1 << 20,
            min_users: 1,
        }));
        let origin: Rc<dyn Stage> = Rc::new(|_: Exchange| {
            let mut head = ResponseHead::new(200);
            head.fields.push("cache-control", "max-age=600");
            Reply::ready(head, bytes::Bytes::from(vec![7; 20_000]))
        });
        let exchanges = async {
            let stage = CacheStage::new(&cache, Peer::none(), 0, false, origin);
            get(&stage, Scheme::Http, None).await;
            let mut request = RequestHead::get(Scheme::Http, "a.example", "/");
            request.fields.push("sec-fetch-site", "none");
            let mut reply = stage.call(Exchange::internal(request));
            let head = reply.part().await;
            assert!(matches!(head, Some(Ok(Part::Head(_)))), "{head:?}");
            let Some(Ok(Part::Data(body))) = reply.part().await else {
                panic!("a hit in one piece");
            };
            let tail = crate::body_memory::tail(&[std::io::IoSlice::new(&body)]);
            assert_eq!(tail.map(|tail| tail.length), Some(20_000));
            assert!(body.iter().all(|byte| *byte == 7));
        };
        tokio::task::LocalSet::new().run_until(exchanges).await;
    }

    /// A stage whose first response never comes.
    struct Stalling(Cell<usize>);

    impl Stage for Stalling {
        fn call(&self, _: Exchange) -> Reply {
            match self.0.replace(self.0.get() + 1) {
                0 => Reply::generate(|_sink| std::future::pending()),
                _ => Reply::generate(|mut sink| async move {
                    sink.send(Part::Head(ResponseHead::new(200))).await;
                    Ok(())
                }),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_leaves_a_request_that_stalls() {
        let config = tandem_cache::Config {
            sharing: Sharing::Origin,
            memory: 1 << 20,
            min_users: 1,
        };
        let cache = Arc::new(ResponseCache::new(config));
        let next = Rc::new(Stalling(Cell::new(0)));
        let stage = CacheStage::new(&cache, Peer::none(), 0, false, Rc::clone(&next) as _);
        let call = || {
            let request = RequestHead::get(Scheme::Http, "own.example", "/");
            stage.call(Exchange::internal(request))
        };
        let leader = call();
        let mut waiter = call();
        assert_eq!(next.0.get(), 1);
        let part = waiter.part().await;
        assert!(matches!(part, Some(Ok(Part::Head(_)))), "{part:?}");
        assert_eq!(next.0.get(), 2);
        // No visitor waits after the first one.
        let before = tokio::time::Instant::now();
        let part = call().part().await;
        assert!(matches!(part, Some(Ok(Part::Head(_)))), "{part:?}");
        assert_eq!(
            (next.0.get(), before.elapsed()),
            (3, std::time::Duration::ZERO)
        );
        drop(leader);
    }

    /// An origin may answer each user's login before a `public` page that forbids stale use.
    #[tokio::test]
    async fn stale_page_of_a_login_is_not_shown_to_push() {
        for (field, is_shown) in [("authorization", false), ("cookie", false), ("x", true)] {
            let cache = Arc::new(ResponseCache::new(tandem_cache::Config {
                sharing: Sharing::Origin,
                memory: 1 << 20,
                min_users: 1,
            }));
            let origin: Rc<dyn Stage> = Rc::new(|_: Exchange| {
                let mut head = ResponseHead::new(200);
                let fields = &mut head.fields;
                fields.push("cache-control", "public, max-age=0, must-revalidate");
                fields.push("etag", "\"1\"");
                Reply::ready(head, bytes::Bytes::from_static(b"page"))
            });
            let exchanges = async {
                let stage = CacheStage::new(&cache, Peer::none(), 0, false, origin);
                let mut first = RequestHead::get(Scheme::Http, "own.example", "/");
                let plain = first.clone();
                first.fields.push(field, "1");
                let mut reply = stage.call(Exchange::internal(first));
                while reply.part().await.is_some() {}
                let reply = stage.call(Exchange::internal(plain));
                assert_eq!(reply.stale_response().is_some(), is_shown, "{field}");
            };
            tokio::task::LocalSet::new().run_until(exchanges).await;
        }
    }

    #[test]
    fn partition_separates_keys_from_sites() {
        let keyed = |user: &[u8], password: &[u8]| Isolation::new(user, password);
        let all = [
            partition(&Isolation::none(), "a.example"),
            partition(&keyed(b"a", b""), ".example"),
            partition(&keyed(b"", b"a"), ".example"),
            partition(&keyed(b"", b""), "a.example"),
            partition(&Isolation::none(), ""),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one));
        }
    }
}
