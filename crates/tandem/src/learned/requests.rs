//! The knowledge about browsers' requests beside the predictor: their mode.

use std::hash::BuildHasher;
use std::sync::PoisonError;

use super::Learned;

/// The maximum number of URLs in `by_cors`.
const BY_CORS: usize = 1 << 16;

impl Learned {
    /// Notes whether a browser requested a URL by CORS. A table that is full starts again.
    pub fn note_mode(&self, url: &str, is_by_cors: bool) {
        let number = self.secret.hash_one(url);
        let mut by_cors = self.by_cors.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_by_cors {
            by_cors.remove(&number);
            return;
        }
        if by_cors.len() >= BY_CORS {
            by_cors.clear();
        }
        by_cors.insert(number);
    }

    /// Returns whether the last request for a URL that showed its mode was made by CORS.
    pub fn is_by_cors(&self, url: &str) -> bool {
        let by_cors = self.by_cors.lock().unwrap_or_else(PoisonError::into_inner);
        by_cors.contains(&self.secret.hash_one(url))
    }
}

#[cfg(test)]
mod tests {
    use tandem_predict::AutoConfig;

    use super::*;

    #[test]
    fn modes_are_those_of_the_last_requests_and_bounded() {
        let learned = Learned::new(AutoConfig::default(), None).unwrap();
        for is_by_cors in [true, false] {
            learned.note_mode("http://h/a.js", is_by_cors);
            assert_eq!(learned.is_by_cors("http://h/a.js"), is_by_cors);
        }
        for number in 0..=BY_CORS {
            learned.note_mode(&format!("http://h/{number}"), true);
        }
        assert!(learned.is_by_cors(&format!("http://h/{BY_CORS}")));
        assert!(learned.by_cors.lock().unwrap().len() <= BY_CORS);
    }
}
