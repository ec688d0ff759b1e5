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
    /// The bytes that have arrived, as far as they are kept.
    reserved: u64,
}

impl ResponsePump {
    /// Starts to read `reply`, whose head has arrived.
    pub(super) fn start(
        session: &Rc<CacheSession>,
        flight: &Arc<Flight>,
        fetch: Box<Fetch>,
        pending: Box<Pending>,
        reply: Reply,
    ) {
        let pump = Self {
            cache: Arc::clone(&session.cache),
            flight: Arc::clone(flight),
            fetch,
            pending: Some(pending),
            reserved: 0,
        };
        tokio::task::spawn_local(pump.run(reply));
    }

    async fn run(mut self, mut reply: Reply) {
        loop {
            let part = std::future::poll_fn(|cx| match self.flight.poll_wanted(cx) {
                Poll::Ready(true) => reply.poll_part(cx).map(Some),
                Poll::Ready(false) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            match part.await {
                // All readers have left.
                None => return,
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
        let length = data.len() as u64;
        if self.pending.is_some() {
            let fits = self.reserved + length <= self.cache.config().max_body();
            if fits && self.cache.reserve(length) {
                self.reserved += length;
            } else {
                self.pending = None;
                self.cache.end_flight(&self.fetch);
                self.flight.stop_keeping();
            }
        }
        self.flight.push(Bytes::copy_from_slice(data));
    }

    fn finish(&mut self) {
        if let Some(pending) = self.pending.take() {
            let (body, trailers) = self.flight.whole();
            self.cache.finish(&self.fetch, *pending, body, trailers);
        }
        self.flight.end(Ok(()));
    }
}

impl Drop for ResponsePump {
    fn drop(&mut self) {
        self.cache.end_flight(&self.fetch);
        self.cache.release(self.reserved);
        // A regular end came first. Otherwise the task was dropped with its runtime.
        self.flight.end(Err(Error::new(
            Kind::Internal,
            Side::Local,
            "the request that fetched the response has ended",
        )));
    }
}
