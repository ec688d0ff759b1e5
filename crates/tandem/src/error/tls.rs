//! Words for failures of TLS, with dates that people can read and the remedy.

use std::borrow::Cow;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};

use super::Side;

/// The beginning of the explanation of a certificate that is not accepted. The rest may contain the
/// names in the certificate.
pub(crate) const BAD_CERTIFICATE: &str = "invalid peer certificate";

/// Explains a failure of a TLS connection to `side`. Remedies are named for the gateway only: a
/// visitor cannot change how a gateway reaches an origin.
pub(super) fn explain(error: &Error, side: Side) -> Cow<'static, str> {
    match error {
        Error::InvalidCertificate(error) => certificate(error, side),
        Error::InvalidMessage(_) | Error::PeerSentOversizedRecord if side == Side::Peer => {
            // Whoever intercepts the connection can cause this, so no remedy gives TLS up.
            "something that does not speak TLS answers instead of the gateway, such as the log-in \
             page of a network: log in with a browser, or use another network. If it is so on \
             every network, compare the port with the gateway's --listen"
                .into()
        }
        Error::InvalidMessage(_) => "the other end does not speak TLS on that port".into(),
        Error::AlertReceived(alert) => received(*alert, side),
        Error::NoApplicationProtocol => "the other end speaks TLS, but not this protocol".into(),
        other => other.to_string().into(),
    }
}

fn certificate(error: &CertificateError, side: Side) -> Cow<'static, str> {
    match error {
        CertificateError::UnknownIssuer if side == Side::Peer => {
            "its certificate is by an authority that is not known here: add ?ca=FILE with the \
             PEM file of that authority, or of the certificate itself if it is self-signed"
                .into()
        }
        CertificateError::UnknownIssuer => {
            "its certificate is by an authority that is not known here".into()
        }
        // A second certificate of `tandem init` has the subject of the first one.
        CertificateError::BadSignature if side == Side::Peer => format!(
            "{BAD_CERTIFICATE}: {error}: it has the name of a known authority and another key. If \
             the gateway has a new certificate, copy it to the file of ?ca= here"
        )
        .into(),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired on {}, and the clock of this machine says {}: \
             renew the certificate, or set the clock",
            moment(*not_after, *time),
            moment(*time, *not_after)
        )
        .into(),
        CertificateError::Expired => "its certificate has expired".into(),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is valid from {} only, and the clock of this machine says {}: \
             set the clock, or use another certificate",
            moment(*not_before, *time),
            moment(*time, *not_before)
        )
        .into(),
        CertificateError::NotValidYet => "its certificate is not valid yet".into(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            if side == Side::Peer =>
        {
            format!("{BAD_CERTIFICATE}: {error}: check the host, or add ?sni=NAME").into()
        }
        // The log would name a visited host.
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            if side == Side::Origin =>
        {
            "its certificate is for other names than that of this host".into()
        }
        // rustls has no name for this error of webpki.
        other if side == Side::Peer && other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority (CA:TRUE), which cannot be a gateway's too: \
             make it with openssl req -x509 -addext basicConstraints=critical,CA:FALSE"
                .into()
        }
        other => format!("{BAD_CERTIFICATE}: {other}").into(),
    }
}

/// Explains an alert that the other end sent (RFC 8446 section 6).
fn received(alert: AlertDescription, side: Side) -> Cow<'static, str> {
    let gateway = side == Side::Peer;
    match alert {
        AlertDescription::CertificateRequired if gateway => {
            "the gateway wants a client certificate: add ?cert=FILE&key=FILE".into()
        }
        // Another authority of the same name causes a wrong signature.
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError
            if gateway =>
        {
            "the gateway does not accept the client certificate: \
             it must be by the authority that the gateway's client-ca names"
                .into()
        }
        AlertDescription::CertificateExpired if gateway => {
            "the gateway says that the client certificate has expired".into()
        }
        AlertDescription::NoApplicationProtocol if gateway => {
            "the gateway speaks TLS, but not this session protocol: compare its --listen".into()
        }
        other => format!("the other end ended TLS with the alert {other:?}").into(),
    }
}

/// Writes a day as people do. Seconds beyond the calendar stay seconds.
fn day(time: UnixTime) -> String {
    let seconds = time.as_secs();
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok())
        .map_or_else(
            || format!("second {seconds} of the Unix clock"),
            |date| format!("{} {} {}", date.day(), date.month(), date.year()),
        )
}

/// Writes a moment as its day, with the time if `other` is on the same day.
fn moment(time: UnixTime, other: UnixTime) -> String {
    let day_of = day(time);
    if day_of != day(other) {
        return day_of;
    }
    let of_day = time.as_secs() % 86_400;
    format!("{day_of}, {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn expiry_is_told_by_dates() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let error = Error::InvalidCertificate(CertificateError::ExpiredContext {
            time: at(1_795_334_134),
            not_after: at(1_772_496_000),
        });
        let words = explain(&error, Side::Peer);
        assert!(words.contains("expired on 3 March 2026"), "{words}");
        assert!(words.contains("says 22 November 2026"), "{words}");
        assert_eq!(
            day(at(u64::MAX)),
            format!("second {} of the Unix clock", u64::MAX)
        );
    }

    /// A network's log-in page may answer, and whoever intercepts the connection.
    #[test]
    fn answer_without_tls_is_no_reason_to_give_it_up() {
        let error = Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let words = explain(&error, Side::Peer);
        assert!(
            words.contains("log-in page") && !words.contains("h2+tcp"),
            "{words}"
        );
    }

    #[test]
    fn moments_of_one_day_have_times() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let error = Error::InvalidCertificate(CertificateError::NotValidYetContext {
            time: at(1_795_338_000),
            not_before: at(1_795_348_860),
        });
        let words = explain(&error, Side::Peer);
        assert!(
            words.contains("from 22 November 2026, 12:01 UTC only"),
            "{words}"
        );
        assert!(
            words.contains("says 22 November 2026, 09:00 UTC"),
            "{words}"
        );
    }

    #[test]
    fn names_of_an_origin_are_left_out() {
        let name = "a.static.example.com";
        let error = Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from(name).expect("a name"),
            presented: vec!["DnsName(\"*.example.com\")".to_owned()],
        });
        let words = explain(&error, Side::Origin);
        assert!(words.contains("for other names"), "{words}");
        assert!(!words.contains("example"), "{words}");
        assert!(explain(&error, Side::Peer).contains(name));
    }

    #[test]
    fn remedies_are_for_the_gateway_only() {
        let name = Error::InvalidCertificate(CertificateError::NotValidForName);
        assert!(explain(&name, Side::Peer).contains("?sni=NAME"));
        assert!(!explain(&name, Side::Origin).contains("sni"));
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(explain(&unknown, Side::Peer).contains("ca=FILE"));
        assert!(!explain(&unknown, Side::Origin).contains("ca=FILE"));
        let anew = Error::InvalidCertificate(CertificateError::BadSignature);
        assert!(explain(&anew, Side::Peer).contains("?ca="));
        assert!(!explain(&anew, Side::Origin).contains("ca="));
    }
}
