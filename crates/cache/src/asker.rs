//! The properties of a request that decide about the use of a response besides `Vary` (RFC 9111
//! section 4.1). Many origins choose a response by them without a `Vary` field.
//!
//! | fields | compared |
//! |---|---|
//! | `Accept-Encoding` | a request must accept the content coding of the response |
//! | `Cookie`, `Authorization` | in a private cache, except with `public` or `s-maxage` |
//! | all other fields of a browser | in a private cache: several browsers may share its session |
//!
//! Fields named `tandem-*` are those of the pair, and the requests for pushes lack them. Only the
//! number of a connection that has logged in is compared.

use std::hash::{BuildHasher, RandomState};

use tandem_http::Fields;
use tandem_http::cache::accepts_content_encoding;

/// The fields that a private cache does not compare, because they belong to the connection, to
/// caches, to the way to the resource or to the rows above.
const IGNORED: [&[u8]; 21] = [
    b"accept-encoding",
    b"authorization",
    b"cache-control",
    b"connection",
    b"cookie",
    b"host",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"keep-alive",
    b"pragma",
    b"priority",
    b"proxy-authorization",
    b"proxy-connection",
    b"purpose",
    b"range",
    b"referer",
    b"sec-fetch-user",
    b"sec-purpose",
    b"te",
    b"upgrade-insecure-requests",
];

/// The prefix of the pair's own fields.
const OF_PAIR: &[u8] = b"tandem-";

/// The pair's field with the number of a connection that has logged in.
const LOGGED_IN: &str = "tandem-auth-connection";

/// The fields by which origins choose among versions that exist at the same time: by format, by
/// browser, and by the login of a connection.
const OF_VERSION: [&str; 3] = ["accept", "user-agent", LOGGED_IN];

/// The fields that a cache compares besides the content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// No fields, because the response serves several users.
    None,
    /// The fields of the browser.
    Browser,
    /// The fields of the browser, its cookies and its credentials.
    Person,
}

/// The properties of the request for a stored response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asker {
    /// The fields that another request must have too, unless anyone may get the response.
    fields: Option<AskerFields>,
    /// The request accepted the content coding of the response.
    accepts_coding: bool,
}

/// Hashes of the fields of a request.
#[derive(Clone, Debug)]
struct AskerFields {
    /// The secret of the cache, which keys the hashes.
    secret: RandomState,
    browser: u64,
    /// The hash of the fields [`OF_VERSION`].
    version: u64,
    /// The hash of the cookies and credentials, if only requests with the same ones may get the
    /// response.
    credentials: Option<u64>,
}

impl Asker {
    /// Returns the properties of a request with the fields `asked`, whose response has the fields
    /// `response`. `secret` keys the hashes of fields.
    pub(crate) fn new(
        secret: &RandomState,
        asked: &Fields,
        response: &Fields,
        compared: Compared,
    ) -> Self {
        let fields = (compared != Compared::None).then(|| AskerFields {
            secret: secret.clone(),
            browser: browser(secret, asked),
            version: version(secret, asked),
            credentials: (compared == Compared::Person).then(|| credentials(secret, asked)),
        });
        Self {
            fields,
            accepts_coding: accepts_content_encoding(asked, response),
        }
    }

    /// Returns the properties of a request of anyone.
    pub(crate) const fn of_anyone(accepts_coding: bool) -> Self {
        Self {
            fields: None,
            accepts_coding,
        }
    }

    /// Returns whether the request accepted the content coding of the response.
    pub(crate) const fn accepts_coding(&self) -> bool {
        self.accepts_coding
    }

    /// Returns true if a request with these fields has the credentials of the request, or anyone's
    /// may.
    pub(crate) fn has_credentials_of(&self, asked: &Fields) -> bool {
        self.fields
            .as_ref()
            .is_none_or(|own| own.has_credentials_of(asked))
    }

    /// Returns true if an origin would choose the same version of a resource for a request with
    /// these fields, or anyone may get the response.
    pub(crate) fn has_version_of(&self, asked: &Fields) -> bool {
        self.fields
            .as_ref()
            .is_none_or(|own| own.version == version(&own.secret, asked))
    }

    /// Returns true if a request with the fields `asked` may get the response, which has the fields
    /// `response`.
    pub(crate) fn is_like(&self, asked: &Fields, response: &Fields) -> bool {
        (!self.accepts_coding || accepts_content_encoding(asked, response))
            && self.fields.as_ref().is_none_or(|own| own.are_in(asked))
    }
}

impl AskerFields {
    fn are_in(&self, asked: &Fields) -> bool {
        self.browser == browser(&self.secret, asked) && self.has_credentials_of(asked)
    }

    fn has_credentials_of(&self, asked: &Fields) -> bool {
        self.credentials
            .is_none_or(|own| own == credentials(&self.secret, asked))
    }
}

fn credentials(secret: &RandomState, asked: &Fields) -> u64 {
    let cookies: Vec<_> = asked.get_all("cookie").collect();
    let credentials: Vec<_> = asked.get_all("authorization").collect();
    secret.hash_one((cookies, credentials))
}

/// Returns a hash of the fields by which origins choose versions.
fn version(secret: &RandomState, asked: &Fields) -> u64 {
    let fields = OF_VERSION.map(|name| asked.get_all(name).collect::<Vec<_>>());
    secret.hash_one(fields)
}

/// Returns a hash of the compared fields, in which their order has no part.
fn browser(secret: &RandomState, asked: &Fields) -> u64 {
    asked
        .iter()
        .filter(|field| is_compared(field.name))
        .map(|field| secret.hash_one((field.name, field.value)))
        .fold(0, u64::wrapping_add)
}

/// Returns true if a field with this name is one by which browsers differ.
fn is_compared(name: &[u8]) -> bool {
    !IGNORED.contains(&name) && (!name.starts_with(OF_PAIR) || name == LOGGED_IN.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(list: &[(&str, &str)]) -> Fields {
        list.iter().copied().collect()
    }

    #[test]
    fn only_a_login_of_the_pair_is_compared() {
        let (secret, response) = (RandomState::new(), Fields::default());
        let agent = ("user-agent", "b");
        let asker = Asker::new(&secret, &fields(&[agent]), &response, Compared::Browser);
        for name in ["tandem-opened", "tandem-asked-again", "tandem-crossed"] {
            assert!(
                asker.is_like(&fields(&[agent, (name, "1")]), &response),
                "{name}"
            );
        }
        for other in [("tandem-auth-connection", "1"), ("dnt", "1")] {
            assert!(
                !asker.is_like(&fields(&[agent, other]), &response),
                "{other:?}"
            );
        }
    }
}
