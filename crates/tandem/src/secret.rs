//! Secrets that a request or a server shows: access tokens of gateways, keys of the dashboard, and
//! hashes of Tor's cookie.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;

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

/// Describes the error of a file with a secret. systemd starts a service as a user who cannot read
/// files of root, and sets a variable from which the service recognises this.
pub(crate) fn unreadable(error: &io::Error) -> String {
    explain(error, std::env::var_os("INVOCATION_ID").is_some())
}

fn explain(error: &io::Error, is_service: bool) -> String {
    if is_service && error.kind() == io::ErrorKind::PermissionDenied {
        format!("{error}: pass the file to the service by LoadCredential= in its unit")
    } else {
        error.to_string()
    }
}

/// Compares a secret in a time that does not depend on the position of a difference.
pub(crate) fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
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
    fn unreadable_secret_of_a_service_has_a_remedy() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(explain(&denied, true).contains("LoadCredential="));
        assert_eq!(explain(&denied, false), denied.to_string());
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(explain(&missing, true), missing.to_string());
    }

    #[test]
    fn comparison_sees_each_difference() {
        assert!(is_equal(b"", b"") && is_equal(b"secret", b"secret"));
        for other in [&b"secres"[..], b"tecret", b"secre", b"secret ", b""] {
            assert!(!is_equal(b"secret", other));
        }
    }
}
