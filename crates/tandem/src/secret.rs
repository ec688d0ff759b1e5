//! Secrets that a request or a server shows: access tokens of gateways, keys of the dashboard, and
//! hashes of Tor's cookie.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;

/// A secret of the configuration. Its debug form does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::ops::Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

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

/// Describes the error of a file, such as one with a secret. systemd starts a service as a user who
/// cannot read files of root, and sets a variable from which the service recognises this. A
/// relative path begins at the working directory, also one in a configuration file.
pub(crate) fn unreadable(file: impl AsRef<Path>, error: &io::Error) -> String {
    let is_service = std::env::var_os("INVOCATION_ID").is_some();
    explain(file.as_ref(), error, is_service)
}

fn explain(file: &Path, error: &io::Error, is_service: bool) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_service => {
            format!("{error}: pass the file to the service by LoadCredential= in its unit")
        }
        io::ErrorKind::NotFound if file.is_relative() && is_service => {
            format!("{error}: give the whole path, or set WorkingDirectory= in the unit")
        }
        io::ErrorKind::NotFound if file.is_relative() => {
            let directory = std::env::current_dir().unwrap_or_default();
            format!(
                "{error} in {}, where relative paths begin: run the command in the directory of \
                 the configuration file",
                directory.display()
            )
        }
        _ => error.to_string(),
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
        let (absolute, relative) = (Path::new("/srv/token"), Path::new("token"));
        assert!(explain(relative, &denied, true).contains("LoadCredential="));
        assert_eq!(explain(absolute, &denied, false), denied.to_string());
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(explain(absolute, &missing, true), missing.to_string());
        let directory = std::env::current_dir().expect("a directory");
        assert!(explain(relative, &missing, true).contains("WorkingDirectory="));
        let text = explain(relative, &missing, false);
        assert!(
            text.contains(&format!("{},", directory.display())),
            "{text}"
        );
        assert!(
            text.ends_with("the directory of the configuration file"),
            "{text}"
        );
    }

    #[test]
    fn comparison_sees_each_difference() {
        assert!(is_equal(b"", b"") && is_equal(b"secret", b"secret"));
        for other in [&b"secres"[..], b"tecret", b"secre", b"secret ", b""] {
            assert!(!is_equal(b"secret", other));
        }
    }
}
