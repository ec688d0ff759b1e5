//! The task that reads the response of an origin for all readers of its flight, and stores it.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tandem_cache::{Fetch, Pending};

use super::CacheSession;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Part, Reply};
use crate::response_cache::ResponseCache;
use crate::response_cache::flight::Flight;

/// A response that is read from its origin.
pub(super) struct ResponsePump {
    cache: Arc<ResponseCache>,
    flight: Arc<Flight>,
    fetch: Box<Fetch>,
    pending: Option<Box<Pending>>,
    /// The number of the session that asked first.
    session: u64,
    /// The bytes of memory that are reserved.
    reserved: u64,
    /// The bytes that have arrived.
    arrived: u64,
}

/// The bytes of memory that are reserved before the body arrives. Only a response that gets them is
/// announced as one that is stored.
const AT_START: u64 = 4 << 10;

impl ResponsePump {
    /// Starts to read `reply`, whose head has arrived. Returns whether the response is to be
    /// stored.
    pub(super) fn start(
        session: &Rc<CacheSession>,
        flight: &Arc<Flight>,
        fetch: Box<Fetch>,
        pending: Box<Pending>,
        reply: Reply,
    ) -> bool {
        let mut pump = Self {
            cache: Arc::clone(&session.cache),
            flight: Arc::clone(flight),
            fetch,
            pending: Some(pending),
            session: session.number,
            reserved: 0,
            arrived: 0,
        };
        let is_kept = pump.reserve(AT_START);
        if !is_kept {
            pump.stop_keeping();
        }
        tokio::task::spawn_local(pump.run(reply));
        is_kept
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        let is_reserved = self.cache.reserve((self.session, &self.flight), bytes);
        self.reserved += if is_reserved { bytes } else { 0 };
        is_reserved
    }

    /// Stores the response no longer. The readers still get it.
    fn stop_keeping(&mut self) {
        self.pending = None;
        self.cache.end_flight(&self.fetch);
        self.flight.stop_keeping();
        self.release();
    }

    fn release(&mut self) {
        if self.reserved > 0 {
            self.cache
                .release((self.session, &self.flight), self.reserved);
            self.reserved = 0;
        }
    }

    async fn run(mut self, mut reply: Reply) {
        loop {
            let part = std::future::poll_fn(|cx| {
                let wanted = self.flight.poll_wanted(cx);
                if self.pending.is_some() && self.flight.is_given_up() {
                    self.stop_keeping();
                }
                match wanted {
                    Poll::Ready(true) => reply.poll_part(cx).map(Some),
                    Poll::Ready(false) => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            match part.await {
                // All readers have left, unless a request has joined since.
                None if self.cache.end_unread(&self.fetch, &self.flight) => return,
                None => {}
                Some(Some(Ok(Part::Data(data)))) => self.add(&data),
                Some(Some(Ok(Part::Trailers(trailers)))) => self.flight.set_trailers(trailers),
                Some(Some(Ok(_))) => {}
                Some(Some(Err(error))) => return self.flight.end(Err(error)),
                Some(None) => return self.finish(),
            }
        }
    }

    /// Adds a piece, which is copied: the bytes of a connection are a part of a larger buffer.
    fn add(&mut self, data: &Bytes) {
        self.arrived += data.len() as u64;
        if self.pending.is_some() {
            let fits = self.arrived <= self.cache.config().max_body();
            let missing = self.arrived.saturating_sub(self.reserved);
            if !(fits && (missing == 0 || self.reserve(missing))) {
                self.stop_keeping();
            }
        }
        self.flight.push(Bytes::copy_from_slice(data));
    }

    fn finish(&mut self) {
        if let Some(pending) = self.pending.take() {
            let (body, trailers) = self.flight.whole();
            let stored = self.cache.finish(&self.fetch, *pending, body, trailers);
            match stored {
                Some(stored) => {
                    self.flight.set_stored(stored.body.clone());
                    self.cache.note_complete(&self.flight);
                }
                None => self.flight.stop_keeping(),
            }
            self.release();
        }
        self.flight.end(Ok(()));
    }
}

impl Drop for ResponsePump {
    fn drop(&mut self) {
        self.cache.end_flight(&self.fetch);
        self.release();
        // A regular end came first. Otherwise the task was dropped with its runtime.
        self.flight.end(Err(Error::new(
            Kind::Internal,
            Side::Local,
            "the request that fetched the response has ended",
        )));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, OnceCell};
    use std::rc::Weak;
    use std::task::Context;

    use tandem_cache::{Config, Sharing};
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::super::CacheStage;
    use super::*;
    use crate::exchange::{Exchange, Parts, Peer};
    use crate::stage::Stage;

    fn cache() -> Arc<ResponseCache> {
        Arc::new(ResponseCache::new(Config {
            sharing: Sharing::Origin,
            memory: 1 << 20,
            min_users: 1,
        }))
    }

    fn storable() -> ResponseHead {
        let mut head = ResponseHead::new(200);
        head.fields.push("cache-control", "max-age=600");
        head
    }

    fn get(stage: &CacheStage) -> Reply {
        let request = RequestHead::get(Scheme::Http, "own.example", "/");
        stage.call(Exchange::internal(request))
    }

    /// A reply whose body never comes. Another request is made when it is given up.
    struct Endless {
        head: Option<ResponseHead>,
        stage: Weak<CacheStage>,
        next: Rc<Cell<Option<Reply>>>,
    }

    impl Parts for Endless {
        fn below(&self) -> Option<&Reply> {
            None
        }

        fn poll_part(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
            match self.head.take() {
                Some(head) => Poll::Ready(Some(Ok(Part::Head(head)))),
                None => Poll::Pending,
            }
        }
    }

    impl Drop for Endless {
        fn drop(&mut self) {
            let stage = self.stage.upgrade();
            self.next.set(stage.map(|stage| get(&stage)));
        }
    }

    #[tokio::test]
    async fn request_during_the_end_of_a_response_makes_its_own() {
        let own = Rc::new(OnceCell::<Weak<CacheStage>>::new());
        let next = Rc::new(Cell::new(None));
        let asked = Rc::new(Cell::new(0));
        let (of_origin, made, count) = (Rc::clone(&own), Rc::clone(&next), Rc::clone(&asked));
        let origin: Rc<dyn Stage> = Rc::new(move |_: Exchange| {
            count.set(count.get() + 1);
            if count.get() > 1 {
                return Reply::ready(storable(), Bytes::from_static(b"body"));
            }
            Reply::new(Endless {
                head: Some(storable()),
                stage: of_origin.get().cloned().unwrap_or_default(),
                next: Rc::clone(&made),
            })
        });
        let stage = Rc::new(CacheStage::new(&cache(), Peer::none(), 1, false, origin));
        assert!(own.set(Rc::downgrade(&stage)).is_ok());
        let exchanges = async {
            let mut first = get(&stage);
            assert!(matches!(first.part().await, Some(Ok(Part::Head(_)))));
            drop(first);
            let mut second = loop {
                match next.take() {
                    Some(reply) => break reply,
                    None => tokio::task::yield_now().await,
                }
            };
            let mut body = Vec::new();
            while let Some(part) = second.part().await {
                if let Part::Data(data) = part.expect("no failure") {
                    body.extend_from_slice(&data);
                }
            }
            assert_eq!((body, asked.get()), (b"body".to_vec(), 2));
        };
        tokio::task::LocalSet::new().run_until(exchanges).await;
    }
}
