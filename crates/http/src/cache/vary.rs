//! The choice of a stored response by `Vary` (RFC 9111 section 4.1, RFC 9110 section 12.5.5).

use super::control::members;
use crate::Fields;
use crate::message::is_token;

/// The names that `Vary` lists, in the spelling of the response.
pub fn names(response: &Fields) -> impl Iterator<Item = &[u8]> {
    response.get_all("vary").flat_map(members)
}

/// The largest number of names in `Vary` that are compared. The comparisons for one request could
/// otherwise delay all users of a shared cache. Origins name a handful.
pub const MAX_NAMES: usize = 32;

/// Returns true if `Vary` lists `*`, a member that is no field name, or more than [`MAX_NAMES`]
/// names. No request is known to match such a response.
pub fn is_any(response: &Fields) -> bool {
    names(response).nth(MAX_NAMES).is_some()
        || names(response).any(|name| name == b"*" || !name.iter().copied().all(is_token))
}

/// Returns true if `Vary` lists the field `name`, or everything.
pub fn depends_on(response: &Fields, name: &str) -> bool {
    is_any(response) || names(response).any(|listed| listed.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns true if a response with these fields also fits the request `asked`. `original` holds the
/// fields of the request that it was a response to.
pub fn selects(response: &Fields, original: &Fields, asked: &Fields) -> bool {
    !is_any(response)
        && names(response).all(|name| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            is_equal(&name, original, asked)
        })
}

/// Returns true if two requests agree in the field `name` (lower case). Lines are combined, and
/// white space around commas does not count, since a recipient that combines lines chooses it (RFC
/// 9110 section 5.3). In `Accept-Language`, neither case nor the order of members counts (RFC 4647
/// section 2.1).
pub fn is_equal(name: &str, one: &Fields, other: &Fields) -> bool {
    if one.get_all(name).eq(other.get_all(name)) {
        return true;
    }
    if one.contains(name) != other.contains(name) || is_exact(name) {
        return false;
    }
    if name == "accept-language" {
        return languages(one) == languages(other);
    }
    let (one, other) = (one.get_all(name), other.get_all(name));
    one.flat_map(members).eq(other.flat_map(members))
}

/// Returns true if the field is no list, and selects a user.
fn is_exact(name: &str) -> bool {
    matches!(name, "cookie" | "authorization")
}

/// The members of `Accept-Language` in lower case, without white space, in an order of their text.
fn languages(fields: &Fields) -> Vec<Vec<u8>> {
    let members = fields.get_all("accept-language").flat_map(members);
    let plain = members.map(|member| {
        let mut member = member.to_ascii_lowercase();
        member.retain(|byte| !matches!(byte, b' ' | b'\t'));
        member
    });
    let mut all: Vec<_> = plain.collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)]) -> Fields {
        fields.iter().copied().collect()
    }

    #[test]
    fn selection_compares_the_listed_fields() {
        let gzip = [("accept-encoding", "gzip, br"), ("x-kind", "1")];
        // Each row: Vary, the original fields, the fields of the new request, the decision.
        for (vary, original, asked, expected) in [
            (&["accept-encoding"][..], &gzip[..], &gzip[..], true),
            (&["accept-encoding"], &gzip, &[], false),
            (&["accept-encoding"], &[], &[], true),
            (&["accept-encoding"], &[], &gzip, false),
            (
                &["Accept-Encoding"],
                &gzip,
                &[("accept-encoding", "gzip ,br")],
                true,
            ),
            (
                &["accept-encoding"],
                &gzip,
                &[("accept-encoding", "br, gzip")],
                false,
            ),
            (
                &["accept-encoding"],
                &gzip,
                &[("accept-encoding", "gzip"), ("accept-encoding", "br")],
                true,
            ),
            (&["x-kind"], &gzip, &[("x-kind", "1")], true),
            (&["x-kind"], &gzip, &[("x-kind", "2")], false),
            (&["x-kind"], &[("x-kind", "")], &[], false),
            (&["accept"], &[("accept", "")], &[], false),
            (&["x-kind, accept-encoding"], &gzip, &gzip, true),
            (
                &["x-kind", "accept-encoding"],
                &gzip,
                &[("x-kind", "1")],
                false,
            ),
            (&["*"], &gzip, &gzip, false),
            (&["x-kind, *"], &gzip, &gzip, false),
            (&["", "*"], &gzip, &gzip, false),
            (&["\"x-kind\""], &gzip, &gzip, false),
            (&["x kind"], &gzip, &gzip, false),
            (&[""], &gzip, &[], true),
            (&[], &gzip, &[], true),
        ] {
            let response: Fields = vary.iter().map(|value| ("vary", *value)).collect();
            let found = selects(&response, &fields(original), &fields(asked));
            assert_eq!(found, expected, "{vary:?} {original:?} {asked:?}");
        }
    }

    #[test]
    fn many_names_count_as_everything() {
        for (count, is_many) in [(MAX_NAMES, false), (MAX_NAMES + 1, true), (12_000, true)] {
            let list: Vec<String> = (0..count).map(|number| format!("x-{number}")).collect();
            let response: Fields = [("vary", list.join(", "))].into_iter().collect();
            assert_eq!(is_any(&response), is_many, "{count}");
            let asked = Fields::default();
            assert_eq!(selects(&response, &asked, &asked), !is_many, "{count}");
        }
    }

    #[test]
    fn languages_compare_without_order_and_case() {
        let agree = |one: &str, other: &str| {
            let of = |value: &str| fields(&[("accept-language", value)]);
            is_equal("accept-language", &of(one), &of(other))
        };
        assert!(agree("en, de", "de, en") && agree("en, de", "eN,DE"));
        assert!(agree("en;q=0.5, de", "de , en; q=0.5"));
        assert!(!agree("en, de", "en") && !agree("en;q=0.5, de", "en, de"));
        assert!(!agree("en", "") && !agree("en-us", "en"));
    }

    #[test]
    fn lines_of_one_field_are_combined() {
        let (one, two) = ([("x", "1, 2")], [("x", "1"), ("x", "2")]);
        assert!(is_equal("x", &fields(&one), &fields(&two)));
        assert!(is_equal("x", &fields(&one), &fields(&[("x", "1,2")])));
        for other in ["12", "2, 1", "\"1, 2\"", "1, 2, 3"] {
            assert!(
                !is_equal("x", &fields(&one), &fields(&[("x", other)])),
                "{other}"
            );
        }
        let cookie = |value: &str| fields(&[("cookie", value)]);
        assert!(!is_equal("cookie", &cookie("a=1,2"), &cookie("a=1, 2")));
    }

    #[test]
    fn dependence_is_found_in_any_spelling() {
        let vary = fields(&[("vary", "Accept"), ("vary", " COOKIE ,x")]);
        assert!(depends_on(&vary, "cookie") && depends_on(&vary, "x"));
        assert!(!depends_on(&vary, "cook"));
        assert!(depends_on(&fields(&[("vary", "*")]), "cookie"));
    }

    proptest::proptest! {
        #[test]
        fn request_selects_its_own_answer_or_none(vary: Vec<u8>, name in "[a-z]{1,3}", value: Vec<u8>) {
            let response: Fields = [("vary", vary)].into_iter().collect();
            let asked: Fields = [(name, value)].into_iter().collect();
            proptest::prop_assert_eq!(selects(&response, &asked, &asked), !is_any(&response));
        }
    }
}
