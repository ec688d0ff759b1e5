//! The reply to an unsafe request. A success invalidates stored responses (RFC 9111 section 4.4).
//! The response to POST may be stored itself, for later requests with GET (RFC 9110 section 9.3.3).
//!
//! The origin may change its resources until the end of the response, or without a response. The
//! cache learns of each part before the client gets it.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_cache::{Fetch, Key};
use tandem_http::{RequestHead, ResponseHead};
use tandem_preload::{resolve, split};

use super::CacheSession;
use super::pump::ResponsePump;
use super::reading::FlightReading;
use super::status::CacheStatus;
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::response_cache::flight::{Flight, FlightPhase};

/// The reply to one request.
pub(super) struct ChangingReply {
    session: Rc<CacheSession>,
    partitions: Vec<Vec<u8>>,
    request: Arc<RequestHead>,
    /// The request, if its response may serve later ones.
    fetch: Option<Box<Fetch>>,
    status: CacheStatus,
    /// The reply of the origin, or the reader of a response that is stored meanwhile.
    parts: Reply,
    has_ended: bool,
}

impl ChangingReply {
    /// Sends the request on, and makes its reply.
    pub(super) fn reply(session: &Rc<CacheSession>, exchange: Exchange) -> Reply {
        let cache = &session.cache;
        let place = session.place(&exchange);
        let fetch = place.and_then(|place| {
            let (now, user) = (cache.now(), session.owner.user);
            let (key, group) = (&place.key, place.group);
            cache.lock().post(now, key, group, user, &exchange.request)
        });
        session.note_change(&exchange.request);
        Reply::new(Self {
            session: Rc::clone(session),
            partitions: session.changed(&exchange),
            request: exchange.request.clone(),
            fetch,
            status: CacheStatus::bypass(false),
            parts: session.next.call(exchange),
            has_ended: false,
        })
    }

    /// Passes the final head to the cache.
    fn on_head(&mut self, head: &ResponseHead) {
        let cache = Arc::clone(&self.session.cache);
        let now = cache.now();
        self.session.clear_if_told(&self.request, head);
        let fetch = self.fetch.take();
        let fetch = fetch.filter(|_| self.is_representation(head));
        // This precedes the invalidation by the response itself. An invalidation from before shows
        // that another request has changed the resource.
        let pending = fetch.and_then(|fetch| {
            let pending = cache.lock().receive_post(now, &fetch, head)?;
            Some((fetch, pending))
        });
        let keys = self.targets(head);
        let method = &self.request.method;
        cache.lock().invalidate(now, method, head, &keys);
        if let Some((fetch, pending)) = pending {
            let flight = Arc::new(Flight::new());
            let reading = FlightReading::new(Arc::clone(&flight));
            flight.set_phase(FlightPhase::Streaming(Arc::clone(pending.entry())));
            let reply = std::mem::replace(&mut self.parts, Reply::new(reading));
            let is_kept = ResponsePump::start(&self.session, &flight, fetch, pending, reply);
            self.status.received(head.status, is_kept);
        }
    }

    /// Returns true if the origin says that a GET request for the same URL would get this response
    /// (RFC 9110 section 8.7).
    fn is_representation(&self, head: &ResponseHead) -> bool {
        let mut values = head.fields.get_all("content-location");
        let is_single = values.next().is_some() && values.next().is_none();
        let named = self.named(head, "content-location");
        is_single && named.is_some_and(|named| named.path == self.request.path)
    }

    /// Returns the keys that the response invalidates: of its URL, and of the URLs of the same
    /// origin that it names.
    fn targets(&self, head: &ResponseHead) -> Vec<Key> {
        let named = ["location", "content-location"];
        let named = named.into_iter().filter_map(|name| self.named(head, name));
        let own = RequestHead::clone(&self.request);
        let number = self.session.owner(self.request.scheme).number;
        let keys = |target: RequestHead| {
            let key = |partition: &Vec<u8>| Key::new(number, partition, &target, false);
            self.partitions.iter().filter_map(key).collect::<Vec<_>>()
        };
        [own].into_iter().chain(named).flat_map(keys).collect()
    }

    /// Returns a request for a URL of the same origin that a field names (RFC 9111 section 4.4).
    fn named(&self, head: &ResponseHead, name: &str) -> Option<RequestHead> {
        let request = &self.request;
        let base = request.url();
        let reference = std::str::from_utf8(head.fields.get(name)?).ok()?;
        let url = resolve(&base, reference)?;
        let (scheme, authority, path) = split(&url)?;
        let base = resolve(&base, "/")?;
        let (own_scheme, own_authority, _) = split(&base)?;
        if (scheme, authority) != (own_scheme, own_authority) {
            return None;
        }
        Some(RequestHead {
            path: path.to_owned(),
            ..RequestHead::clone(request)
        })
    }
}

impl Parts for ChangingReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.parts)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.parts.poll_part(cx);
        if part.is_ready() && !self.has_ended {
            self.has_ended = matches!(part, Poll::Ready(None | Some(Err(_))));
            self.session.note_change(&self.request);
        }
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part {
            self.on_head(head);
            if self.session.tells_status {
                self.status.tell(self.session.name(), &mut head.fields);
            }
        }
        part
    }
}

/// The origin may have got a request that is given up.
impl Drop for ChangingReply {
    fn drop(&mut self) {
        if !self.has_ended {
            self.session.note_change(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_cache::{Config, Sharing};
    use tandem_http::{Method, Scheme};
    use tokio::sync::Notify;

    use super::super::CacheStage;
    use crate::exchange::Peer;
    use crate::response_cache::ResponseCache;
    use crate::stage::Stage;

    use super::*;

    /// An origin whose first validation has the state of its arrival, and ends after a change.
    fn origin(changed: &Rc<Notify>) -> Rc<dyn Stage> {
        let changed = Rc::clone(changed);
        let version = Rc::new(std::cell::Cell::new(0u8));
        Rc::new(move |exchange: Exchange| {
            if exchange.request.method == Method::Post {
                version.set(version.get() + 1);
                let end = exchange.request.path == "/broken";
                return Reply::generate(move |mut sink| async move {
                    if end {
                        let (kind, side) = (crate::error::Kind::Reset, crate::error::Side::Origin);
                        return Err(Error::new(kind, side, "no response"));
                    }
                    let mut head = ResponseHead::new(500);
                    head.fields.push("content-length", "0");
                    sink.send(Part::Head(head)).await;
                    Ok(())
                });
            }
            let mut head = ResponseHead::new(200);
            head.fields.push("cache-control", "no-cache");
            let tag = format!("\"{}\"", version.get());
            let mut body = Bytes::from(version.get().to_string());
            let asked = exchange.request.fields.get("if-none-match");
            let waits = asked.is_some() && version.get() == 0;
            if asked == Some(tag.as_bytes()) {
                head.status = 304;
                body.clear();
            }
            head.fields.push("etag", tag);
            let changed = Rc::clone(&changed);
            Reply::generate(move |mut sink| async move {
                if waits {
                    changed.notified().await;
                }
                sink.send(Part::Head(head)).await;
                sink.send(Part::Data(body)).await;
                Ok(())
            })
        })
    }

    async fn body_of(mut reply: Reply) -> Vec<u8> {
        let mut body = Vec::new();
        while let Some(part) = reply.part().await {
            if let Ok(Part::Data(data)) = part {
                body.extend_from_slice(&data);
            }
        }
        body
    }

    /// The response of the change may be an error, and there may be none.
    #[tokio::test(start_paused = true)]
    async fn request_after_a_change_gets_the_changed_resource() {
        for (sharing, path) in [
            (Sharing::Private, "/change"),
            (Sharing::Private, "/broken"),
            (Sharing::Shared, "/change"),
            (Sharing::Origin, "/change"),
        ] {
            let config = Config {
                sharing,
                memory: 1 << 20,
                min_users: 1,
            };
            let cache = Arc::new(ResponseCache::new(config));
            let changed = Rc::new(Notify::new());
            let peer = Peer {
                session: 1,
                ..Peer::none()
            };
            let stage = CacheStage::new(&cache, peer, 1, false, origin(&changed));
            let call = |method, path| {
                let mut request = RequestHead::get(Scheme::Http, "a.example", path);
                request.method = method;
                request.fields.push("sec-fetch-site", "none");
                stage.call(Exchange::internal(request))
            };
            let tick = || tokio::time::advance(std::time::Duration::from_millis(1));
            let scene = async {
                assert_eq!(body_of(call(Method::Get, "/")).await, b"0");
                tick().await;
                let older = tokio::task::spawn_local(body_of(call(Method::Get, "/")));
                tick().await;
                body_of(call(Method::Post, path)).await;
                tick().await;
                let newer = tokio::task::spawn_local(body_of(call(Method::Get, "/")));
                tick().await;
                changed.notify_one();
                assert_eq!(newer.await.unwrap(), b"1", "{sharing:?} {path}");
                assert_eq!(older.await.unwrap(), b"0", "{sharing:?} {path}");
                tick().await;
                // The response of the older request has not replaced the newer one.
                assert_eq!(body_of(call(Method::Get, "/")).await, b"1");
            };
            tokio::task::LocalSet::new().run_until(scene).await;
        }
    }
}
