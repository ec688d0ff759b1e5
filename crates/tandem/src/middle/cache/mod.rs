//! The stage that answers requests from the gateway's cache, and stores the responses of origins.
//!
//! ```text
//!  push ─▶ CacheStage ─▶ lookup ─┬─ hit ──────────▶ parts of the stored response
//!                                ├─ join ─────────▶ parts of a flight ◀──┐
//!                                └─ fetch ─▶ next ─▶ head ─▶ pump ───────┘─▶ store
//! ```
//!
//! [`tandem_cache`] decides; this stage moves data. `reply` holds the states of one reply, and
//! `pump` the task that reads a response for all its readers.
//!
//! A forward gateway serves and stores only requests with a known first-party site, and separates
//! the sites. Otherwise a page could learn from the time of a response which pages the user visits
//! elsewhere.

mod pump;
mod reply;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_cache::{Key, Sharing};
use tandem_http::cache::is_safe;
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_preload::{resolve, split};
use tandem_push::site::site_of;

use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Peer, Reply};
use crate::response_cache::{Owner, Place, ResponseCache};
use crate::stage::Stage;
use reply::CachedReply;

/// The stage of one session.
pub struct CacheStage(Rc<Session>);

/// The properties that the replies of a session share.
struct Session {
    cache: Arc<ResponseCache>,
    owner: Owner,
    next: Rc<dyn Stage>,
}

impl CacheStage {
    /// Creates the stage for the session of `peer`. `user` is the number of its user.
    pub fn new(cache: &Arc<ResponseCache>, peer: Peer, user: u64, next: Rc<dyn Stage>) -> Self {
        let number = match cache.config().sharing {
            Sharing::Private => peer.session,
            Sharing::Shared | Sharing::Origin => 0,
        };
        Self(Rc::new(Session {
            cache: Arc::clone(cache),
            owner: Owner { number, user },
            next,
        }))
    }
}

impl Drop for CacheStage {
    fn drop(&mut self) {
        if self.0.owner.number != 0 {
            self.0.cache.remove_group(&self.0.owner.group(""));
        }
    }
}

impl Stage for CacheStage {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let Some(place) = self.0.place(&exchange) else {
            return self.0.next.call(exchange);
        };
        match request.method {
            Method::Get | Method::Head => CachedReply::reply(&self.0, place, exchange),
            _ if is_safe(&request.method) => self.0.next.call(exchange),
            _ => Reply::new(Invalidating {
                partition: self.0.partition(&exchange).unwrap_or_default(),
                target: place.key,
                request: request.clone(),
                session: Rc::clone(&self.0),
                reply: self.0.next.call(exchange),
            }),
        }
    }
}

impl Session {
    /// Returns the key and group of a request, or `None` for one that the cache must not touch.
    fn place(&self, exchange: &Exchange) -> Option<Place> {
        let partition = self.partition(exchange)?;
        let request = &exchange.request;
        let has_body = !exchange.body.is_empty();
        Some(Place {
            key: Key::new(self.owner.number, &partition, request, has_body)?,
            group: self.owner.group(&request.authority),
        })
    }

    /// Returns the isolation key and the first-party site of a request.
    fn partition(&self, exchange: &Exchange) -> Option<Vec<u8>> {
        if self.cache.config().sharing == Sharing::Origin {
            return Some(Vec::new());
        }
        let site = first_party(&exchange.request)?;
        let mut partition = Vec::new();
        if let Some((user, password)) = exchange.isolation.credentials() {
            for part in [user, password] {
                partition.push(part.len() as u8);
                partition.extend_from_slice(part);
            }
        }
        partition.extend_from_slice(site.as_bytes());
        Some(partition)
    }
}

/// Returns the first-party site of a request: that of its page, or its own site if the browser says
/// that the user or the same site caused it.
fn first_party(request: &RequestHead) -> Option<String> {
    let url = |name: &str| {
        let value = std::str::from_utf8(request.fields.get(name)?).ok()?;
        value.split_once("://").map(|(_, rest)| {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            site_of(&rest[..end])
        })
    };
    let own = || {
        let from = request.fields.get("sec-fetch-site")?;
        matches!(from, b"none" | b"same-origin" | b"same-site").then(|| site_of(&request.authority))
    };
    url("referer").or_else(|| url("origin")).or_else(own)
}

/// The reply to an unsafe request, which invalidates stored responses.
struct Invalidating {
    session: Rc<Session>,
    partition: Vec<u8>,
    target: Key,
    request: Arc<RequestHead>,
    reply: Reply,
}

impl Invalidating {
    fn invalidate(&self, head: &ResponseHead) {
        let cache = &self.session.cache;
        let named: Vec<Key> = ["location", "content-location"]
            .into_iter()
            .filter_map(|name| self.named(head, name))
            .collect();
        let now = cache.now();
        let method = &self.request.method;
        cache
            .lock()
            .invalidate(now, method, head, &self.target, &named);
    }

    /// Returns the key of a URL of the same origin that a field names (RFC 9111 section 4.4).
    fn named(&self, head: &ResponseHead, name: &str) -> Option<Key> {
        let request = &self.request;
        let base = format!(
            "{}://{}{}",
            request.scheme.as_str(),
            request.authority,
            request.path
        );
        let reference = std::str::from_utf8(head.fields.get(name)?).ok()?;
        let url = resolve(&base, reference)?;
        let (scheme, authority, path) = split(&url)?;
        let base = resolve(&base, "/")?;
        let (own_scheme, own_authority, _) = split(&base)?;
        if (scheme, authority) != (own_scheme, own_authority) {
            return None;
        }
        let target = RequestHead {
            path: path.to_owned(),
            ..RequestHead::clone(request)
        };
        Key::new(self.session.owner.number, &self.partition, &target, false)
    }
}

impl Parts for Invalidating {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &part {
            self.invalidate(head);
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    #[test]
    fn first_party_comes_from_the_page() {
        let of = |fields: &[(&str, &str)]| {
            first_party(&RequestHead {
                fields: fields.iter().copied().collect(),
                ..RequestHead::get(Scheme::Http, "img.own.example:8080", "/")
            })
        };
        let page = ("referer", "http://www.page.example/a?b");
        assert_eq!(of(&[page]).as_deref(), Some("page.example"));
        assert_eq!(
            of(&[("origin", "http://a.b.example")]).as_deref(),
            Some("b.example")
        );
        assert_eq!(
            of(&[page, ("origin", "null")]).as_deref(),
            Some("page.example")
        );
        for own in ["none", "same-origin", "same-site"] {
            assert_eq!(
                of(&[("sec-fetch-site", own)]).as_deref(),
                Some("own.example")
            );
        }
        for unknown in [
            &[][..],
            &[("sec-fetch-site", "cross-site")],
            &[("origin", "null")],
        ] {
            assert_eq!(of(unknown), None, "{unknown:?}");
        }
    }
}
