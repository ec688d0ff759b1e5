//! Requests that must not be repeated. The client cannot hide a refusal of them, so they wait until
//! the origin counts fewer requests than a browser makes at once.
//!
//! ```text
//!  POST ─▶ six places? ──no──▶ responses end ──after a while──▶ early requests end
//!             │ yes                   │                                │
//!             ▼                       ▼                                ▼
//!           origin ◀── a response time after the last request that ended before its response
//! ```
//!
//! An origin counts a request whose connection has closed until it learns of that.

use std::future::Future;

use tandem_http::Scheme;
use tokio::time::Instant;

use super::growths::Growths;
use super::{OriginKey, PoliteState};
use crate::back::growth::{FLOOR, Growth};
use crate::back::places::ConnectionPlace;
use crate::error::{Error, Kind};
use crate::exchange::Part;
use crate::transport::Target;

/// The number of waits for ended requests. A page may end requests again and again.
const MAX_WAITS: usize = 3;

/// A request that must not be repeated, under way or waiting.
pub(super) struct Hold<'a> {
    state: &'a PoliteState,
    key: &'a OriginKey,
}

impl<'a> Hold<'a> {
    /// Holds the limit of an origin.
    pub(super) fn new(state: &'a PoliteState, key: &'a OriginKey) -> Self {
        state.growths.note(key, |growth, _| growth.hold());
        Self { state, key }
    }

    /// Waits for a place, and for the end of requests at the origin. Early requests that delay it
    /// for long end.
    pub(super) async fn place(
        &self,
        place: impl Future<Output = ConnectionPlace<(Scheme, Target)>>,
    ) -> ConnectionPlace<(Scheme, Target)> {
        let mut place = std::pin::pin!(place);
        let patience = self.state.growths.patience(self.key);
        let place = match tokio::time::timeout(patience, &mut place).await {
            Ok(place) => place,
            Err(_) => {
                let surplus = (self.taken() + 1).saturating_sub(FLOOR);
                self.state.early.end(self.key, surplus);
                place.await
            }
        };
        for _ in 0..MAX_WAITS {
            // This request has a place as well.
            let room = FLOOR.saturating_sub(self.taken());
            match self.state.growths.abandoned_until(self.key, room) {
                Some(until) => tokio::time::sleep_until(Instant::from_std(until)).await,
                None => break,
            }
        }
        place
    }

    fn taken(&self) -> usize {
        self.state.places.taken_at(self.key.0, &self.key.1)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.state.growths.release(self.key);
        self.state.places.serve(self.key.0);
    }
}

/// A request that the origin counts. If it ends before its response, the origin learns of that
/// later.
pub(super) struct SentRequest<'a> {
    growths: &'a Growths,
    key: &'a OriginKey,
    sent: Instant,
    is_over: bool,
}

impl<'a> SentRequest<'a> {
    pub(super) fn new(growths: &'a Growths, key: &'a OriginKey) -> Self {
        Self {
            growths,
            key,
            sent: Instant::now(),
            is_over: false,
        }
    }

    /// Notes a part of the response.
    pub(super) fn note(&mut self, part: Option<&Result<Part, Error>>) {
        match part {
            Some(Ok(Part::Head(_))) => {
                let time = self.sent.elapsed();
                self.growths
                    .note(self.key, |growth, _| growth.note_head(time));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => self.is_over = error.kind != Kind::Timeout,
            None => self.is_over = true,
        }
    }
}

impl Drop for SentRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.growths.change(self.key, Growth::note_abandoned);
        }
    }
}
