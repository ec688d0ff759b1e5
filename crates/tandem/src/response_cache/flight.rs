//! A response under way, read by the request that caused it and by others that wait for the same
//! URL, on any thread.
//!
//! ```text
//!  leader: request ─▶ origin ─▶ head ─▶ pump: parts ─▶ Flight ─▶ readers on all threads
//!                                └─ not reusable: the others make their own requests at once
//! ```
//!
//! The pump reads the origin as fast as the fastest reader, and a small window ahead. All pieces
//! stay until the response is stored. The stored body then takes their place, so that the readers
//! that are left need no second copy. If the response is not stored, because it is too long or the
//! memory is short, each piece goes once all readers have it, and the slowest reader limits the
//! rate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tandem_cache::{Body, PiecePlace, Stored};
use tandem_http::Fields;
use tokio::time::Instant;

use crate::error::{Error, Kind, Side};

/// The bytes that the pump reads ahead of the fastest reader.
const AHEAD: u64 = 256 << 10;

/// The bytes that the pump reads ahead of the fastest reader of a response that is not kept. No
/// budget counts them.
const AHEAD_UNKEPT: u64 = 16 << 10;

/// The bytes that readers of a response that is not kept may lag behind.
const LAG: u64 = 128 << 10;

/// The bytes of a stored body that a reader takes at once. Each counts as progress.
const STEP: u64 = 32 << 10;

/// A response under way.
#[derive(Debug)]
pub struct Flight(Mutex<FlightState>);

#[derive(Debug)]
struct FlightState {
    phase: FlightPhase,
    pieces: VecDeque<Bytes>,
    /// The stored body in place of the pieces, and the position after its last byte.
    stored: Option<(Body, u64)>,
    /// The position at which each reader begins.
    begin: u64,
    /// The last time at which a reader took a piece.
    moved: Instant,
    /// True if the pump shall no longer keep the pieces.
    is_given_up: bool,
    /// The number of pieces that have been dropped, and the bytes that have arrived.
    dropped: usize,
    arrived: u64,
    /// True if pieces stay until the end.
    keeps: bool,
    trailers: Option<Fields>,
    end: Option<Result<(), Error>>,
    readers: BTreeMap<u64, Reader>,
    next_reader: u64,
    /// The bytes that the fastest reader has read.
    fastest: u64,
    /// The task that fetches.
    source: Option<Waker>,
    /// True if a request, not only a push, waits.
    raised: bool,
}

/// The state of the response.
#[derive(Clone, Debug, Default)]
pub enum FlightPhase {
    /// The head has not arrived.
    #[default]
    Waiting,
    /// The body arrives, and the response may serve those that wait.
    Streaming(Arc<Stored>),
    /// A stored response serves the requests that wait.
    Stored(Arc<Stored>),
    /// The response serves no other request. Each makes its own: `alone` if the response cannot be
    /// shared, or after another decision if its request was given up.
    Released {
        /// True if the response cannot be shared.
        alone: bool,
    },
}

#[derive(Debug, Default)]
struct Reader {
    /// The index of the next piece, and the bytes read.
    next: usize,
    read: u64,
    /// The place in the stored body.
    place: PiecePlace,
    has_trailers: bool,
    waker: Option<Waker>,
}

/// A part of a flight.
#[derive(Debug)]
pub enum Piece {
    /// A piece of the body.
    Data(Bytes),
    /// The fields after the body.
    Trailers(Fields),
}

impl Flight {
    /// Creates a flight whose head has not arrived.
    pub fn new() -> Self {
        Self(Mutex::new(FlightState::new()))
    }

    /// Creates a flight that has arrived: the bytes of a stored body from `start` up to `end`. The
    /// one reader joins next.
    pub fn of_stored(body: Body, (start, end): (u64, u64), trailers: Option<Fields>) -> Self {
        let state = FlightState {
            stored: Some((body, end)),
            begin: start,
            fastest: start,
            trailers,
            end: Some(Ok(())),
            ..FlightState::new()
        };
        Self(Mutex::new(state))
    }

    fn lock(&self) -> MutexGuard<'_, FlightState> {
        // Each change of the state is complete before code that may panic runs.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader, and returns its number. A caller that found the flight in the cache holds the
    /// cache's lock, so that the flight is neither complete nor without its first pieces.
    pub fn join(&self) -> u64 {
        let mut state = self.lock();
        state.next_reader += 1;
        let number = state.next_reader;
        let reader = Reader {
            read: state.begin,
            ..Reader::default()
        };
        state.readers.insert(number, reader);
        number
    }

    /// Notes that a request, not only a push, waits.
    pub fn raise(&self) {
        let mut state = self.lock();
        let was_raised = std::mem::replace(&mut state.raised, true);
        let source = state.source.take_if(|_| !was_raised);
        drop(state);
        wake(source);
    }

    /// Removes a reader. The pump stops without readers.
    pub fn leave(&self, number: u64) {
        let mut state = self.lock();
        state.readers.remove(&number);
        let source = state.source.take();
        drop(state);
        wake(source);
    }

    /// Returns whether a request reads the response, or waits for it.
    pub fn has_readers(&self) -> bool {
        !self.lock().readers.is_empty()
    }

    /// Polls for the phase after [`FlightPhase::Waiting`].
    pub fn poll_phase(&self, number: u64, cx: &Context<'_>) -> Poll<FlightPhase> {
        let mut state = self.lock();
        if matches!(state.phase, FlightPhase::Waiting) {
            state.wait(number, cx);
            return Poll::Pending;
        }
        Poll::Ready(state.phase.clone())
    }

    /// Polls for the next piece of a reader.
    pub fn poll_piece(&self, number: u64, cx: &Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(reader) = state.readers.get_mut(&number) else {
            return Poll::Ready(None);
        };
        if let Some((body, end)) = &state.stored {
            let left = end.saturating_sub(reader.read).min(STEP);
            let piece = body.rest_of_piece(reader.read, &mut reader.place);
            if let Some(mut piece) = piece.filter(|_| left > 0) {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                reader.read += piece.len() as u64;
                state.moved = Instant::now();
                return Poll::Ready(Some(Ok(Piece::Data(piece))));
            }
        }
        let Some(index) = reader.next.checked_sub(state.dropped) else {
            let detail = "the response has gone on without this reader";
            let error = Error::new(Kind::Internal, Side::Local, detail);
            return Poll::Ready(Some(Err(error)));
        };
        if let Some(piece) = state.pieces.get(index) {
            let piece = piece.clone();
            reader.next += 1;
            reader.read += piece.len() as u64;
            let leads = reader.read > state.fastest;
            state.moved = Instant::now();
            state.fastest = state.fastest.max(reader.read);
            state.drop_read_pieces();
            // The other readers of a body that is kept do not change the rate.
            let source = state.source.take_if(|_| leads || !state.keeps);
            drop(guard);
            wake(source);
            return Poll::Ready(Some(Ok(Piece::Data(piece))));
        }
        match (&state.end, &state.trailers) {
            (Some(Ok(())), Some(trailers)) if !reader.has_trailers => {
                let trailers = trailers.clone();
                reader.has_trailers = true;
                Poll::Ready(Some(Ok(Piece::Trailers(trailers))))
            }
            (Some(Ok(())), _) => Poll::Ready(None),
            (Some(Err(error)), _) => Poll::Ready(Some(Err(error.clone()))),
            (None, _) => {
                state.wait(number, cx);
                Poll::Pending
            }
        }
    }

    /// Sets the phase, and wakes all readers.
    pub fn set_phase(&self, phase: FlightPhase) {
        let mut state = self.lock();
        state.phase = phase;
        let readers = state.take_wakers();
        drop(state);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Returns true if a request has joined that a push alone caused. The task is woken later
    /// otherwise.
    pub fn poll_raised(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.source = Some(cx.waker().clone());
        state.raised
    }

    /// Returns true if the pump shall no longer keep the pieces. A change wakes the task.
    pub fn is_given_up(&self) -> bool {
        self.lock().is_given_up
    }

    /// Asks the pump to keep the pieces no longer, so that their memory can serve another response.
    pub fn give_up(&self) {
        let mut state = self.lock();
        state.is_given_up = true;
        let source = state.source.take();
        drop(state);
        wake(source);
    }

    /// Returns the last time at which a reader took a piece.
    pub fn moved(&self) -> Instant {
        self.lock().moved
    }

    /// Puts the stored body in the place of the pieces.
    pub fn set_stored(&self, body: Body) {
        let mut state = self.lock();
        let pieces = std::mem::take(&mut state.pieces);
        let end = body.len();
        state.stored = Some((body, end));
        drop(state);
        drop(pieces);
    }

    /// Returns true if no reader has taken a piece since `before`, and the readers hold a body that
    /// the store has removed.
    pub fn is_stalled(&self, before: Instant) -> bool {
        self.lock().is_stalled(before)
    }

    /// Ends the flight for its readers and frees the stored body, if the flight still
    /// [is stalled](Self::is_stalled).
    pub fn cut(&self, before: Instant) {
        let mut state = self.lock();
        if !state.is_stalled(before) {
            return;
        }
        let body = state.stored.take();
        let detail = "the client took no bytes while the memory of the cache was short";
        state.end = Some(Err(Error::new(Kind::Timeout, Side::Client, detail)));
        let readers = state.take_wakers();
        drop(state);
        drop(body);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Polls until readers need more of the body: true, or false without readers.
    pub fn poll_wanted(&self, cx: &Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        state.source = Some(cx.waker().clone());
        let slowest = state.readers.values().map(|reader| reader.read).min();
        let Some(slowest) = slowest else {
            return Poll::Ready(false);
        };
        let ahead = if state.keeps { AHEAD } else { AHEAD_UNKEPT };
        let is_ahead = state.arrived - state.fastest >= ahead;
        let wanted = !is_ahead && (state.keeps || state.arrived - slowest < LAG);
        match wanted {
            true => Poll::Ready(true),
            false => Poll::Pending,
        }
    }

    /// Adds a piece of the body.
    pub fn push(&self, piece: Bytes) {
        let mut state = self.lock();
        state.arrived += piece.len() as u64;
        state.pieces.push_back(piece);
        let readers = state.take_wakers();
        drop(state);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Adds the fields after the body.
    pub fn set_trailers(&self, trailers: Fields) {
        self.lock().trailers = Some(trailers);
    }

    /// Drops each piece from now on once all readers have it. No reader may join any more.
    pub fn stop_keeping(&self) {
        let mut state = self.lock();
        state.keeps = false;
        state.drop_read_pieces();
    }

    /// Ends the body. The first end counts.
    pub fn end(&self, end: Result<(), Error>) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        let readers = state.take_wakers();
        drop(state);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Returns the whole body, as far as it has arrived, with its trailers.
    pub fn whole(&self) -> (Vec<Bytes>, Option<Fields>) {
        let state = self.lock();
        (
            state.pieces.iter().cloned().collect(),
            state.trailers.clone(),
        )
    }
}

impl Default for Flight {
    fn default() -> Self {
        Self::new()
    }
}

impl FlightState {
    fn new() -> Self {
        Self {
            phase: FlightPhase::default(),
            pieces: VecDeque::new(),
            stored: None,
            begin: 0,
            moved: Instant::now(),
            is_given_up: false,
            dropped: 0,
            arrived: 0,
            keeps: true,
            trailers: None,
            end: None,
            readers: BTreeMap::new(),
            next_reader: 0,
            fastest: 0,
            source: None,
            raised: false,
        }
    }

    fn is_stalled(&self, before: Instant) -> bool {
        let body = self.stored.as_ref().filter(|_| !self.readers.is_empty());
        self.moved <= before && body.is_some_and(|(body, _)| !body.is_kept())
    }

    fn wait(&mut self, number: u64, cx: &Context<'_>) {
        if let Some(reader) = self.readers.get_mut(&number) {
            reader.waker = Some(cx.waker().clone());
        }
    }

    /// Takes the wakers of all readers. The caller wakes them without the lock, since a task that
    /// ends leaves the flight.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let readers = self.readers.values_mut();
        readers.filter_map(|reader| reader.waker.take()).collect()
    }

    fn drop_read_pieces(&mut self) {
        if self.keeps {
            return;
        }
        let next = self.readers.values().map(|reader| reader.next).min();
        while next.is_some_and(|next| next > self.dropped) && self.pieces.pop_front().is_some() {
            self.dropped += 1;
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Bytes that tell when they leave the memory.
    struct Told(Vec<u8>, Arc<AtomicBool>);

    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }

    /// Reads a flight to its end.
    fn rest(flight: &Flight, reader: u64) -> Result<(Vec<u8>, bool), Error> {
        let cx = Context::from_waker(Waker::noop());
        let (mut body, mut has_trailers) = (Vec::new(), false);
        while let Poll::Ready(Some(piece)) = flight.poll_piece(reader, &cx) {
            match piece? {
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::Trailers(_) => has_trailers = true,
            }
        }
        Ok((body, has_trailers))
    }

    #[test]
    fn stored_body_takes_the_place_of_the_pieces() {
        let flight = Flight::new();
        let began = Instant::now() - std::time::Duration::from_millis(1);
        let (slow, begun) = (flight.join(), flight.join());
        let gone = Arc::new(AtomicBool::new(false));
        flight.push(Bytes::from_owner(Told(vec![1; 10], Arc::clone(&gone))));
        flight.push(Bytes::from(vec![2; 10]));
        let cx = Context::from_waker(Waker::noop());
        let first = flight.poll_piece(begun, &cx);
        assert!(matches!(first, Poll::Ready(Some(Ok(Piece::Data(_))))));
        drop(first);
        let whole = [vec![1; 10], vec![2; 10]].concat();
        let body = Body::new(vec![Bytes::from(whole.clone())]);
        flight.set_trailers([("x", "y")].into_iter().collect());
        flight.set_stored(body.clone());
        flight.end(Ok(()));
        assert!(gone.load(Ordering::SeqCst), "no second copy");
        drop(body);
        assert!(flight.is_stalled(Instant::now()));
        assert!(
            !flight.is_stalled(began),
            "a reader has taken a piece since"
        );
        flight.cut(began);
        assert_eq!(rest(&flight, begun), Ok((vec![2; 10], true)));
        flight.leave(begun);
        assert_eq!(rest(&flight, slow), Ok((whole, true)));
        flight.leave(slow);
        assert!(!flight.is_stalled(Instant::now()));
    }

    #[test]
    fn late_reader_gets_the_whole_body_or_an_error() {
        let cx = Context::from_waker(Waker::noop());
        let whole = [[1; 10], [2; 10]].concat();
        for is_kept in [true, false] {
            let flight = Flight::new();
            let early = flight.join();
            flight.push(Bytes::from(vec![1; 10]));
            flight.push(Bytes::from(vec![2; 10]));
            assert!(flight.poll_piece(early, &cx).is_ready());
            match is_kept {
                true => flight.set_stored(Body::new(vec![Bytes::from(whole.clone())])),
                false => flight.stop_keeping(),
            }
            flight.end(Ok(()));
            let late = flight.join();
            let read = rest(&flight, late).map_err(|error| error.kind);
            let expected = is_kept.then(|| (whole.clone(), false));
            assert_eq!(read, expected.ok_or(Kind::Internal));
            assert_eq!(rest(&flight, early), Ok((vec![2; 10], false)));
        }
    }

    #[test]
    fn flight_of_a_stored_body_has_a_range_and_can_end() {
        let bytes: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
        let body = || Body::new(vec![Bytes::from(bytes.clone())]);
        let flight = Flight::of_stored(body(), (10, 90_000), None);
        let reader = flight.join();
        let read = rest(&flight, reader);
        assert_eq!(read, Ok((bytes[10..90_000].to_vec(), false)));
        let flight = Flight::of_stored(body(), (0, 100_000), None);
        let reader = flight.join();
        let cx = Context::from_waker(Waker::noop());
        assert!(flight.poll_piece(reader, &cx).is_ready());
        flight.cut(Instant::now());
        let error = rest(&flight, reader).expect_err("a reading that was cut");
        assert_eq!((error.kind, error.side), (Kind::Timeout, Side::Client));
    }
}
