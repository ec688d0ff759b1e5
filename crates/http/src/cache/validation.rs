//! Validation of stored responses (RFC 9111 section 4.3) with the conditional requests of RFC 9110
//! section 13.

use super::control::members;
use super::unix_seconds;
use crate::{Fields, ResponseHead};

/// Replaces the conditions of a request's fields by those that validate `stored`. Returns false for
/// a response without a validator (RFC 9111 section 4.3.1).
pub fn add_conditions(request: &mut Fields, stored: &ResponseHead) -> bool {
    let conditions = [
        ("if-none-match", stored.fields.get("etag")),
        ("if-modified-since", stored.fields.get("last-modified")),
    ];
    for (name, validator) in conditions {
        request.remove(name);
        if let Some(validator) = validator {
            request.push(name, validator);
        }
    }
    conditions.iter().any(|(_, validator)| validator.is_some())
}

/// The fields that make a request conditional (RFC 9110 section 13.1).
const CONDITIONS: [&str; 5] = [
    "if-none-match",
    "if-modified-since",
    "if-match",
    "if-unmodified-since",
    "if-range",
];

/// Returns true if a request is conditional: its response may be 304, 412 or partial.
pub fn is_conditional(request: &Fields) -> bool {
    CONDITIONS.iter().any(|name| request.contains(name))
}

/// Returns true if a request validates a copy that its sender has: its response may be 304. A
/// request for a part of a response does not, since a proxy may send it for a download.
pub fn validates_copy(request: &Fields) -> bool {
    ["if-none-match", "if-modified-since"]
        .iter()
        .any(|name| request.contains(name))
}

/// Removes the conditions of a request.
pub fn remove_conditions(request: &mut Fields) {
    for name in CONDITIONS {
        request.remove(name);
    }
}

/// Returns true if the client already holds the stored response, so that 304 is the response (RFC
/// 9111 section 4.3.2; RFC 9110 section 13.2.2). A malformed date is no condition.
pub fn is_not_modified(request: &Fields, stored: &ResponseHead) -> bool {
    if request.contains("if-none-match") {
        let tags = request.get_all("if-none-match").flat_map(members);
        let tag = stored.fields.get("etag").map(opaque_tag);
        return tags
            .into_iter()
            .any(|wanted| wanted == b"*" || Some(opaque_tag(wanted)) == tag);
    }
    let since = request.get("if-modified-since").and_then(unix_seconds);
    let date = |name: &str| stored.fields.get(name).and_then(unix_seconds);
    let modified = date("last-modified").or_else(|| date("date"));
    matches!((modified, since), (Some(modified), Some(since)) if modified <= since)
}

/// Gives a 304 the weak form of its strong tag if the condition of its request names that form, and
/// returns whether it did. The requester's copy has the weak tag, because a proxy has decoded its
/// body. A strong tag identifies no such copy (RFC 9111 section 4.3.4).
pub fn confirm_weak_tag(request: &Fields, not_modified: &mut Fields) -> bool {
    let Some(tag) = not_modified.get("etag") else {
        return false;
    };
    let weak = [&b"W/"[..], tag].concat();
    let mut asked = request.get_all("if-none-match").flat_map(members);
    let names_weak = !tag.starts_with(b"W/") && asked.any(|asked| asked == weak);
    if names_weak {
        not_modified.set("etag", weak);
    }
    names_weak
}

/// An entity tag without its mark of weakness: the weak comparison (RFC 9110 section 8.8.3.2).
fn opaque_tag(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns true if a 304 applies to the stored response (RFC 9111 section 4.3.4): they have the
/// same validator, or neither has one.
pub fn is_about(not_modified: &ResponseHead, stored: &ResponseHead) -> bool {
    let both = |name: &str| (not_modified.fields.get(name), stored.fields.get(name));
    match both("etag") {
        (Some(new), Some(held)) if !new.starts_with(b"W/") => new == held,
        (Some(new), Some(held)) => opaque_tag(new) == opaque_tag(held),
        (Some(_), None) => false,
        (None, _) => match both("last-modified") {
            (Some(new), held) => Some(new) == held,
            (None, _) => true,
        },
    }
}

/// Updates the fields of a stored response by those of a 304 (RFC 9111 section 3.2). Fields that
/// describe the stored body or one connection stay as they were.
pub fn freshen(stored: &mut ResponseHead, not_modified: &ResponseHead) {
    const KEPT: [&[u8]; 12] = [
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ];
    let new: Fields = not_modified
        .fields
        .iter()
        .filter(|field| !KEPT.contains(&field.name))
        .map(|field| (field.name, field.value))
        .collect();
    // A response that was just validated is as old as its validation says.
    stored.fields.retain(|field| {
        field.name != b"age" && !new.iter().any(|update| update.name == field.name)
    });
    for field in new.iter() {
        stored.fields.push(field.name, field.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(status)
        }
    }

    const DAY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

    #[test]
    fn conditions_come_from_the_stored_validators() {
        let stored = head(200, &[("etag", "W/\"1\""), ("last-modified", DAY)]);
        let mut request: Fields = [("if-none-match", "\"0\""), ("accept", "*/*")]
            .into_iter()
            .collect();
        assert!(add_conditions(&mut request, &stored));
        assert_eq!(
            request,
            [
                ("accept", "*/*"),
                ("if-none-match", "W/\"1\""),
                ("if-modified-since", DAY)
            ]
            .into_iter()
            .collect()
        );
        assert!(!add_conditions(&mut request, &head(200, &[])));
        assert!(!is_conditional(&request) && request.len() == 1);
        request.push("if-range", "\"1\"");
        assert!(is_conditional(&request) && !validates_copy(&request));
        request.push("if-modified-since", DAY);
        assert!(validates_copy(&request));
    }

    #[test]
    fn condition_of_a_client_is_evaluated() {
        let stored = head(200, &[("etag", "\"1\""), ("last-modified", DAY)]);
        for (fields, expected) in [
            (&[][..], false),
            (&[("if-none-match", "\"1\"")], true),
            (&[("if-none-match", "W/\"1\"")], true),
            (&[("if-none-match", "\"0\", \"1\"")], true),
            (&[("if-none-match", "\"a,b\" , \"1\"")], true),
            (&[("if-none-match", "*")], true),
            (&[("if-none-match", "\"0\"")], false),
            (
                &[("if-none-match", "\"0\""), ("if-modified-since", DAY)],
                false,
            ),
            (&[("if-modified-since", DAY)], true),
            (&[("if-modified-since", LATER)], true),
            (
                &[("if-modified-since", "Sat, 05 Nov 1994 08:49:37 GMT")],
                false,
            ),
            (&[("if-modified-since", "soon")], false),
        ] {
            let asked = fields.iter().copied().collect();
            assert_eq!(is_not_modified(&asked, &stored), expected, "{fields:?}");
        }
        let dated = head(200, &[("date", DAY)]);
        let since = [("if-modified-since", LATER)].into_iter().collect();
        assert!(is_not_modified(&since, &dated));
        assert!(!is_not_modified(&since, &head(200, &[])));
    }

    #[test]
    fn not_modified_names_the_answer_by_its_validator() {
        let (one, weak) = (("etag", "\"1\""), ("etag", "W/\"1\""));
        let modified = ("last-modified", DAY);
        for (new, held, expected) in [
            (&[one][..], &[one][..], true),
            (&[one], &[weak], false),
            (&[weak], &[one], true),
            (&[one], &[("etag", "\"2\"")], false),
            (&[one], &[modified], false),
            (&[modified], &[modified, one], true),
            (&[modified], &[("last-modified", LATER)], false),
            (&[modified], &[], false),
            (&[], &[], true),
            (&[], &[one], true),
        ] {
            let found = is_about(&head(304, new), &head(200, held));
            assert_eq!(found, expected, "{new:?} {held:?}");
        }
    }

    #[test]
    fn not_modified_gets_the_weak_tag_of_the_condition() {
        for (asked, tag, expected) in [
            ("W/\"a\"", "\"a\"", "W/\"a\""),
            ("\"b\", W/\"a\"", "\"a\"", "W/\"a\""),
            ("W/\"a,b\"", "\"a,b\"", "W/\"a,b\""),
            ("W/\"ab\"", "\"b\"", "\"b\""),
            ("\"W/\"", "\"W/\"", "\"W/\""),
            ("\"a\"", "\"a\"", "\"a\""),
            ("W/\"b\"", "\"a\"", "\"a\""),
            ("*", "\"a\"", "\"a\""),
            ("W/\"a\"", "W/\"a\"", "W/\"a\""),
        ] {
            let request = [("if-none-match", asked)].into_iter().collect();
            let mut answer: Fields = [("etag", tag)].into_iter().collect();
            let is_changed = confirm_weak_tag(&request, &mut answer);
            assert_eq!(answer.get("etag"), Some(expected.as_bytes()), "{asked}");
            assert_eq!(is_changed, tag != expected, "{asked}");
        }
    }

    #[test]
    fn freshening_keeps_the_body_s_description() {
        let mut stored = head(
            200,
            &[
                ("content-length", "5"),
                ("content-encoding", "gzip"),
                ("cache-control", "max-age=1"),
                ("age", "50"),
                ("x", "1"),
                ("y", "1"),
            ],
        );
        let update = head(
            304,
            &[
                ("content-length", "0"),
                ("content-encoding", "br"),
                ("cache-control", "max-age=60"),
                ("x", "2"),
                ("x", "3"),
            ],
        );
        freshen(&mut stored, &update);
        let expected = head(
            200,
            &[
                ("content-length", "5"),
                ("content-encoding", "gzip"),
                ("y", "1"),
                ("cache-control", "max-age=60"),
                ("x", "2"),
                ("x", "3"),
            ],
        );
        assert_eq!(stored, expected);
    }
}
