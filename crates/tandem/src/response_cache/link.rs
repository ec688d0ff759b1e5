//! The questions of the cache to the fleet and to the disk: whether another gateway lends a
//! response, and the response that a file holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tandem_cache::{Incoming, Name};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// The most questions without an answer. Requests beyond them do not ask: an engine or a disk that
/// stops delays this number of requests only.
const MAX_QUESTIONS: usize = 64;

/// The side of the cache.
#[derive(Debug)]
pub struct Link {
    questions: mpsc::Sender<LookupQuestion>,
    places: Arc<Semaphore>,
    is_up: Arc<AtomicBool>,
}

/// A question. Dropping it answers that there is no response.
#[derive(Debug)]
pub struct LookupQuestion {
    /// The name of the target.
    pub name: Name,
    answer: oneshot::Sender<Incoming>,
    _place: OwnedSemaphorePermit,
}

/// The side of the fleet or of the disk.
#[derive(Debug)]
pub struct LookupQuestions {
    questions: mpsc::Receiver<LookupQuestion>,
    is_up: Arc<AtomicBool>,
}

/// Creates both sides. No question passes before [`LookupQuestions::accept`].
pub fn link() -> (Link, LookupQuestions) {
    let (sender, receiver) = mpsc::channel(MAX_QUESTIONS);
    let is_up = Arc::new(AtomicBool::new(false));
    let link = Link {
        questions: sender,
        places: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        is_up: Arc::clone(&is_up),
    };
    let questions = LookupQuestions {
        questions: receiver,
        is_up,
    };
    (link, questions)
}

impl Link {
    /// Asks for a response, if the other side is in reach. The receiver fails if there is none.
    pub fn ask(&self, name: Name) -> Option<oneshot::Receiver<Incoming>> {
        if !self.is_up.load(Ordering::Relaxed) {
            return None;
        }
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (answer, answered) = oneshot::channel();
        let question = LookupQuestion {
            name,
            answer,
            _place: place,
        };
        self.questions.try_send(question).ok()?;
        Some(answered)
    }
}

impl LookupQuestion {
    /// Answers with a response.
    pub fn answer(self, incoming: Incoming) {
        // The request may wait no longer.
        let _ = self.answer.send(incoming);
    }
}

impl LookupQuestions {
    /// Lets questions pass from now on.
    pub fn accept(&self) {
        self.is_up.store(true, Ordering::Relaxed);
    }

    /// Answers the waiting questions with no, and lets none pass.
    pub fn refuse(&mut self) {
        self.is_up.store(false, Ordering::Relaxed);
        while self.questions.try_recv().is_ok() {}
    }

    /// Returns the next question, or `None` without a cache.
    pub async fn next(&mut self) -> Option<LookupQuestion> {
        self.questions.recv().await
    }
}

impl Drop for LookupQuestions {
    fn drop(&mut self) {
        self.refuse();
    }
}
