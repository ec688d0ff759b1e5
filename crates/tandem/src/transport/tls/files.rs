//! Reads certificates and keys from PEM files (RFC 7468). Errors name the file and describe its
//! content.

use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;
use crate::secret::unreadable;

fn file_error(file: &str, problem: impl ToString) -> TlsError {
    TlsError::File {
        file: file.into(),
        problem: problem.to_string(),
    }
}

fn read(file: &str) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| file_error(file, unreadable(file, &error)))
}

/// Reads a chain of certificates, beginning with that of this end.
pub fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| file_error(file, error))?;
    if chain.is_empty() {
        let problem = format!("no certificate is in it: {}", contents(&bytes));
        return Err(file_error(file, problem));
    }
    Ok(chain)
}

/// Reads a private key.
pub fn private_key(file: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let problem = format!("no private key is in it: {}", contents(&bytes));
        file_error(file, problem)
    })
}

/// Reads the certificates of authorities.
pub fn roots(file: &str) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(file)? {
        store
            .add(certificate)
            .map_err(|error| file_error(file, error))?;
    }
    Ok(store)
}

/// Describes the content of a file that lacks the wanted item.
fn contents(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "it is empty".into();
    }
    let text = String::from_utf8_lossy(bytes);
    let mut labels: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("-----BEGIN ")?
                .strip_suffix("-----")
        })
        .collect();
    labels.sort_unstable();
    labels.dedup();
    labels.truncate(4);
    match labels.as_slice() {
        ["ENCRYPTED PRIVATE KEY"] => {
            "its key is encrypted; write it without a password (openssl pkey -in FILE -out FILE2)"
                .into()
        }
        [] if bytes.starts_with(&[0x30]) => {
            "it looks like DER; convert it to PEM (openssl x509 or pkey, -inform der)".into()
        }
        [] => "it is no PEM file (no line begins with -----BEGIN)".into(),
        labels => format!("it holds {}", labels.join(" and ")),
    }
}

/// The period in which a certificate is valid, in seconds of the Unix clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: i64,
    /// The last second.
    pub until: i64,
}

/// The remaining validity below which a certificate causes a warning: two weeks, in seconds.
const SOON: i64 = 14 * 86_400;

impl Validity {
    /// Reads the validity of the first certificate in a PEM file.
    pub fn of_file(file: &str) -> Result<Self, TlsError> {
        let chain = certificates(file)?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&chain[0])
            .map_err(|error| file_error(file, format!("its certificate is malformed: {error}")))?;
        Ok(Self::of(&certificate))
    }

    /// Returns the validity of a certificate.
    pub(super) fn of(certificate: &x509_parser::certificate::X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self {
            from: validity.not_before.timestamp(),
            until: validity.not_after.timestamp(),
        }
    }

    /// Returns whether `now` is within the period.
    pub fn contains(self, now: SystemTime) -> bool {
        let now = unix_seconds(now);
        self.from <= now && now <= self.until
    }

    /// Returns a warning if the certificate is not valid at `now`, or expires soon.
    pub fn warning(self, now: SystemTime) -> Option<String> {
        let now = unix_seconds(now);
        if now < self.from {
            let from = day(self.from);
            Some(format!(
                "is valid from {from} only; is this machine's clock right? It says {}",
                day(now)
            ))
        } else if now > self.until {
            Some(format!(
                "expired on {}: clients will refuse it; renew it",
                day(self.until)
            ))
        } else if self.until - now < SOON {
            let days = (self.until - now) / 86_400;
            let until = day(self.until);
            Some(format!("expires on {until}, in {days} days: renew it"))
        } else {
            None
        }
    }
}

fn unix_seconds(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

fn day(seconds: i64) -> String {
    time::OffsetDateTime::from_unix_timestamp(seconds).map_or_else(
        |_| format!("second {seconds} of the Unix clock"),
        |date| format!("{} {} {}", date.day(), date.month(), date.year()),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn contents_name_what_is_there() {
        for (bytes, part) in [
            (&b""[..], "empty"),
            (b"0\x82\x01\x01", "DER"),
            (b"hello\n", "no PEM file"),
            (
                b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
                "it holds CERTIFICATE",
            ),
            (b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "is encrypted"),
        ] {
            assert!(contents(bytes).contains(part), "{}", contents(bytes));
        }
    }

    #[test]
    fn validity_warns_before_during_and_after() {
        let validity = Validity {
            from: 1_000_000_000,
            until: 1_100_000_000,
        };
        let at = |seconds| validity.warning(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(at(999_999_999).is_some_and(|words| words.contains("from 9 September 2001 only")));
        assert_eq!(at(1_050_000_000), None);
        assert!(at(1_100_000_000 - 86_400).is_some_and(|words| words.contains("in 1 days")));
        assert!(
            at(1_100_000_001).is_some_and(|words| words.contains("expired on 9 November 2004"))
        );
    }
}
