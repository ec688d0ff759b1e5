//! Closed streams with frames still in flight, and the answer to such a stray frame. RST_STREAM is
//! never sent in response to RST_STREAM, and at most once for each stream (draft section 2.4.2).

use std::collections::{BTreeMap, VecDeque};

use tandem_http::StreamId;

/// The number of closed streams that are remembered.
const REMEMBERED: usize = 1024;

/// The last streams that closed.
#[derive(Debug, Default)]
pub(super) struct RecentlyClosed {
    answer: BTreeMap<StreamId, bool>,
    order: VecDeque<StreamId>,
}

impl RecentlyClosed {
    pub(super) fn remember(&mut self, id: StreamId, may_answer: bool) {
        if let Some(answer) = self.answer.get_mut(&id) {
            // A stream is answered once only; that may even have been before it was opened.
            *answer &= may_answer;
            return;
        }
        self.answer.insert(id, may_answer);
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.answer.remove(&oldest);
        }
    }

    /// Returns true if a frame of an unknown stream may be answered. A stream that was never open
    /// may be; the caller recognizes forgotten streams.
    pub(super) fn may_answer(&self, id: StreamId) -> bool {
        self.answer.get(&id).copied().unwrap_or(true)
    }

    pub(super) fn knows(&self, id: StreamId) -> bool {
        self.answer.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_answered_once() {
        let mut recent = RecentlyClosed::default();
        recent.remember(1, true);
        assert!(recent.may_answer(1));
        recent.remember(1, false);
        assert!(!recent.may_answer(1));
        for id in 2..3000 {
            recent.remember(id, false);
        }
        assert!(!recent.knows(1));
        assert!(recent.knows(2999));
        assert_eq!(recent.order.len(), REMEMBERED);
        assert_eq!(recent.answer.len(), REMEMBERED);
    }
}
