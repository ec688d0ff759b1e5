//! The credentials of a session's requests, with those that no field of the request shows: a login
//! of the connection to the origin, and tokens in fields that scripts add.
//!
//! [`compress`](crate::middle::compress) compresses no body that may depend on them.

use std::cell::RefCell;
use std::collections::HashSet;

use tandem_coding::rule::Credentials;
use tandem_http::RequestHead;
use tandem_http::message::logs_in_on_connection;
use tandem_push::fetch_standard::has_only_browser_fields;

/// The number of authorities that a session remembers. With more, each request counts as logged in.
const MAX_AUTHORITIES: usize = 64;

/// The authorities to which a session has logged in on a connection.
#[derive(Debug, Default)]
pub(super) struct Logins {
    /// The authorities in small letters. One more than the limit means all.
    authorities: RefCell<HashSet<String>>,
}

impl Logins {
    /// Remembers the authority of a request that logs in on its connection.
    pub(super) fn note(&self, request: &RequestHead) {
        let mut known = self.authorities.borrow_mut();
        if known.len() <= MAX_AUTHORITIES && logs_in_on_connection(&request.fields) {
            known.insert(request.authority.to_ascii_lowercase());
        }
    }

    /// Returns the credentials of a request.
    pub(super) fn credentials(&self, request: &RequestHead) -> Credentials {
        if self.is_logged_in(request) || !has_only_browser_fields(&request.fields) {
            return Credentials::Other;
        }
        Credentials::of(request)
    }

    fn is_logged_in(&self, request: &RequestHead) -> bool {
        let known = self.authorities.borrow();
        let is_one = || known.contains(&request.authority.to_ascii_lowercase());
        known.len() > MAX_AUTHORITIES || (!known.is_empty() && is_one())
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(authority: &str, fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, authority, "/")
        }
    }

    #[test]
    fn login_of_a_connection_lasts_for_its_authority() {
        let logins = Logins::default();
        let of = |authority| logins.credentials(&request(authority, &[]));
        assert_eq!(of("own.example"), Credentials::None);
        for scheme in ["Basic eDp5", "NTLM TlRM"] {
            logins.note(&request("Own.example", &[("authorization", scheme)]));
        }
        assert_eq!(of("own.example"), Credentials::Other);
        assert_eq!(of("other.example"), Credentials::None);
        for number in 0..MAX_AUTHORITIES {
            let fields = [("authorization", "negotiate abc")];
            logins.note(&request(&format!("{number}.example"), &fields));
        }
        assert_eq!(of("other.example"), Credentials::Other, "too many to tell");
    }

    #[test]
    fn field_of_a_script_may_be_a_token() {
        let logins = Logins::default();
        let of = |field| logins.credentials(&request("own.example", &[field]));
        assert_eq!(of(("x-auth-token", "secret")), Credentials::Other);
        assert_eq!(of(("accept-language", "de")), Credentials::None);
        assert_eq!(of(("cookie", "a=b")), Credentials::Cookies);
    }
}
