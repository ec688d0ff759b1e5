//! The parts of a response that the cache passes on: a stored one, or one under way.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tandem_http::{Fields, ResponseHead};

use crate::error::Error;
use crate::exchange::{Part, Parts, Reply};
use crate::response_cache::flight::{Flight, Piece};

/// The place of a reader in a flight.
pub(super) struct FlightReading {
    pub(super) flight: Arc<Flight>,
    pub(super) number: u64,
}

/// A stored response on its way.
pub(super) struct ServedResponse {
    pub(super) head: Option<ResponseHead>,
    pub(super) body: Box<dyn Iterator<Item = Bytes>>,
    pub(super) trailers: Option<Fields>,
    /// The reading of a long body, which takes the place of this state after the head.
    pub(super) rest: Option<FlightReading>,
}

impl FlightReading {
    pub(super) fn new(flight: Arc<Flight>) -> Self {
        let number = flight.join();
        Self { flight, number }
    }
}

/// The parts behind the head.
impl Parts for FlightReading {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let piece = ready!(self.flight.poll_piece(self.number, cx));
        Poll::Ready(piece.map(|piece| {
            piece.map(|piece| match piece {
                Piece::Data(data) => Part::Data(data),
                Piece::Trailers(trailers) => Part::Trailers(trailers),
            })
        }))
    }
}

impl Drop for FlightReading {
    fn drop(&mut self) {
        self.flight.leave(self.number);
    }
}

impl ServedResponse {
    pub(super) fn empty(head: ResponseHead) -> Self {
        Self {
            head: Some(head),
            body: Box::new(std::iter::empty()),
            trailers: None,
            rest: None,
        }
    }

    pub(super) fn next(&mut self) -> Option<Part> {
        if let Some(head) = self.head.take() {
            return Some(Part::Head(head));
        }
        let data = self.body.next().map(Part::Data);
        data.or_else(|| self.trailers.take().map(Part::Trailers))
    }
}
