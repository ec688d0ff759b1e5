//! The credentials of a request: the fields by which an origin may tell users apart (RFC 9110
//! section 11.6.2, RFC 6265).
//!
//! HTTP knows `Authorization` and `Cookie`. Many origins define fields of their own, and their
//! responses need not forbid storage, since RFC 9111 section 3.5 names `Authorization` only. Fields
//! whose name begins with `X-` do not count: their values are in the [key](crate::key), so that
//! users with other values get other responses.

use tandem_http::Fields;

/// Texts in the names of fields that carry credentials, such as `Private-Token`, `DPoP` (RFC 9449)
/// and `Client-Cert` (RFC 9440), also those of front servers that have checked a login themselves.
const MARKS: [&str; 16] = [
    "access-key",
    "api-key",
    "apikey",
    "auth",
    "cert",
    "credential",
    "dpop",
    "jwt",
    "password",
    "remote-",
    "secret",
    "session",
    "ssl-client-",
    "subscription-key",
    "token",
    "-user-",
];

/// Returns true if a request has a field that tells its user from others.
pub(crate) fn has_credentials(asked: &Fields) -> bool {
    asked.contains("cookie") || has_login(asked)
}

/// Returns true if a request has credentials other than cookies.
pub(crate) fn has_login(asked: &Fields) -> bool {
    asked.iter().any(|field| {
        let has = |mark: &str| memchr::memmem::find(field.name, mark.as_bytes()).is_some();
        // Front servers send such a field for users without a login too.
        let is_empty = field.value.is_empty() || field.value == b"NONE";
        !field.name.starts_with(b"x-") && !is_empty && MARKS.iter().any(|mark| has(mark))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: &str) -> Fields {
        [(name, "x")].into_iter().collect()
    }

    #[test]
    fn logins_are_found_by_the_names_of_fields() {
        for name in [
            "authorization",
            "private-token",
            "api-key",
            "dpop",
            "ocp-apim-subscription-key",
            "cf-access-jwt-assertion",
            "remote-user",
            "ssl-client-verify",
            "client-cert",
            "ssl-client-s-dn",
            "tailscale-user-login",
            "tandem-auth-connection",
        ] {
            assert!(has_login(&fields(name)), "{name}");
        }
        for name in [
            "accept",
            "user-agent",
            "sec-fetch-site",
            "idempotency-key",
            "x-api-key",
            "x-csrf-token",
        ] {
            assert!(!has_credentials(&fields(name)), "{name}");
        }
        for (name, value) in [("client-cert", ""), ("ssl-client-verify", "NONE")] {
            assert!(!has_login(&[(name, value)].into_iter().collect()), "{name}");
        }
        assert!(has_credentials(&fields("cookie")) && !has_login(&fields("cookie")));
    }
}
