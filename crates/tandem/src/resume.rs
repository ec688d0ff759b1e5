//! The request by which a client learns the speed of its path, and offers the speed of an earlier
//! session ([`token`] holds the form of the latter).
//!
//! The client sends it at the start of a session, with the token of an earlier one, and after
//! responses. The gateway's response carries a new token ([`crate::middle::resume`]). Only the
//! gateway can read tokens, and it stores none. [`uses`] holds the results of their use.

pub mod token;
pub mod uses;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandem_http::{Fields, Method, RequestHead, Scheme};

use token::Keys;
use uses::Uses;

/// The authority of the request: a name that no origin can have, as
/// [`tandem_push::wire::is_reserved`] says.
const AUTHORITY: &str = "resume.tandem.invalid";
/// The field of a token, in requests and responses.
const FIELD: &str = "tandem-resume";
/// The characters of the longest token that a client keeps.
const LONGEST: usize = 256;

/// The tokens of a gateway, which all threads of its process share.
#[derive(Debug)]
pub struct SpeedTokens {
    /// Makes and opens the tokens.
    pub keys: Keys,
    start: Instant,
    uses: Mutex<Uses>,
}

impl Default for SpeedTokens {
    fn default() -> Self {
        Self {
            keys: Keys::random(),
            start: Instant::now(),
            uses: Mutex::default(),
        }
    }
}

impl SpeedTokens {
    /// Returns the time since the start of the keys.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the last trial of each network.
    pub fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the request, with the token of an earlier session if there is one.
pub fn request(token: Option<&str>) -> RequestHead {
    let mut request = RequestHead::get(Scheme::Http, AUTHORITY, "/".to_owned());
    if let Some(token) = token {
        request.fields.push_sensitive(FIELD, token);
    }
    request
}

/// Returns true for the request of [`request`].
pub fn is_request(request: &RequestHead) -> bool {
    request.authority == AUTHORITY && request.method == Method::Get
}

/// Adds a token to the fields of the response.
pub fn give(fields: &mut Fields, token: &str) {
    fields.push_sensitive(FIELD, token);
}

/// Returns the token in the fields of a request or response, if it may be one.
pub fn token_in(fields: &Fields) -> Option<&str> {
    let token = std::str::from_utf8(fields.get(FIELD)?).ok()?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (!token.is_empty() && token.len() <= LONGEST && token.bytes().all(is_token)).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_carries_the_token_of_an_earlier_session() {
        let first = request(None);
        assert!(is_request(&first) && token_in(&first.fields).is_none());
        let next = request(Some("a-token_1"));
        assert!(is_request(&next));
        assert_eq!(token_in(&next.fields), Some("a-token_1"));
        assert!(tandem_push::wire::is_reserved(&next.authority));
    }

    #[test]
    fn token_of_other_characters_is_ignored() {
        let long = "x".repeat(LONGEST + 1);
        for wrong in ["", "a b", "a=b", "\u{e9}", long.as_str()] {
            let mut fields = Fields::new();
            give(&mut fields, wrong);
            assert_eq!(token_in(&fields), None, "{wrong}");
        }
    }
}
