//! The errors of connections, in the words of the program.

use std::io;
use std::time::Duration;

use quinn::{ConnectionError, VarInt};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};
use tandem::error::{Error, Kind, Retry, Side};

/// The code with which HTTP/3 closes a connection without an error (RFC 9114 section 8.1).
const H3_NO_ERROR: VarInt = VarInt::from_u32(0x100);
/// The first code of an alert of TLS (RFC 9001 section 4.8).
const CRYPTO: u64 = 0x100;
/// The code of a server that accepts no connection (RFC 9000 section 20.1).
const CONNECTION_REFUSED: u64 = 0x02;

/// Returns true if the connection ended regularly.
pub(crate) fn is_regular(error: &ConnectionError) -> bool {
    match error {
        ConnectionError::LocallyClosed => true,
        ConnectionError::ApplicationClosed(close) => {
            close.error_code == H3_NO_ERROR || close.error_code == VarInt::from_u32(0)
        }
        _ => false,
    }
}

/// Returns the error of a connection to `side`.
pub(crate) fn of_connection(error: &ConnectionError, side: Side) -> Error {
    let own = |kind, detail: &str| Error::new(kind, side, detail.to_owned());
    let error = match error {
        ConnectionError::TransportError(error) => match alert(error.code.into()) {
            Some(alert) => match by_this_end(alert, &error.reason) {
                Some(problem) => tls(&problem, side),
                None => own(Kind::Tls, &error.reason),
            },
            None => own(
                Kind::Protocol,
                &format!("the other end broke QUIC: {error}"),
            ),
        },
        ConnectionError::ConnectionClosed(close) => {
            let code = u64::from(close.error_code);
            match alert(code) {
                Some(alert) => tls(&rustls::Error::AlertReceived(alert), side),
                None if code == CONNECTION_REFUSED => own(
                    Kind::Busy,
                    "the other end accepts no more connections at present",
                ),
                None => own(
                    Kind::Reset,
                    &format!("the other end closed the connection with the QUIC code {code:#x}"),
                ),
            }
        }
        ConnectionError::ApplicationClosed(close) => {
            let code = close.error_code.into_inner();
            let detail = format!("the other end closed the session with the HTTP/3 code {code:#x}");
            own(Kind::Reset, &detail)
        }
        ConnectionError::TimedOut => own(Kind::Timeout, "the other end does not respond"),
        ConnectionError::Reset => own(Kind::Reset, "the other end no longer knows the connection"),
        ConnectionError::LocallyClosed => own(Kind::Reset, "the connection was closed"),
        other @ (ConnectionError::VersionMismatch | ConnectionError::CidsExhausted) => {
            own(Kind::Protocol, &other.to_string())
        }
    };
    error.with_retry(Retry::IfIdempotent)
}

fn tls(error: &rustls::Error, side: Side) -> Error {
    Error::io(&io::Error::other(error.clone()), side)
}

fn alert(code: u64) -> Option<AlertDescription> {
    let alert = u8::try_from(code.checked_sub(CRYPTO)?).ok()?;
    Some(AlertDescription::from(alert))
}

/// Returns the error of TLS for which this end has sent an alert, if the alert or the words of
/// rustls tell it.
fn by_this_end(alert: AlertDescription, words: &str) -> Option<rustls::Error> {
    match alert {
        AlertDescription::UnknownCA => Some(CertificateError::UnknownIssuer.into()),
        AlertDescription::CertificateExpired => {
            Some(validity(words).unwrap_or(CertificateError::Expired).into())
        }
        AlertDescription::NoApplicationProtocol => Some(rustls::Error::NoApplicationProtocol),
        _ => None,
    }
}

/// Reads the dates from the words of rustls for a certificate that is not valid now. quinn passes
/// on nothing else, and one alert serves both cases.
fn validity(words: &str) -> Option<CertificateError> {
    let after = |before: &str| {
        let (_, rest) = words.split_once(before)?;
        let digits = rest.split(|it: char| !it.is_ascii_digit()).next()?;
        let seconds = Duration::from_secs(digits.parse().ok()?);
        Some(UnixTime::since_unix_epoch(seconds))
    };
    let time = after("verification time ")?;
    if let Some(not_after) = after("not valid after ") {
        return Some(CertificateError::ExpiredContext { time, not_after });
    }
    let not_before = after("not valid before ")?;
    Some(CertificateError::NotValidYetContext { time, not_before })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are those of rustls, so that another version of it cannot change them unseen.
    #[test]
    fn dates_are_read_from_the_words_of_rustls() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let (time, other) = (at(1_795_334_134), at(1_772_496_000));
        for problem in [
            CertificateError::ExpiredContext {
                time,
                not_after: other,
            },
            CertificateError::NotValidYetContext {
                time: other,
                not_before: time,
            },
        ] {
            let words = rustls::Error::from(problem.clone()).to_string();
            assert_eq!(validity(&words), Some(problem.clone()), "{words}");
            let found = by_this_end(AlertDescription::CertificateExpired, &words);
            assert_eq!(found, Some(problem.into()));
        }
        let found = by_this_end(AlertDescription::CertificateExpired, "no words");
        assert_eq!(found, Some(CertificateError::Expired.into()));
    }

    #[test]
    fn alert_codes_of_quic_are_those_of_tls() {
        assert_eq!(alert(0x130), Some(AlertDescription::UnknownCA));
        assert_eq!(alert(CRYPTO - 1), None);
        assert_eq!(alert(CRYPTO + 256), None);
    }

    #[test]
    fn end_of_a_connection_is_regular_by_its_code() {
        assert!(is_regular(&ConnectionError::LocallyClosed));
        assert!(!is_regular(&ConnectionError::TimedOut));
        assert_eq!(
            of_connection(&ConnectionError::TimedOut, Side::Peer).kind,
            Kind::Timeout
        );
    }
}
