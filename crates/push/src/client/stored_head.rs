//! The heads that a browser gets from a stored push.

use std::time::Duration;

use tandem_http::cache::{ResponsePolicy, validation};
use tandem_http::{RequestHead, ResponseHead};

use super::lifetime::MAX_UNSPECIFIED_WAIT;

/// Returns a stored head after `waited`. During its page load, a push is as good as a response from
/// the origin (RFC 9113 section 8.4.2). Later it is a stored one, and states its age (RFC 9111
/// section 5.1).
pub(super) fn with_age(head: &ResponseHead, waited: Duration) -> ResponseHead {
    let mut head = head.clone();
    if waited > MAX_UNSPECIFIED_WAIT {
        let policy = ResponsePolicy::of(&head);
        let age = policy.age.saturating_add(waited);
        head.fields.set("age", age.as_secs().to_string());
    }
    head
}

/// Returns whether a pushed head confirms the copy that a conditional request names (RFC 9111
/// section 4.3.2). Only the conditions of browsers count, and the head must have a validator. A
/// date must be the same: many origins send an older version in full, such as a restored one.
pub(crate) fn confirms_copy(asked: &RequestHead, head: &ResponseHead) -> bool {
    const CONDITIONS: [(&str, &str); 2] = [
        ("if-none-match", "etag"),
        ("if-modified-since", "last-modified"),
    ];
    let (asked, stored) = (&asked.fields, &head.fields);
    let condition = CONDITIONS.iter().find(|(name, _)| asked.contains(name));
    let has_validator = condition.is_some_and(|(name, validator)| {
        let (copy, own) = (asked.get(name), stored.get(validator));
        own.is_some() && (*name != "if-modified-since" || copy == own)
    });
    matches!(head.status, 200 | 304) && has_validator && validation::is_not_modified(asked, head)
}

/// Returns the 304 for a request whose copy a stored head confirms. If the gateway has decoded the
/// body of the copy, the copy has the weak form of the tag, and so does the 304.
pub(crate) fn confirmation(asked: &RequestHead, head: &ResponseHead) -> ResponseHead {
    let mut head = not_modified(head);
    validation::confirm_weak_tag(&asked.fields, &mut head.fields);
    head
}

/// Returns the 304 for a stored head (RFC 9110 section 15.4.5): the fields that describe the body
/// are left out.
pub(crate) fn not_modified(head: &ResponseHead) -> ResponseHead {
    let describes_body = |name: &[u8]| {
        (name.starts_with(b"content-") && name != b"content-location")
            || matches!(name, b"transfer-encoding" | b"trailer" | b"accept-ranges")
    };
    let mut fields = head.fields.clone();
    fields.retain(|field| !describes_body(field.name));
    ResponseHead {
        status: 304,
        fields,
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

    fn head(fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            status: 200,
            fields: fields.iter().copied().collect(),
        }
    }

    fn confirms(condition: &[(&str, &str)], stored: &[(&str, &str)]) -> bool {
        let asked = RequestHead {
            fields: condition.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "a.test", "/")
        };
        confirms_copy(&asked, &head(stored))
    }

    #[test]
    fn copy_is_confirmed_by_its_validator() {
        let tag = [("etag", "\"1\"")];
        assert!(confirms(&[("if-none-match", "W/\"1\"")], &tag));
        assert!(!confirms(&[("if-none-match", "\"2\"")], &tag));
        let date = [("last-modified", DATE)];
        assert!(confirms(&[("if-modified-since", DATE)], &date));
        assert!(!confirms(&[("if-modified-since", LATER)], &date));
        let stale = [("last-modified", LATER)];
        assert!(!confirms(&[("if-modified-since", DATE)], &stale));
        let both = [("if-none-match", "\"2\""), ("if-modified-since", DATE)];
        assert!(!confirms(&both, &[tag[0], date[0]]), "the tag decides");
    }

    #[test]
    fn confirmation_has_the_tag_of_the_copy() {
        for (copy, expected) in [("W/\"1\"", "W/\"1\""), ("\"1\"", "\"1\"")] {
            let asked = RequestHead {
                fields: [("if-none-match", copy)].into_iter().collect(),
                ..RequestHead::get(Scheme::Http, "a.test", "/")
            };
            let head = head(&[("etag", "\"1\"")]);
            assert!(confirms_copy(&asked, &head));
            let found = confirmation(&asked, &head);
            assert_eq!(found.fields.get("etag"), Some(expected.as_bytes()));
        }
    }

    #[test]
    fn copy_needs_a_condition_and_a_validator() {
        let tag = [("etag", "\"1\"")];
        assert!(!confirms(&[], &tag));
        assert!(!confirms(&[("if-none-match", "*")], &[]));
        assert!(!confirms(&[("if-match", "\"1\"")], &tag));
        assert!(!confirms(&[("if-modified-since", DATE)], &[("date", DATE)]));
        let mut missing = head(&tag);
        missing.status = 404;
        let asked = RequestHead {
            fields: [("if-none-match", "\"1\"")].into_iter().collect(),
            ..RequestHead::get(Scheme::Http, "a.test", "/")
        };
        assert!(!confirms_copy(&asked, &missing));
    }

    #[test]
    fn not_modified_has_no_fields_of_the_body() {
        let stored = head(&[
            ("etag", "\"1\""),
            ("cache-control", "max-age=60"),
            ("content-location", "/x"),
            ("content-type", "text/css"),
            ("content-length", "7"),
            ("content-encoding", "gzip"),
            ("accept-ranges", "bytes"),
            ("vary", "accept-encoding"),
        ]);
        let head = not_modified(&stored);
        assert_eq!(head.status, 304);
        let names: Vec<_> = head.fields.iter().map(|field| field.name).collect();
        let expected = ["etag", "cache-control", "content-location", "vary"];
        assert_eq!(names, expected.map(str::as_bytes));
    }
}
