//! Secrets that a request shows: access tokens of gateways, and the keys of the dashboard.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};

/// Returns a new secret of 192 random bits, as 32 characters that may stand in a URL.
///
/// # Errors
/// Fails if the system has no random numbers.
pub(crate) fn token() -> io::Result<String> {
    let mut bytes = [0; 24];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Compares a secret in a time that does not depend on the position of a difference.
pub(crate) fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_new_each_time() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert_eq!((one.len(), other.len()), (32, 32));
        assert_ne!(one, other);
    }

    #[test]
    fn comparison_sees_each_difference() {
        assert!(is_equal(b"", b"") && is_equal(b"secret", b"secret"));
        for other in [&b"secres"[..], b"tecret", b"secre", b"secret ", b""] {
            assert!(!is_equal(b"secret", other));
        }
    }
}
