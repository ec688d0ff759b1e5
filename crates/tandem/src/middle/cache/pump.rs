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
