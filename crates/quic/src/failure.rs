//! The errors of connections, in the words of the program.

use std::io;

use quinn::{ConnectionError, VarInt};
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
            Some(alert) => match by_this_end(alert) {
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

/// Returns the error of TLS for which this end has sent an alert, if the alert tells it.
fn by_this_end(alert: AlertDescription) -> Option<rustls::Error> {
    match alert {
        AlertDescription::UnknownCA => Some(CertificateError::UnknownIssuer.into()),
        AlertDescription::CertificateExpired => Some(CertificateError::Expired.into()),
        AlertDescription::NoApplicationProtocol => Some(rustls::Error::NoApplicationProtocol),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
