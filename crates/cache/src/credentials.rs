//! The credentials of a request: the fields by which an origin may tell users apart (RFC 9110
//! section 11.6.2, RFC 6265).
//!
//! HTTP knows `Authorization` and `Cookie`. Many origins define fields of their own, and their
//! responses need not forbid storage, since RFC 9111 section 3.5 names `Authorization` only. Fields
//! whose name begins with `X-` are in the [key](crate::key) instead.

use tandem_http::Fields;

/// Texts in the names of fields that carry credentials, such as `Private-Token`, `DPoP` (RFC 9449)
/// and `Client-Cert` (RFC 9440).
const MARKS: [&str; 11] = [
    "api-key",
    "apikey",
    "auth",
    "cert",
    "credential",
    "dpop",
    "jwt",
    "password",
    "secret",
    "session",
    "token",
];

/// Further names and their ends: those of front servers that have checked a login themselves.
const ENDS: [&str; 4] = [
    "-key",
    "remote-user",
    "ssl-client-s-dn",
    "ssl-client-verify",
];

/// Returns true if a request has a field that tells its user from others.
pub(crate) fn has_credentials(asked: &Fields) -> bool {
    asked.contains("cookie") || has_login(asked)
}

/// Returns true if a request has credentials other than cookies.
pub(crate) fn has_login(asked: &Fields) -> bool {
    asked.iter().any(|field| {
        let has = |mark: &str| memchr::memmem::find(field.name, mark.as_bytes()).is_some();
        let ends = |end: &str| field.name.ends_with(end.as_bytes());
        MARKS.iter().any(|mark| has(mark)) || ENDS.iter().any(|end| ends(end))
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
        ] {
            assert!(has_login(&fields(name)), "{name}");
        }
        for name in ["accept", "user-agent", "sec-fetch-site", "dnt", "keyboard"] {
            assert!(!has_credentials(&fields(name)), "{name}");
        }
        assert!(has_credentials(&fields("cookie")) && !has_login(&fields("cookie")));
    }
}
