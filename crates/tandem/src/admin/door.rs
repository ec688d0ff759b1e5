//! The key of the dashboard: a secret of the process that each request for data shows, and codes
//! that are exchanged for it once.
//!
//! A page of another site knows neither, so it can read nothing, whatever name it gives this
//! machine. The key stands in a field of the request and never in a cookie: a browser would send a
//! cookie to every other port of this machine.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tandem_http::RequestHead;

use crate::secret::{is_equal, token};

/// The time in which a code can be exchanged.
const CODE_LIFE: Duration = Duration::from_secs(60);

/// The number of codes at a time. A new one replaces the oldest.
const MAX_CODES: usize = 8;

/// Admits requests to the dashboard.
pub struct Door {
    address: SocketAddr,
    key: String,
    codes: Mutex<VecDeque<(String, Instant)>>,
}

impl Door {
    /// Creates the door of the dashboard at `address`.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn new(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self {
            address,
            key: token()?,
            codes: Mutex::default(),
        })
    }

    /// Returns the address of the dashboard.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns a URL that opens the dashboard as often as needed.
    pub fn lasting_url(&self) -> String {
        format!("http://{}/#{}", self.address, self.key)
    }

    /// Returns a URL that opens the dashboard once, within a minute. Other users of the machine may
    /// see it in the list of processes after its use.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn url_for_once(&self, now: Instant) -> std::io::Result<String> {
        let code = token()?;
        let url = format!("http://{}/#{code}", self.address);
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        if codes.len() == MAX_CODES {
            codes.pop_front();
        }
        codes.push_back((code, now));
        Ok(url)
    }

    /// Returns true if a request shows the key.
    pub fn admits(&self, request: &RequestHead) -> bool {
        shown(request).is_some_and(|shown| is_equal(shown, self.key.as_bytes()))
    }

    /// Returns true if a request shows the key or a code. The code is then used up.
    pub fn redeems(&self, request: &RequestHead, now: Instant) -> bool {
        let Some(shown) = shown(request) else {
            return false;
        };
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|(_, issued)| now.saturating_duration_since(*issued) < CODE_LIFE);
        let found = codes
            .iter()
            .position(|(code, _)| is_equal(shown, code.as_bytes()));
        if let Some(at) = found {
            codes.remove(at);
        }
        found.is_some() || is_equal(shown, self.key.as_bytes())
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Returns the secret that a request shows (RFC 6750 section 2.1).
fn shown(request: &RequestHead) -> Option<&[u8]> {
    let value = request.fields.get("authorization")?;
    let (scheme, secret) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(secret)
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(secret: &str) -> RequestHead {
        let mut request = RequestHead::get(Scheme::Http, "127.0.0.1:8117", "/snapshot");
        let value = format!("Bearer {secret}");
        request.fields.push("authorization", value);
        request
    }

    fn door() -> Door {
        Door::new(([127, 0, 0, 1], 8117).into()).expect("a door")
    }

    fn code(url: &str) -> &str {
        url.strip_prefix("http://127.0.0.1:8117/#").expect("a URL")
    }

    #[test]
    fn door_admits_the_key_only() {
        let door = door();
        assert!(door.admits(&request(door.key())));
        assert_eq!(code(&door.lasting_url()), door.key());
        let longer = format!("{}x", door.key());
        let shorter = &door.key()[1..];
        let other = Door::new(door.address()).expect("a door");
        for wrong in ["", shorter, &longer, other.key()] {
            assert!(!door.admits(&request(wrong)), "{wrong}");
        }
        let without = RequestHead::get(Scheme::Http, "127.0.0.1:8117", "/");
        assert!(!door.admits(&without) && !door.redeems(&without, Instant::now()));
    }

    #[test]
    fn code_is_redeemed_once_within_a_minute() {
        let (door, now) = (door(), Instant::now());
        let url = door.url_for_once(now).expect("a URL");
        let first = request(code(&url));
        assert!(!door.admits(&first), "a code reads no data");
        assert!(door.redeems(&first, now) && !door.redeems(&first, now));
        let url = door.url_for_once(now).expect("a URL");
        let late = now + CODE_LIFE;
        assert!(!door.redeems(&request(code(&url)), late));
        let oldest = door.url_for_once(late).expect("a URL");
        for _ in 0..MAX_CODES {
            door.url_for_once(late).expect("a URL");
        }
        assert!(!door.redeems(&request(code(&oldest)), late));
        assert!(door.redeems(&request(door.key()), late));
    }
}
