//! A response under way, read by the request that caused it and by others that wait for the same
//! URL, on any thread.
//!
//! ```text
//!  leader: request ─▶ origin ─▶ head ─▶ pump: parts ─▶ Flight ─▶ readers on all threads
//!                                └─ not reusable: the others make their own requests at once
//! ```
//!
//! The pump reads the origin as fast as the fastest reader, and a small window ahead. All pieces
//! stay until the response is stored. If it has become too long for the store, each piece goes once
//! all readers have it, and the slowest reader limits the rate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tandem_cache::Stored;
use tandem_http::Fields;

use crate::error::Error;

/// The bytes that the pump reads ahead of the fastest reader.
const AHEAD: u64 = 256 << 10;

/// The bytes that the pump reads ahead of the fastest reader of a response that is not kept. No
/// budget counts them.
const AHEAD_UNKEPT: u64 = 16 << 10;

/// The bytes that readers of a response that is not kept may lag behind.
const LAG: u64 = 128 << 10;

/// A response under way.
#[derive(Debug)]
pub struct Flight(Mutex<FlightState>);

#[derive(Debug, Default)]
struct FlightState {
    phase: FlightPhase,
    pieces: VecDeque<Bytes>,
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
        let state = FlightState {
            keeps: true,
            ..FlightState::default()
        };
        Self(Mutex::new(state))
    }

    fn lock(&self) -> MutexGuard<'_, FlightState> {
        // Each change of the state is complete before code that may panic runs.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader, and returns its number.
    pub fn join(&self, is_request: bool) -> u64 {
        let mut state = self.lock();
        state.next_reader += 1;
        let number = state.next_reader;
        state.readers.insert(number, Reader::default());
        let raise = is_request && !std::mem::replace(&mut state.raised, is_request);
        let source = state.source.take_if(|_| raise);
        drop(state);
        wake(source);
        number
    }

    /// Removes a reader. The pump stops without readers.
    pub fn leave(&self, number: u64) {
        let mut state = self.lock();
        state.readers.remove(&number);
        let source = state.source.take();
        drop(state);
        wake(source);
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
        let (index, dropped) = (reader.next, state.dropped);
        if let Some(piece) = index
            .checked_sub(dropped)
            .and_then(|it| state.pieces.get(it))
        {
            let piece = piece.clone();
            reader.next += 1;
            reader.read += piece.len() as u64;
            let leads = reader.read > state.fastest;
            state.fastest = state.fastest.max(reader.read);
            state.drop_read_pieces();
            // The other readers of a body that is kept do not change the rate.
            let source = state.source.take_if(|_| leads || !state.keeps);
            drop(guard);
            wake(source);
            return Poll::Ready(Some(Ok(Piece::Data(piece))));
        }
        let past_trailers = index > dropped + state.pieces.len();
        match (&state.end, &state.trailers) {
            (Some(Ok(())), Some(trailers)) if !past_trailers => {
                let trailers = trailers.clone();
                reader.next += 1;
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
