//! The knowledge about browsers' requests beside the predictor: their mode,
//! and the formats of images that they accept.

use std::hash::BuildHasher;
use std::sync::{Arc, MutexGuard, PoisonError};

use tandem_http::RequestHead;
use tandem_push::image_accept::ImageAccept;

use super::{AGENTS, Learned};

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

    /// Notes the `Accept` of a user's request for an image.
    pub fn note_image_accept(&self, user: u64, request: &RequestHead) {
        self.image_accept().note(user, request);
    }

    /// Returns the `Accept` for images of the browser that has sent `request`, if enough users have
    /// sent it.
    pub fn image_accept_of(&self, request: &RequestHead) -> Option<Arc<[u8]>> {
        self.image_accept().of(request, self.config.min_users)
    }

    fn image_accept(&self) -> MutexGuard<'_, ImageAccept<AGENTS>> {
        let image_accept = self.image_accept.lock();
        image_accept.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;
    use tandem_predict::AutoConfig;

    use super::*;

    #[test]
    fn formats_of_images_are_those_of_enough_users() {
        let config = AutoConfig {
            min_users: 2,
            ..AutoConfig::default()
        };
        let learned = Learned::new(config, None).unwrap();
        let request = RequestHead {
            fields: [("user-agent", "S"), ("accept", "image/new")]
                .into_iter()
                .collect(),
            ..RequestHead::get(Scheme::Http, "h", "/a")
        };
        for (user, expected) in [(1, false), (1, false), (2, true)] {
            learned.note_image_accept(user, &request);
            assert_eq!(learned.image_accept_of(&request).is_some(), expected);
        }
    }

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
